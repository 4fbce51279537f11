import io
import json
import re
from contextlib import suppress
from unittest import mock

from django.core.management import CommandError
from django.db import transaction
from django.test import TestCase

from django_perfectqueue.management.flags import person
from django_perfectqueue.models import Change, DeadLetter, Step
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain
from tests.factories import finish, running, status, submit

from .running import Terminal, broken, entered, refused, run, run_json


class ForceFinishTests(TestCase):
    def test_each_key_is_finished(self):
        submit("a", now=None)
        running("b", now=None, priority=1)

        out = run("pq_task", "finish", "a", "b")

        self.assertEqual(out, "Task 'a' is finished.\nTask 'b' is finished.\n")
        self.assertEqual(Queue()["b"].metadata().status, "finished")

    def test_what_can_not_be_done_to_one_keeps_none_of_the_others_from_it(self):
        submit("a")
        submit("b")

        message = refused(self, "pq_task", "finish", "a", "none", "b")

        self.assertIn("Task 'b' is finished.", message)
        self.assertIn("Queue 'default' has no task with the key 'none'.", message)
        self.assertIn("It could not be done to 1 of 3 tasks.", message)
        self.assertEqual(Queue()["b"].metadata().status, "finished")

    def test_a_task_that_has_ended_is_an_error(self):
        broken("a")

        message = refused(self, "pq_task", "finish", "a")

        self.assertEqual(message, "Task 'a' has ended: it is failed.")

    def test_json_tells_each_key_apart(self):
        submit("a")

        self.assertEqual(run_json("pq_task", "finish", "a"), [{"key": "a", "done": "finished"}])
        self.assertIn(
            '"error": "AlreadyFinishedError"', refused(self, "pq_task", "finish", "a", "--json")
        )


class CancelRequestTests(TestCase):
    def test_a_waiting_task_is_cancelled_and_a_running_one_is_asked(self):
        task, _lease = running("b", now=None)
        submit("a", now=None)

        out = run("pq_task", "cancel", "a", "b")

        self.assertIn("Task 'a' is cancelled.\n", out)
        self.assertIn("Task 'b' is held by a processor, and is asked to stop.\n", out)
        self.assertTrue(task.metadata().ticket.cancel_requested)

    def test_a_key_that_is_not_there(self):
        self.assertIn("no task with the key 'a'", refused(self, "pq_task", "cancel", "a"))

    def test_all_that_has_not_ended_is_cancelled_or_asked(self):
        broken("failed")
        running("a", now=None)
        submit("b", now=None)

        out = run("pq_task", "cancel", "--all", "--dry-run")
        self.assertIn("2 tasks would be cancelled or asked to stop.\n", out)
        self.assertEqual(
            run("pq_task", "cancel", "--all", "--yes"),
            "1 task is cancelled. 1 is held by a processor, and is asked to stop.\n",
        )
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")
        self.assertEqual(Queue()["failed"].metadata().status, "failed")

    def test_it_may_be_those_of_a_type_a_user_or_a_status(self):
        submit("a", type="import", user="ann", now=None)
        submit("b", type="import", user="ben", now=None)
        submit("c", type="mail", user="ann", now=None)

        terms = ("--type", "import", "--user", "ann", "--status", "running")
        self.assertEqual(
            run_json("pq_task", "cancel", *terms, "--yes"), [{"cancelled": 0, "requested": 0}]
        )
        self.assertEqual(
            run_json("pq_task", "cancel", *terms[:4], "--yes"), [{"cancelled": 1, "requested": 0}]
        )

        self.assertEqual(Queue()["a"].metadata().status, "cancelled")
        self.assertEqual(Queue()["b"].metadata().status, "waiting")
        self.assertEqual(Queue()["c"].metadata().status, "waiting")


class PriorityTests(TestCase):
    def test_each_key_is_given_it(self):
        submit("a", queue="mail")
        submit("b", queue="mail")

        out = run("pq_task", "priority", "a", "b", "-5", "--queue", "mail")

        self.assertEqual(out, "Task 'a' has the priority -5.\nTask 'b' has the priority -5.\n")
        self.assertEqual(Queue("mail")["b"].metadata().priority, -5)

    def test_json_tells_a_program_what_was_done(self):
        submit("a")

        self.assertEqual(
            run_json("pq_task", "priority", "a", "3"), [{"key": "a", "done": "reprioritized"}]
        )

    def test_what_can_not_be_done_is_reported(self):
        broken("a")
        for arguments, reported in (
            (("a", "1"), "Task 'a' has ended: it is failed."),
            (("none", "1"), "Queue 'default' has no task with the key 'none'."),
            (("a", str(2**31)), "The priority must be a whole number from"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, "pq_task", "priority", *arguments))


