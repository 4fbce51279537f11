import re
from unittest import mock

from django.test import TestCase

from django_perfectqueue.management.queues.rule_command import person
from django_perfectqueue.management.tasks import bulk
from django_perfectqueue.models import DeadLetter
from django_perfectqueue.queue import Queue
from tests.factories import finish, running, status, submit

from .running import broken, refused, run, run_json


class ForceFinishTests(TestCase):
    def test_each_key_is_finished(self):
        submit("a", now=None)
        running("b", now=None, priority=1)

        out = run("pq_force_finish", "a", "b")

        self.assertEqual(out, "Task 'a' is finished.\nTask 'b' is finished.\n")
        self.assertEqual(Queue()["b"].metadata().status, "finished")

    def test_what_can_not_be_done_to_one_keeps_none_of_the_others_from_it(self):
        submit("a")
        submit("b")

        message = refused(self, "pq_force_finish", "a", "none", "b")

        self.assertIn("Task 'b' is finished.", message)
        self.assertIn("Queue 'default' has no task with the key 'none'.", message)
        self.assertIn("It could not be done to 1 of 3 tasks.", message)
        self.assertEqual(Queue()["b"].metadata().status, "finished")

    def test_a_task_that_has_ended_is_an_error(self):
        broken("a")

        message = refused(self, "pq_force_finish", "a")

        self.assertEqual(message, "Task 'a' has ended: it is failed.")

    def test_json_tells_each_key_apart(self):
        submit("a")

        self.assertEqual(run_json("pq_force_finish", "a"), [{"key": "a", "done": "finished"}])
        self.assertIn(
            '"error": "AlreadyFinishedError"', refused(self, "pq_force_finish", "a", "--json")
        )


class CancelRequestTests(TestCase):
    def test_a_waiting_task_is_cancelled_and_a_running_one_is_asked(self):
        task, _lease = running("b", now=None)
        submit("a", now=None)

        out = run("pq_cancel_request", "a", "b")

        self.assertIn("Task 'a' is cancelled.\n", out)
        self.assertIn("Task 'b' is held by a processor, and is asked to stop.\n", out)
        self.assertTrue(task.metadata().ticket.cancel_requested)

    def test_a_key_that_is_not_there(self):
        self.assertIn("no task with the key 'a'", refused(self, "pq_cancel_request", "a"))

    def test_all_that_has_not_ended_is_cancelled_or_asked(self):
        broken("failed")
        running("a", now=None)
        submit("b", now=None)

        self.assertEqual(
            run("pq_cancel_request", "--all", "--dry-run"), "a\nb\n2 tasks would be cancelled.\n"
        )
        self.assertEqual(
            run("pq_cancel_request", "--all"),
            "1 task is cancelled. 1 is held by a processor, and is asked to stop.\n",
        )
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")
        self.assertEqual(Queue()["failed"].metadata().status, "failed")

    def test_it_may_be_those_of_a_type_a_user_or_a_status(self):
        submit("a", type="import", user="ann", now=None)
        submit("b", type="import", user="ben", now=None)
        submit("c", type="mail", user="ann", now=None)

        terms = ("--type", "import", "--user", "ann", "--status", "running")
        self.assertEqual(run_json("pq_cancel_request", *terms), [{"cancelled": 0, "requested": 0}])
        self.assertEqual(
            run_json("pq_cancel_request", *terms[:4]), [{"cancelled": 1, "requested": 0}]
        )

        self.assertEqual(Queue()["a"].metadata().status, "cancelled")
        self.assertEqual(Queue()["b"].metadata().status, "waiting")
        self.assertEqual(Queue()["c"].metadata().status, "waiting")


