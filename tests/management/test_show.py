import re

from django.test import TestCase
from django.utils.translation import override

from django_perfectqueue import store
from django_perfectqueue.management.flags import person
from django_perfectqueue.management.terminal import local
from django_perfectqueue.models import Attempt, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store import Ending, Failure, settle
from django_perfectqueue.test import drain
from tests.factories import acquire, finish, processor, register, retry, running, submit
from tests.helpers import cases  # noqa: F401

from .running import broken, refused, run, run_json


class ShowTests(TestCase):
    def test_attempts_that_are_not_stored_any_more_are_said(self):
        task = submit("k1", now=None)
        for _number in range(2):
            Queue().poll().retry(0, why=Failure(error="ValueError", message="no"))
        last = Attempt.objects.filter(task__key=task.key).latest("pk")
        Attempt.objects.filter(pk=last.pk).update(omitted=3)

        out = run("pq_task", "show", "k1")

        self.assertIn("… Attempts 2 to 4 are not stored any more.\nAttempt 5:", out)

    def test_a_finished_task_tells_its_whole_story(self):
        """
        Two attempts, the first of which broke: when, why and for how long.
        """
        submit("k1", now=None, data={"uid": 1}, user="acme")
        held = Queue().poll()
        held.worker = "host/1"
        held.retry(0, why=Failure(error="ValueError", message="no", traceback="Traceback: x"))
        held = Queue().poll()
        held.worker = "host/2"
        held.finish({"rows": 3})

        out = run("pq_task", "show", "k1")

        self.assertIn("Task 'k1' in queue 'default'\n", out)
        self.assertRegex(out, r"status +finished, ended \S+ ago\n")
        self.assertRegex(out, r"user +acme\n")
        self.assertRegex(out, r"attempts +2\n")
        self.assertRegex(out, r"worker +host/2\n")
        self.assertRegex(out, r"waited +\S+\n")
        self.assertRegex(out, r"ran +\S+\n")
        self.assertRegex(out, r"Attempt 1: retried \S+ \S+ after \S+, host/1\n  ValueError: no\n")
        self.assertRegex(out, r"Attempt 2: finished \S+ \S+ after \S+, host/2\n")
        self.assertIn('Data\n  {\n    "uid": 1\n  }\n', out)
        self.assertIn('Result\n  {\n    "rows": 3\n  }\n', out)

    def test_a_workflow_is_read_in_its_order(self):
        task = submit("k1", now=None, type="decide")
        drain()
        out = run("pq_task", "show", "k1")
        self.assertRegex(out, r"Workflow\n  \S+ \S+ draft \(step\): \{.*\n")
        self.assertRegex(out, r"\n  \S+ \S+ approval \(waits for this signal, until \S+ \S+\)\n")
        run("pq_task", "signal", "k1", "approval", '["yes"]')
        drain()
        out = run("pq_task", "show", "k1")
        self.assertRegex(out, r"\n  \S+ \S+ approval \(has waited for this signal, until ")
        self.assertRegex(out, rf'\n  \S+ \S+ approval \(signal, by {person()}\): \["yes"\]\n')
        self.assertRegex(out, r"\n  \S+ \S+ cooling-off \(sleeps, until \S+ \S+\)\n")
        self.assertRegex(out, r"by +" + re.escape(person()) + ": signal sent: approval, ")
        [facts] = run_json("pq_task", "show", "k1")
        found = {(one["kind"], one["name"]): one for one in facts["steps"]}
        self.assertEqual(found["signal", "approval"]["result"], ["yes"])
        self.assertEqual(found["signal", "approval"]["by"], person())
        self.assertEqual(found["wait", "approval"]["state"], "answered")
        self.assertIsNone(found["wait", "approval"]["result"])
        self.assertIsNotNone(found["sleep", "cooling-off"]["until"])
        [bare] = run_json("pq_task", "show", "k1", "--no-data")
        self.assertFalse(any("result" in one for one in bare["steps"]))
        drain(ahead="2d")
        self.assertEqual(task.metadata().result, ["yes"])

    def test_a_task_of_a_schedule_says_which_and_for_which_tick(self):
        handle = Schedules().put("nightly", "report", every=60)
        task = handle.trigger()
        tick = handle.row().last_at
        out = run("pq_task", "show", task.key)
        self.assertRegex(out, r"\n  schedule +nightly\n  tick +" + re.escape(local(tick)))
        [facts] = run_json("pq_task", "show", task.key)
        self.assertEqual(facts["schedule"], {"name": "nightly", "tick": tick.isoformat()})
        submit("other")
        [facts] = run_json("pq_task", "show", "other")
        self.assertIsNone(facts["schedule"])

    def test_a_running_task_tells_where_it_runs(self):
        task, held = running("k1", now=None)
        other, own = processor(1, task.id + 1), processor(2, task.id, pid=77, holder=held.holder)
        register(host="app1", now=None, states=[other, own])

        self.assertRegex(
            run("pq_task", "show", "k1"), r"runs on +app1:77, processor 2\n  runs since +"
        )
        [reported] = run_json("pq_task", "show", "k1")
        place = {name: reported["runs"][name] for name in ("host", "pid", "processor")}
        self.assertEqual(place, {"host": "app1", "pid": 77, "processor": 2})

    def test_a_running_task_says_who_has_it_before_its_worker_reported_so(self):
        _task, held = running("k1", now=None)
        own = processor(2, pid=77, holder=held.holder)
        register(host="app1", now=None, states=[processor(1, 10**9), own])

        self.assertRegex(run("pq_task", "show", "k1"), r"held by +app1:77, processor 2\n")
        [reported] = run_json("pq_task", "show", "k1")
        self.assertEqual((reported["runs"]["pid"], reported["runs"]["since"]), (77, None))

    def test_a_waiting_task_tells_why_it_still_waits(self):
        submit("k1", now=None)

        self.assertRegex(run("pq_task", "show", "k1"), r"why +No worker serves queue 'default'\.\n")
        [story] = run_json("pq_task", "show", "k1")
        self.assertEqual(
            story["why"],
            {
                "code": "no_worker",
                "name": "default",
                "sentence": "No worker serves queue 'default'.",
            },
        )

    def test_a_task_that_runs_or_has_ended_does_not_wait(self):
        running("k1", now=None)
        broken("k2")

        for key, code in (("k1", "running"), ("k2", "ended")):
            self.assertNotRegex(run("pq_task", "show", key), r"\n +why ")
            [story] = run_json("pq_task", "show", key)
            self.assertEqual(story["why"]["code"], code)

    def test_a_running_task_tells_how_far_it_is_and_what_it_has_logged_last(self):
        submit("k1", now=None)
        task = Queue().poll()
        for number in range(12):
            task.log(f"Page {number}.")
        task.log("No room.\nAt all. \x1b[1m", level="ERROR")
        task.progress(0.4, "drawing")
        task.write_notes()

        out = run("pq_task", "show", "k1")

        self.assertRegex(out, r"\n  progress +\[#{10}\.{14}\]  40%  drawing, \S+ ago\n")
        self.assertRegex(out, r"\nAttempt 1: running\n  … 3 lines before these: --log all\n")
        self.assertRegex(out, r"\n  \d\d:\d\d:\d\d INFO    task: Page 3\.\n")
        self.assertRegex(out, r" ERROR   task: No room\.\n {11}At all\. \\x1b\[1m\nData\n")
        self.assertNotIn("Page 2.", out)
        self.assertIn("Page 2.", run("pq_task", "show", "k1", "--log", "all"))
        self.assertNotIn("Page", run("pq_task", "show", "k1", "--log", "none"))

    def test_each_attempt_is_shown_with_what_it_has_reported(self):
        """
        One that was given back counts for nothing, but may have said why.
        """
        submit("k1", now=None)
        ways = (
            lambda task: task._end(store.Ending.release()),
            lambda task: task.retry(0),
            lambda task: task.finish(),
        )
        for number, way in enumerate(ways, 1):
            task = Queue().poll()
            task.log(f"Log {number}.")
            task.progress(number, of=10)
            way(task)

        out = run("pq_task", "show", "k1", "--log", "all")

        order = "Uncounted.*Log 1.*Attempt 1: retried.*Log 2.*Attempt 2: finished.*Log 3"
        self.assertRegex(out.replace("\n", " "), order)
        self.assertNotRegex(out, r"\n  progress")
        self.assertNotIn("Log 2.", run("pq_task", "show", "k1"))

        [story] = run_json("pq_task", "show", "k1")
        reported = [(one["acquired"], one["attempt"], one["progress"]) for one in story["journals"]]
        self.assertEqual(reported, [(1, None, 0.1), (2, 1, 0.2), (3, 2, 0.3)])
        self.assertEqual(story["journals"][0]["log"][0]["message"], "Log 1.")
        self.assertIsNone(story["progress"])
        self.assertNotIn("journals", run_json("pq_task", "show", "k1", "--log", "none")[0])

    def test_tracebacks_are_for_verbosity_two(self):
        _task, lease = running("k1", now=None)
        retry(lease, now=None, why=Failure(error="E", traceback="File x\n  \x1b[1mline"))

        self.assertNotIn("File x", run("pq_task", "show", "k1"))
        self.assertIn("  File x\n    \\x1b[1mline\n", run("pq_task", "show", "k1", "-v", "2"))

    def test_the_last_frame_of_an_error_is_for_all(self):
        submit("k1", type="helpers.boom", now=None)
        drain(raise_errors=False)

        out = run("pq_task", "show", "k1")
        self.assertRegex(out, r'  File ".*cases.py", line \d+, in \w+\n +raise ')
        self.assertNotIn("Traceback", out)
        self.assertIn("  … The whole traceback: -v 2\n", out)
        self.assertIn("Traceback", run("pq_task", "show", "k1", "-v", "2"))

    def test_one_that_no_worker_knows_waits_for_no_time(self):
        submit("k1", now=None)
        leases = acquire(now=None)
        settle(leases, Ending.release(5), using="default")
        store.park(leases, lambda type_: False, using="default")

        says = "scheduled, waits for a worker that knows its type\n"
        self.assertIn(says, run("pq_task", "show", "k1"))
        self.assertIn(says.partition(", ")[2].strip(), run("pq_task", "list"))

    def test_a_running_task_shows_its_lease_and_whether_it_is_to_stop(self):
        # A quarter beyond an hour: what is shown is the same some seconds later.
        task, _lease = running("k1", now=None, lease=10.5 * 86_400 + 900)
        task.cancel_request()

        out = run("pq_task", "show", "k1")

        self.assertRegex(out, r"status +running, leased for \S+\n")
        self.assertRegex(out, r"cancel +requested\n")
        self.assertRegex(out, r"lease until +\d{4}-")
        with override("de"):
            shown = run("pq_task", "show", "k1")
        self.assertEqual(shown, out, "Commands are in English.")

    def test_when_it_is_expected_and_its_limits_are_shown(self):
        submit("k1", now=None, expected_at="1d", limits=["mail", "api"])

        out = run("pq_task", "show", "k1")

        self.assertRegex(out, r"status +waiting, due for \S+\n")
        self.assertRegex(out, r"expected at +\d{4}-")
        self.assertRegex(out, r"limits +api, mail\n")
        self.assertNotRegex(out, r"\n  queue ", "The title has it.")
        [reported] = run_json("pq_task", "show", "k1")
        self.assertEqual(reported["limits"], ["api", "mail"])
        self.assertIsNotNone(reported["expected_at"])

    def test_one_that_is_expected_and_tried_again_was_not_given_back(self):
        _task, lease = running("k1", now=None, expected_at=-60)
        retry(lease, now=None, wait=60)

        out = run("pq_task", "show", "k1")

        self.assertRegex(out, r"status +retrying, due in \S+\n")
        self.assertNotIn("gave it back", out)

    def test_a_dead_letter_shows_why(self):
        broken("k1")

        self.assertRegex(run("pq_task", "show", "k1"), r"because +boom\n")

    def test_a_broken_payload_is_shown_as_it_is(self):
        submit("k1", now=None)
        Task.objects.update(payload="{broken")

        self.assertIn("Data, which is not json\n  {broken\n", run("pq_task", "show", "k1"))
        [story] = run_json("pq_task", "show", "k1")
        self.assertEqual(story["broken_data"], "{broken")

    def test_data_and_result_can_be_left_out(self):
        _task, lease = running("k1", now=None, data={"secret": 1})
        finish(lease, now=None, result='"secret"')

        self.assertNotIn("secret", run("pq_task", "show", "k1", "--no-data"))
        [story] = run_json("pq_task", "show", "k1", "--no-data")
        self.assertNotIn("secret", str(story))

    def test_json_has_the_history(self):
        _task, lease = running("k1", now=None)
        retry(lease, now=None, wait=60, why=Failure(error="E", message="m"))

        [story] = run_json("pq_task", "show", "k1")

        self.assertEqual((story["status"], story["errors"]), ("retrying", 1))
        [attempt] = story["history"]
        self.assertEqual((attempt["ending"], attempt["error"]), ("retried", "E"))

    def test_a_success_is_the_last_of_the_history(self):
        """
        What was given back in between is no attempt, and takes no number.
        """
        _task, lease = running("k1", now=None)
        retry(lease, now=None)
        Queue().poll()._end(store.Ending.release())
        [reported] = run_json("pq_task", "show", "k1")
        self.assertEqual((reported["attempts"], len(reported["history"])), (1, 1))
        Queue().poll().finish()

        [reported] = run_json("pq_task", "show", "k1")

        self.assertEqual(reported["attempts"], 2)
        self.assertEqual(
            [(attempt["attempt"], attempt["ending"]) for attempt in reported["history"]],
            [(1, "retried"), (2, "finished")],
        )

    def test_a_task_that_was_given_back_says_so(self):
        _task, lease = running("k1", now=None)
        settle([lease], Ending.release(30), using="default")

        out = run("pq_task", "show", "k1")

        self.assertRegex(out, r"note +A worker gave it back untried; perhaps no worker has")
        self.assertRegex(out, r"attempts +0\n")

    def test_a_task_that_was_put_off_or_discarded_says_so(self):
        for key, end in (("k1", "snooze"), ("k2", "discard")):
            submit(key, now=None)
            task = Queue().poll()
            task.worker = "host:1"
            if end == "snooze":
                task.snooze("1h")
            else:
                task.discard("There is no such customer.", why=Failure.of(KeyError("ann")))

        out = run("pq_task", "show", "k1")
        self.assertRegex(out, r"note +Its handler has snoozed it\.\n")
        self.assertRegex(out, r"attempts +0\n")
        out = run("pq_task", "show", "k2")
        self.assertRegex(out, r"note +Its handler has discarded it\.\n")
        self.assertRegex(out, r"because +discarded: There is no such customer\.\n")
        self.assertRegex(out, r"Attempt 1: cancelled .*, host:1\n +builtins\.KeyError: 'ann'\n")

    def test_a_task_put_back_by_a_person_was_not_given_back(self):
        broken("k1").retry()

        self.assertNotIn("untried", run("pq_task", "show", "k1"))

    def test_a_task_that_was_closed_from_outside_says_so(self):
        submit("k1").force_finish()

        self.assertRegex(run("pq_task", "show", "k1"), r"note +Someone closed it as finished\.\n")

    def test_it_has_not_waited_since_before_it_was_submitted(self):
        submit("k1", now=None, run_at=-3600)
        Queue().poll().finish()

        [story] = run_json("pq_task", "show", "k1")

        self.assertLess(story["waited"], 60)

    def test_a_key_that_is_not_there_gets_the_nearest_one(self):
        submit("report-2024")

        message = refused(self, "pq_task", "show", "report-2042")

        self.assertEqual(
            message,
            "Queue 'default' has no task with the key 'report-2042'. Did you mean 'report-2024'?",
        )

    def test_a_key_of_another_queue_is_reported(self):
        submit("k1", queue="reports")

        self.assertIn("Queue 'reports' has one.", refused(self, "pq_task", "show", "k1"))
