from django.test import TestCase, override_settings

from django_perfectqueue.models import DeadLetter, Task
from django_perfectqueue.queue import Queue
from tests.factories import finish, running, submit, submit_many

from .running import broken, refused, run, run_json


def keys():
    return sorted(Task.objects.values_list("key", flat=True))


def finished(key):
    _task, lease = running(key, now=None)
    finish(lease, now=None)


class PurgeTests(TestCase):
    def setUp(self):
        finished("done")
        broken("broken")
        submit("gone", now=None).cancel_request()
        submit("live", now=None)

    def test_a_queue_that_is_not_there_gets_those_that_are(self):
        for mode in ("--yes", "--dry-run"):
            with self.subTest(mode):
                out = run("pq_queue", "clear", "nosuch", mode)
                self.assertEqual(out, "Queue 'nosuch' has no tasks. There is 'default'.\n")
        reported = run_json("pq_queue", "clear", "nosuch", "--yes")
        self.assertEqual(reported, [{"queue": "nosuch", "deleted": 0}])

    def test_what_the_settings_keep_is_kept(self):
        self.assertEqual(run("pq_queue", "purge", "--yes"), "0 tasks are deleted.\n")
        self.assertEqual(keys(), ["broken", "done", "gone", "live"])

    @override_settings(PERFECTQUEUE={"RETENTION": {"*": 0}})
    def test_the_retention_of_the_settings_is_applied_now(self):
        self.assertEqual(run("pq_queue", "purge", "--yes"), "2 tasks are deleted.\n")
        self.assertEqual(keys(), ["broken", "live"])

    def test_a_span_takes_the_place_of_the_retention(self):
        """
        But what is kept for ever, as failed tasks are until someone acts, stays.
        """
        self.assertEqual(
            run_json("pq_queue", "purge", "--older-than", "0s", "--yes"), [{"deleted": 2}]
        )
        self.assertEqual(keys(), ["broken", "live"])

    def test_a_status_that_is_named_goes_even_if_it_was_for_ever(self):
        run("pq_queue", "purge", "--older-than", "0s", "--status", "failed", "--yes")

        self.assertEqual(keys(), ["done", "gone", "live"])

    def test_nothing_is_older_than_a_span_of_many_centuries(self):
        for span in ("9999999d", "9" * 400 + "s"):
            self.assertEqual(
                run_json("pq_queue", "purge", "--older-than", span, "--yes"), [{"deleted": 0}]
            )

    def test_for_ever_without_a_span_is_an_error(self):
        message = refused(self, "pq_queue", "purge", "--status", "failed", "--yes")

        self.assertIn("Say how long with --older-than", message)

    def test_a_dry_run_tells_what_the_purge_would_do(self):
        out = run("pq_queue", "purge", "--older-than", "0s", "--dry-run")

        self.assertEqual(out, "2 tasks would be deleted: 1 cancelled, 1 finished.\n")
        self.assertEqual(keys(), ["broken", "done", "gone", "live"])

    def test_those_of_one_kind_alone_go(self):
        """Failed tasks by what ended them, of which type and for whom; others stay."""
        Queue()["live"].cancel_request()
        broken("other", user="ann", type="other")
        old = ("--older-than", "0s", "--status", "failed")

        for option, value, gone in (
            ("--group", "Nothing", []),
            ("--user", "bob", []),
            ("--type", "other", ["other"]),
        ):
            with self.subTest(option):
                reported = run_json("pq_queue", "purge", *old, option, value, "--dry-run")[0]
                self.assertEqual(reported["would_delete"], len(gone))
                left = sorted(set(keys()) - set(gone))
                self.assertEqual(
                    run_json("pq_queue", "purge", *old, option, value, "--yes")[0]["deleted"],
                    len(gone),
                )
                self.assertEqual(keys(), left)
        broken("other", user="ann")
        group = DeadLetter.objects.get(task__key="other").group
        run("pq_queue", "purge", *old, "--group", group, "--user", "ann", "--yes")
        self.assertEqual(keys(), ["broken", "done", "gone", "live"])

    def test_a_queue_may_be_named_as_of_tasks(self):
        submit("gone", queue="mail", now=None).cancel_request()
        words = ("pq_queue", "purge", "--queue", "mail", "--older-than", "0s", "--yes")

        self.assertEqual(run_json(*words), [{"queue": "mail", "deleted": 1}])
        self.assertEqual(keys(), ["broken", "done", "gone", "live"])

    @override_settings(PERFECTQUEUE={"RETENTION": {"count": 3, "*": None}})
    def test_a_count_is_of_a_queue(self):
        """Tasks of other queues, and those that have yet to end, push none out."""
        submit_many(20, queue="reports")
        submit_many(20)
        run("pq_queue", "purge", "--yes")
        self.assertEqual(Task.objects.filter(outcome="finished").count(), 1)

    @override_settings(PERFECTQUEUE={"RETENTION": {"count": 2}})
    def test_a_count_that_is_kept_is_reported_by_a_dry_run_too(self):
        reported = run_json("pq_queue", "purge", "--dry-run")[0]["would_delete"]

        self.assertEqual(run_json("pq_queue", "purge", "--yes"), [{"deleted": reported}])
        self.assertEqual(reported, 1)

    def test_a_bad_span(self):
        message = refused(self, "pq_queue", "purge", "--older-than", "yesterday", "--yes")

        self.assertIn("--older-than: must be a span such as 90s", message)

    def test_clearing_a_queue_takes_a_yes(self):
        submit("other", queue="reports")

        message = refused(self, "pq_queue", "clear", "default")
        self.assertIn("Add --yes to do it", message)
        self.assertEqual(
            run("pq_queue", "clear", "default", "--dry-run"),
            "4 tasks of queue 'default' would be deleted.\n",
        )
        self.assertEqual(
            run("pq_queue", "clear", "default", "--yes"),
            "4 tasks of queue 'default' are deleted.\n",
        )

        self.assertEqual(keys(), ["other"])
        self.assertEqual(len(Queue()), 0)

    def test_those_of_one_queue_alone_go(self):
        [reported] = run_json("pq_queue", "purge", "reports", "--older-than", "0s", "--yes")
        self.assertEqual(reported, {"queue": "reports", "deleted": 0})
        [reported] = run_json("pq_queue", "purge", "default", "--older-than", "0s", "--yes")
        self.assertEqual(reported, {"queue": "default", "deleted": 2})

    def test_what_can_not_be_purged(self):
        message = refused(self, "pq_queue", "purge", "--status", "waiting", "--yes")
        self.assertIn("Only tasks that have ended are purged, not 'waiting'", message)


class DeleteTests(TestCase):
    def setUp(self):
        finished("done")
        broken("broken")
        submit("live", now=None)

    def test_each_key_is_deleted(self):
        self.assertEqual(run("pq_task", "delete", "done"), "Task 'done' is deleted.\n")
        self.assertIn("ended ones are deleted", refused(self, "pq_task", "delete", "live"))
        self.assertEqual(keys(), ["broken", "live"])

    def test_filters_are_about_what_did_not_finish_unless_a_status_is_named(self):
        out = run("pq_task", "delete", "--all", "--dry-run")
        self.assertIn("1 task would be deleted.\n", out)
        self.assertEqual(run("pq_task", "delete", "--all", "--yes"), "1 task is deleted.\n")
        self.assertEqual(keys(), ["done", "live"])
        of_last_week = ("--status", "finished", "--until", "7d", "--yes")
        self.assertEqual(run_json("pq_task", "delete", *of_last_week), [{"deleted": 0}])
        self.assertEqual(
            run_json("pq_task", "delete", "--status", "finished", "--all", "--yes"),
            [{"deleted": 1}],
        )
        self.assertEqual(keys(), ["live"])