class RetryTests(TestCase):
    def test_a_failed_task_is_put_back(self):
        task = broken("a")

        out = run("pq_task", "retry", "a")

        self.assertEqual(out, "Task 'a' will be tried again.\n")
        self.assertEqual(status(task, None), "waiting")

    def test_a_cancelled_one_keeps_its_time_by_its_key_and_by_a_filter(self):
        tasks = [submit(key, now=None, run_at="1d") for key in "ab"]
        for task in tasks:
            task.cancel_request()

        run("pq_task", "retry", "a")
        run("pq_task", "retry", "--all", "--status", "cancelled", "--yes")
        self.assertEqual({status(task, None) for task in tasks}, {"scheduled"})
        run("pq_task", "retry", "a")
        self.assertEqual(status(tasks[0], None), "waiting")

    def test_a_finished_task_is_not(self):
        _task, lease = running("a")
        finish(lease)

        error = refused(self, "pq_task", "retry", "a")
        self.assertEqual(error, "Task 'a' has ended: it is finished.")

    def test_a_group_is_put_back_and_no_other(self):
        for number in range(3):
            broken(f"boom-{number}")
        broken("other")
        DeadLetter.objects.filter(task__key="other").update(group="other")

        out = run("pq_task", "retry", "--group", "boom", "--yes")

        self.assertEqual(out, "3 tasks will be tried again.\n")
        self.assertEqual(Queue()["other"].metadata().status, "failed")

    def test_all_is_all_that_failed_unless_another_status_is_named(self):
        broken("a")
        submit("b", now=None).cancel_request()

        self.assertEqual(run_json("pq_task", "retry", "--all", "--yes"), [{"retried": 1}])
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")
        self.assertEqual(
            run_json("pq_task", "retry", "--all", "--status", "cancelled", "--yes"),
            [{"retried": 1}],
        )

    def test_matches_in_other_queues_are_named(self):
        submit("a", user="ann", now=None)
        submit("b", user="ann", queue="slow", now=None)
        for queue, said in (((), True), (("--queue", "default"), False)):
            err = io.StringIO()
            entered("pq_task", "cancel", "--user", "ann", "--dry-run", *queue, stderr=err)
            self.assertEqual("Others match in other queues." in err.getvalue(), said)

    def test_a_dry_run_only_tells(self):
        task = broken("a")

        out = run("pq_task", "retry", "--all", "--dry-run")

        self.assertRegex(
            out,
            r"1 task would be tried again\.\nBy status: failed 1\nBy user: - 1\n"
            r"  key  status  type    user\n  a    failed  report\n",
        )
        self.assertEqual(status(task, None), "failed")
        [reported] = run_json("pq_task", "retry", "--all", "--dry-run")
        self.assertEqual((reported["total"], reported["sample"][0]["key"]), (1, "a"))

    def test_a_dry_run_is_of_the_first_only(self):
        for number in range(3):
            broken(f"boom-{number}")

        [reported] = run_json("pq_task", "retry", "--all", "--first", "2", "--dry-run")

        self.assertEqual(reported["total"], 2)

    def test_a_group_that_is_not_there_gets_those_that_are(self):
        broken("a")
        broken("b")
        submit("other", queue="reports", now=None).cancel_request()
        DeadLetter.objects.filter(task__key="b").update(group="ValueError")
        DeadLetter.objects.filter(task__key="other").update(group="OSError")

        self.assertEqual(
            run("pq_task", "retry", "--group", "nosuch", "--yes"),
            "No task of queue 'default' ended for the reason 'nosuch'."
            " There is 'ValueError', 'boom'.\n",
        )
        self.assertIn(
            "Did you mean 'boom'?", run("pq_task", "retry", "--group", "bom", "--dry-run")
        )
        self.assertEqual(
            run_json("pq_task", "retry", "--group", "nosuch", "--yes"), [{"retried": 0}]
        )

    def test_a_queue_that_is_not_there_gets_those_that_are(self):
        broken("a")

        for verb in ("retry", "cancel"):
            self.assertEqual(
                run("pq_task", verb, "--all", "--queue", "nosuch"),
                "Queue 'nosuch' has no tasks. There is 'default'.\n",
            )
        self.assertIn(
            "Did you mean 'default'?",
            run("pq_task", "retry", "--all", "--queue", "defualt", "--yes"),
        )
        self.assertEqual(
            run_json("pq_task", "retry", "--all", "--queue", "nosuch", "--yes"), [{"retried": 0}]
        )

    def test_it_may_be_those_of_a_type_or_a_user(self):
        for key, type_, user in (("a", "mail", "ann"), ("b", "mail", "ben"), ("c", "fax", "ann")):
            broken(key, type=type_, user=user)

        self.assertEqual(
            run_json("pq_task", "retry", "--type", "mail", "--user", "ann", "--yes"),
            [{"retried": 1}],
        )
        self.assertEqual(run_json("pq_task", "retry", "--user", "ann", "--yes"), [{"retried": 1}])
        self.assertEqual(Queue()["b"].metadata().status, "failed")

    def test_the_first_can_be_tried_before_the_rest(self):
        for number in range(3):
            broken(f"boom-{number}")

        self.assertEqual(
            run_json("pq_task", "retry", "--all", "--first", "2", "--yes"), [{"retried": 2}]
        )
        self.assertEqual(Queue()["boom-2"].metadata().status, "failed")

    def test_another_queue_is_left_alone(self):
        submit("a", now=None, queue="reports").cancel_request()

        self.assertEqual(
            run_json("pq_task", "retry", "--all", "--status", "cancelled", "--yes"),
            [{"retried": 0}],
        )

    def test_options_that_do_not_go_together(self):
        for options, says in (
            (["a", "--all"], "but not both"),
            ([], "Which tasks?"),
            (["a", "--dry-run"], "--dry-run needs a filter: --all, --status, --type, --user"),
            (["a", "--status", "failed"], "but not both"),
            (["--all", "--status", "finished"], "'retry' is for tasks that are failed"),
            (["--all", "--first", "-1"], "whole number from 0"),
            (["--tag", "a", "--tag", "b"], "steered by one --tag"),
            (["--batch", "nosuch"], "no batch called 'nosuch'"),
            (["--type", ""], "--type is empty"),
            (["--group", "", "--rate", "1/s"], "--group is empty"),
        ):
            with self.subTest(options):
                self.assertIn(says, refused(self, "pq_task", "retry", *options, "--yes"))

    def test_keys_that_begin_so_or_are_in_a_batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit("in-1", "report")
        submit("in-2", now=None), submit("out", now=None)

        for filters in (["--batch", "nightly"], ["--key-prefix", "in-"]):
            listed = [one["key"] for one in run_json("pq_task", "list", *filters)]
            [reported] = run_json("pq_task", "cancel", *filters, "--dry-run")
            self.assertEqual({one["key"] for one in reported["sample"]}, set(listed))
            self.assertEqual(len(listed), 2 if "in-" in filters else 1)

    def test_who_changes_many_is_asked(self):
        broken("a")
        message = refused(self, "pq_task", "retry", "--all")
        self.assertIn("1 task would be tried again. Add --yes to do it", message)
        for answer, status_ in (("n", "failed"), ("", "failed"), ("y", "waiting")):
            with (
                self.subTest(answer),
                mock.patch("sys.stdin", Terminal(f"{answer}\n")),
                suppress(CommandError),
            ):
                out = Terminal()
                entered("pq_task", "retry", "--all", stdout=out, stderr=io.StringIO())
            self.assertIn("1 task would be tried again. Go on? [y/N] ", out.getvalue())
            self.assertEqual(Queue()["a"].metadata().status, status_)

    def test_a_type_may_end_with_a_star(self):
        for type_ in ("mail.send", "mail.sort", "other"):
            submit(type_, type=type_, now=None)

        cancelled = run_json("pq_task", "cancel", "--type", "mail.*", "--yes")

        self.assertEqual(cancelled, [{"cancelled": 2, "requested": 0}])
        self.assertEqual(Queue()["other"].metadata().status, "waiting")

    def test_tasks_without_a_user_may_be_chosen(self):
        submit("a", now=None)
        submit("b", now=None, user="ann")

        cancelled = run_json("pq_task", "cancel", "--user", "", "--yes")

        self.assertEqual(cancelled, [{"cancelled": 1, "requested": 0}])