class PriorityTests(TestCase):
    def test_each_key_is_given_it(self):
        submit("a", queue="mail")
        submit("b", queue="mail")

        out = run("pq_priority", "a", "b", "-5", "--queue", "mail")

        self.assertEqual(out, "Task 'a' has the priority -5.\nTask 'b' has the priority -5.\n")
        self.assertEqual(Queue("mail")["b"].metadata().priority, -5)

    def test_json_tells_a_program_what_was_done(self):
        submit("a")

        self.assertEqual(run_json("pq_priority", "a", "3"), [{"key": "a", "done": "reprioritized"}])

    def test_what_can_not_be_done_is_reported(self):
        broken("a")
        for arguments, reported in (
            (("a", "1"), "Task 'a' has ended: it is failed."),
            (("none", "1"), "Queue 'default' has no task with the key 'none'."),
            (("a", str(2**31)), "The priority must be a whole number from"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, "pq_priority", *arguments))


class RetryTests(TestCase):
    def test_a_failed_task_is_put_back(self):
        task = broken("a")

        out = run("pq_retry", "a")

        self.assertEqual(out, "Task 'a' will be tried again.\n")
        self.assertEqual(status(task, None), "waiting")

    def test_a_finished_task_is_not(self):
        _task, lease = running("a")
        finish(lease)

        self.assertEqual(refused(self, "pq_retry", "a"), "Task 'a' has ended: it is finished.")

    def test_a_group_is_put_back_and_no_other(self):
        for number in range(3):
            broken(f"boom-{number}")
        broken("other")
        DeadLetter.objects.filter(task__key="other").update(group="other")

        out = run("pq_retry", "--group", "boom")

        self.assertEqual(out, "3 tasks will be tried again.\n")
        self.assertEqual(Queue()["other"].metadata().status, "failed")

    def test_all_is_all_that_failed_unless_another_status_is_named(self):
        broken("a")
        submit("b", now=None).cancel_request()

        self.assertEqual(run_json("pq_retry", "--all"), [{"retried": 1}])
        self.assertEqual(Queue()["b"].metadata().status, "cancelled")
        self.assertEqual(run_json("pq_retry", "--all", "--status", "cancelled"), [{"retried": 1}])

    def test_a_dry_run_only_tells(self):
        task = broken("a")

        out = run("pq_retry", "--all", "--dry-run")

        self.assertEqual(out, "a\n1 task would be tried again.\n")
        self.assertEqual(status(task, None), "failed")
        self.assertEqual(run_json("pq_retry", "--all", "--dry-run"), [{"key": "a"}])

    def test_a_long_dry_run_names_the_first_and_counts_the_rest(self):
        for number in range(3):
            broken(f"boom-{number}")

        with mock.patch.object(bulk, "KEYS_SHOWN", 1):
            out = run("pq_retry", "--all", "--dry-run")
            self.assertEqual(len(run_json("pq_retry", "--all", "--dry-run")), 3)

        self.assertEqual(out, "boom-0\n… and 2 more\n3 tasks would be tried again.\n")

    def test_a_group_that_is_not_there_gets_those_that_are(self):
        broken("a")
        broken("b")
        submit("other", queue="reports", now=None).cancel_request()
        DeadLetter.objects.filter(task__key="b").update(group="ValueError")
        DeadLetter.objects.filter(task__key="other").update(group="OSError")

        self.assertEqual(
            run("pq_retry", "--group", "nosuch"),
            "No task of queue 'default' ended for the reason 'nosuch'."
            " There is 'ValueError', 'boom'.\n",
        )
        self.assertIn("Did you mean 'boom'?", run("pq_retry", "--group", "bom", "--dry-run"))
        self.assertEqual(run_json("pq_retry", "--group", "nosuch"), [{"retried": 0}])

    def test_a_queue_that_is_not_there_gets_those_that_are(self):
        broken("a")

        for command in ("pq_retry", "pq_cancel_request"):
            self.assertEqual(
                run(command, "--all", "--queue", "nosuch"),
                "Queue 'nosuch' has no tasks. There is 'default'.\n",
            )
        self.assertIn("Did you mean 'default'?", run("pq_retry", "--all", "--queue", "defualt"))
        self.assertEqual(run_json("pq_retry", "--all", "--queue", "nosuch"), [{"retried": 0}])

    def test_it_may_be_those_of_a_type_or_a_user(self):
        for key, type_, user in (("a", "mail", "ann"), ("b", "mail", "ben"), ("c", "fax", "ann")):
            broken(key, type=type_, user=user)

        self.assertEqual(run_json("pq_retry", "--type", "mail", "--user", "ann"), [{"retried": 1}])
        self.assertEqual(run_json("pq_retry", "--user", "ann"), [{"retried": 1}])
        self.assertEqual(Queue()["b"].metadata().status, "failed")

    def test_the_first_can_be_tried_before_the_rest(self):
        for number in range(3):
            broken(f"boom-{number}")

        self.assertEqual(run_json("pq_retry", "--all", "--limit", "2"), [{"retried": 2}])
        self.assertEqual(Queue()["boom-2"].metadata().status, "failed")

    def test_each_is_met_once_however_they_are_paged(self):
        for number in range(3):
            broken(f"boom-{number}")

        with mock.patch.object(bulk, "PAGE", 1):
            reported = run_json("pq_retry", "--all", "--limit", "9", "--dry-run")

        self.assertEqual([row["key"] for row in reported], ["boom-0", "boom-1", "boom-2"])

    def test_another_queue_is_left_alone(self):
        submit("a", now=None, queue="reports").cancel_request()

        self.assertEqual(run_json("pq_retry", "--all", "--status", "cancelled"), [{"retried": 0}])

    def test_options_that_do_not_go_together(self):
        for options, says in (
            (["a", "--all"], "but not both"),
            ([], "Which tasks?"),
            (
                ["a", "--dry-run"],
                "--dry-run is for --group, --all, --type, --user, --tag, --since or --until.",
            ),
            (
                ["--status", "failed"],
                "--status is for --group, --all, --type, --user, --tag, --since or --until.",
            ),
            (["--all", "--limit", "0"], "whole number from 1"),
            (["--type", ""], "--type is empty"),
            (["--group", "", "--rate", "1/s"], "--group is empty"),
        ):
            with self.subTest(options):
                self.assertIn(says, refused(self, "pq_retry", *options))

    def test_a_type_may_end_with_a_star(self):
        for type_ in ("mail.send", "mail.sort", "other"):
            submit(type_, type=type_, now=None)

        cancelled = run_json("pq_cancel_request", "--type", "mail.*")

        self.assertEqual(cancelled, [{"cancelled": 2, "requested": 0}])
        self.assertEqual(Queue()["other"].metadata().status, "waiting")

    def test_tasks_without_a_user_may_be_chosen(self):
        submit("a", now=None)
        submit("b", now=None, user="ann")

        cancelled = run_json("pq_cancel_request", "--user", "")

        self.assertEqual(cancelled, [{"cancelled": 1, "requested": 0}])