class WhoTests(TestCase):
    """Who steered a task is in its story, whichever door it came through."""

    def actions(self, key="k1"):
        [reported] = run_json("pq_task", "show", key)
        return [(one["by"], one["did"]) for one in reported["actions"]]

    def test_who_ran_a_command(self):
        submit("k1", now=None)
        run("pq_task", "priority", "k1", "3")
        run("pq_task", "cancel", "k1")
        run("pq_task", "retry", "k1")
        run("pq_task", "finish", "k1")
        me = person()
        did = ["finished", "retried", "cancelled", "reprioritized"]
        self.assertEqual(self.actions(), [(me, word) for word in did])
        self.assertRegex(
            run("pq_task", "show", "k1"), rf"by +{re.escape(me)}: closed as finished, \S+ ago"
        )

    def test_who_steered_many(self):
        for number in range(3):
            submit(f"k{number}", now=None)
        run("pq_task", "cancel", "--all", "--yes")
        run("pq_task", "retry", "--group", "cancelled", "--yes")
        for number in range(3):
            me = person()
            self.assertEqual(self.actions(f"k{number}"), [(me, "retried"), (me, "cancelled")])

    def test_a_key_that_is_used_again_has_another_story(self):
        submit("k1", now=None)
        run("pq_task", "finish", "k1")
        Queue().clear()
        submit("k1", now=None)
        self.assertEqual(self.actions(), [])

    def test_what_was_refused_was_done_by_nobody(self):
        submit("k1", now=None)
        refused(self, "pq_task", "retry", "k1")
        self.assertEqual(self.actions(), [])