class WhoTests(TestCase):
    """Who steered a task is in its story, whichever door it came through."""

    def actions(self, key="k1"):
        [reported] = run_json("pq_show", key)
        return [(one["by"], one["did"]) for one in reported["actions"]]

    def test_who_ran_a_command(self):
        submit("k1", now=None)
        run("pq_priority", "k1", "3")
        run("pq_cancel_request", "k1")
        run("pq_retry", "k1")
        run("pq_force_finish", "k1")
        me = person()
        did = ["finished", "retried", "cancelled", "reprioritized"]
        self.assertEqual(self.actions(), [(me, word) for word in did])
        self.assertRegex(run("pq_show", "k1"), rf"by +{re.escape(me)}: closed as finished, \S+ ago")

    def test_who_steered_many(self):
        for number in range(3):
            submit(f"k{number}", now=None)
        run("pq_cancel_request", "--all")
        run("pq_retry", "--group", "cancelled")
        for number in range(3):
            me = person()
            self.assertEqual(self.actions(f"k{number}"), [(me, "retried"), (me, "cancelled")])

    def test_a_key_that_is_used_again_has_another_story(self):
        submit("k1", now=None)
        run("pq_force_finish", "k1")
        Queue().clear()
        submit("k1", now=None)
        self.assertEqual(self.actions(), [])

    def test_what_was_refused_was_done_by_nobody(self):
        submit("k1", now=None)
        refused(self, "pq_retry", "k1")
        self.assertEqual(self.actions(), [])