class SignalTests(TestCase):
    def waiting(self):
        task = submit("k1", now=None, type="decide", queue="orders")
        drain()
        return task

    def test_it_is_sent_with_json_or_who_sends_it(self):
        task = self.waiting()
        out = run("pq_task", "signal", "k1", "approval", '{"answer": "yes"}', "--queue", "orders")
        self.assertEqual(out, "Signal 'approval' is sent to task 'k1'.\n")
        [said] = run_json("pq_task", "signal", "k1", "seen", "--queue", "orders")
        self.assertEqual(said, {"key": "k1", "done": "signalled", "signal": "seen"})
        signals = task.metadata().steps.filter(kind=Step.Kind.SIGNAL)
        data = {one.name: json.loads(one.result_text) for one in signals}
        self.assertEqual(data, {"approval": {"answer": "yes"}, "seen": {"by": person()}})

    def test_who_sent_it_is_recorded_with_it_or_not_at_all(self):
        task = self.waiting()
        with suppress(RuntimeError), transaction.atomic():
            task.signal("seen", by="ann")
            raise RuntimeError
        self.assertFalse(Change.objects.exists())
        self.assertTrue(task.signal("seen", {"secret": 1}, by="ann"))
        self.assertFalse(task.signal("seen", on_conflict="ignore", by="bob"))
        rows = [(one.by, one.name, one.after) for one in Change.objects.all()]
        self.assertEqual(rows, [("ann", "k1", {"did": "signalled", "signal": "seen"})])

    def test_what_is_wrong_is_said_with_an_exit_code(self):
        task = self.waiting()
        for arguments, message in (
            (("k1", "approval"), "Queue 'default' has no task with the key 'k1'. Queue 'orders' h"),
            (("k1", "approval", "{", "--queue", "orders"), "This is not JSON"),
            (("k1", "", "--queue", "orders"), "name of a signal must be a text of 1 to 100"),
            (("k11", "approval", "--queue", "orders"), "the key 'k11'. Did you mean 'k1'?"),
        ):
            with self.subTest(arguments):
                self.assertIn(message, refused(self, "pq_task", "signal", *arguments))
        run("pq_task", "signal", "k1", "approval", "1", "--queue", "orders")
        again = refused(self, "pq_task", "signal", "k1", "approval", "--queue", "orders", code=3)
        self.assertIn("Task 'k1' has a signal 'approval' already.", again)
        task.cancel_request()
        ended = refused(self, "pq_task", "signal", "k1", "seen", "--queue", "orders")
        self.assertIn("Task 'k1' has ended: it is cancelled.", ended)
