"""Bulk work by commands: what they would do, the task that does it, and single tasks."""

import io
from datetime import timedelta

from django.test import TestCase
from django.utils.timezone import localtime, now

from django_perfectqueue.inspection.steering import actions_of, describe_action
from django_perfectqueue.management.flags import person
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain
from tests.bulk.test_bulk import failed
from tests.factories import register, submit

from .running import entered, refused, run, run_json


def story(task):
    row = task.metadata()
    return {(one.by, describe_action(one)) for one in actions_of(row, using="default")}


class BulkCommandTests(TestCase):
    def test_a_dry_run_prints_counts_and_a_sample_and_does_nothing(self):
        failed("a", user="ann", data={"v": 1, "password": "hunter2"})
        failed("b", user="bob", data={"v": 1})
        arguments = (
            "pq_task",
            "retry",
            "--all",
            "--to",
            "slow",
            "--patch",
            '{"v": 2}',
            "--dry-run",
        )

        out = run(*arguments)

        self.assertIn("2 tasks would be tried again.\nBy status: failed 2\n", out)
        self.assertIn("ann 1", out)
        self.assertRegex(out, r'\{"v": 1\} +\{"v": 2\}\n')
        self.assertNotIn("hunter2", out)
        [facts] = run_json(*arguments)
        self.assertEqual((facts["total"], facts["statuses"]), (2, {"failed": 2}))
        self.assertEqual(facts["sample"][1]["after"], '{"v": 2}')
        self.assertEqual(Queue().list().in_status("failed").count(), 2)

    def test_rates_and_patches_that_cannot_be_are_refused(self):
        failed("a", data={"v": 1})
        deep = '{"a":' * 3_000 + "1" + "}" * 3_000
        for rate in ("5/0", "5/0.0", "5/" + "9" * 400, "9" * 500 + "/s"):
            with self.subTest(rate=rate[:10]):
                self.assertIn("rate", refused(self, "pq_task", "retry", "--all", "--rate", rate))
        for patch in ("[" * 200_000, "9" * 5_000):
            with self.subTest(patch=patch[:10]):
                self.assertIn(
                    "must be JSON", refused(self, "pq_task", "retry", "--all", "--patch", patch)
                )
        text = refused(self, "pq_task", "retry", "--all", "--patch", deep, "--dry-run")
        # Python before 3.13 can't even read it.
        self.assertRegex(text, "nested too deeply|maximum recursion depth")
        self.assertEqual(Queue().list().count(), 1)

    def test_a_text_that_is_no_utf8_is_refused(self):
        for command in (("pq_task", "show", "\udcff"), ("pq_task", "retry", "--tag", "\udcff")):
            self.assertRegex(refused(self, *command), "UTF-8|utf-8")

    def test_with_a_rate_a_task_does_it(self):
        task = failed("a", user="ann")
        failed("b", user="bob")

        [asked] = run_json(
            "pq_task", "retry", "--user", "ann", "--rate", "50/min", "--run-in", "bulk", "--yes"
        )

        bulk = Queue("bulk")[asked["key"]]
        self.assertAlmostEqual(bulk.metadata().data["rate"], 50 / 60)
        self.assertEqual(story(bulk), {(person(), "bulk operation asked for: retry")})
        drain("bulk", ahead="5m")
        self.assertEqual(bulk.metadata().result, {"retried": 1})
        self.assertEqual(story(task), {(person(), "put back in line")})

    def test_each_filter_of_the_command_narrows_what_the_task_does(self):
        mine = {"type": "mail", "user": "ann", "tags": ["x"], "now": None}
        submit("a", **mine)
        for number, other in enumerate(({"type": "b"}, {"user": "b"}, {"tags": ["y"]})):
            submit(f"other-{number}", **{**mine, **other})

        choice = ["--type", "mail", "--user", "ann", "--tag", "x", "--status", "waiting"]
        run("pq_task", "cancel", *choice, "--rate", "100/s", "--run-in", "bulk", "--yes")

        [task] = Queue("bulk").list()
        self.assertEqual(task.data["total"], 1)
        drain("bulk")
        self.assertEqual(Queue().list().in_status("cancelled").get().key, "a")

    def test_times_choose_by_the_end_or_else_by_the_creation(self):
        failed("early"), failed("late")
        early = Task._base_manager.filter(key="early")
        early.update(ended_at=now() - timedelta(hours=3))
        submit("old", now=now() - timedelta(hours=3))
        submit("new", now=None)
        clock = f"{localtime() - timedelta(hours=1):%H:%M}"

        for verb, times, key in (
            ("retry", ["--since", "2h"], "late"),
            ("retry", ["--until", "2h"], "early"),
            ("retry", ["--since", clock], "late"),
            ("cancel", ["--since", "1d", "--until", clock], "old"),
        ):
            with self.subTest(verb, times=times):
                [found] = run_json("pq_task", verb, *times, "--dry-run")
                self.assertEqual([one["key"] for one in found["sample"]], [key])
        listed = [one["key"] for one in run_json("pq_task", "list", "--since", clock)]
        self.assertEqual(sorted(listed), ["late", "new"])
        run("pq_task", "retry", "--since", "2h", "--rate", "100/s", "--run-in", "bulk", "--yes")
        drain("bulk")
        self.assertEqual(Queue().list().in_status("failed").get().key, "early")
        self.assertIn("A time is such as 2h", refused(self, "pq_task", "retry", "--since", "soon"))
        self.assertIn("A time is such as 2h", refused(self, "pq_task", "list", "--since", "25:00"))

    def test_cancel_move_and_edit_do_so_too(self):
        for verb, more, left in (
            ("edit", ["--patch", '{"n": 1}'], "waiting"),
            ("cancel", ["--rate", "100/s"], "cancelled"),
            ("move", ["--to", "slow", "--group", "cancelled"], "cancelled"),
        ):
            if verb == "edit":
                submit("a", type="mail", now=None)
            choice = [] if verb == "move" else ["--type", "mail"]
            out = run("pq_task", verb, *choice, *more, "--run-in", "bulk", "--yes")
            self.assertRegex(out, "Task 'bulk-.*' of queue 'bulk' does it: 1 task,")
            drain("bulk")
            queue = Queue("slow" if verb == "move" else "default")
            self.assertEqual(queue["a"].metadata().status, left)
        self.assertEqual(Queue("slow")["a"].metadata().data, {"n": 1})

    def test_a_status_is_a_filter(self):
        submit("a", now=None), submit("later", now=None, run_at=60)

        [found] = run_json("pq_task", "move", "--status", "scheduled", "--to", "slow", "--dry-run")
        self.assertEqual([one["key"] for one in found["sample"]], ["later"])
        self.assertEqual(
            run("pq_task", "cancel", "--status", "waiting", "--yes"), "1 task is cancelled.\n"
        )

    def test_a_queue_that_no_worker_serves_is_named_where_tasks_go_there(self):
        def warned(*arguments):
            err = io.StringIO()
            entered("pq_task", *arguments, stdout=io.StringIO(), stderr=err)
            return err.getvalue()

        failed("a"), failed("b")
        warning = "No worker serves queue 'slow', and no setting names it: start one by pq_worker"
        self.assertIn(warning, warned("move", "a", "--to", "slow"))
        self.assertIn(warning, warned("retry", "b", "--to", "slow"))
        many = ("edit", "--status", "failed", "--queue", "slow", "--patch", "1", "--yes")
        self.assertIn(warning, warned(*many))
        register("slow", now=None)
        self.assertEqual(warned("move", "a", "--queue", "slow", "--to", "default"), "")

    def test_what_is_wrong_is_said_and_nothing_is_stored(self):
        for arguments, reported in (
            (("pq_task", "retry", "--all", "--rate", "0/s"), "must be so many per time"),
            (("pq_task", "retry", "--all", "--patch", "{"), "must be JSON"),
            (("pq_task", "retry", "--all", "--patch", "null"), "null changes nothing"),
            (("pq_task", "edit", "--all", "--patch", "null"), "null changes nothing"),
            (("pq_task", "retry", "a", "--rate", "5/s"), "--rate needs a filter"),
            (("pq_task", "move", "--all", "--to", "x" * 200), "1 to 100 characters"),
            (("pq_task", "move", "a"), "--to"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, *arguments))
        self.assertFalse(Queue().list().exists())


class SingleTests(TestCase):
    def test_each_key_is_moved_edited_or_copied_and_says_who_did_it(self):
        failed("a", data={"n": 1})
        self.assertEqual(
            run("pq_task", "edit", "a", "--patch", '{"n": 2}'),
            "The data of task 'a' are changed.\n",
        )
        self.assertEqual(
            run("pq_task", "move", "a", "--to", "slow"), "Task 'a' is in queue 'slow'.\n"
        )
        [copied] = run_json("pq_task", "copy", "a", "--queue", "slow")

        moved, copy = Queue("slow")["a"], Queue("slow")[copied["done"]]
        self.assertEqual((moved.metadata().data, copy.metadata().data), ({"n": 2}, {"n": 2}))
        self.assertEqual(
            story(moved),
            {
                (person(), "data edited"),
                (person(), "moved to another queue: default → slow"),
                (person(), "copied"),
            },
        )
        self.assertEqual(story(copy), {(person(), "submitted as a copy")})

    def test_retry_elsewhere_with_other_data(self):
        failed("a")
        run("pq_task", "retry", "a", "--to", "slow", "--patch", '{"n": 2}')

        task = Queue("slow")["a"]
        self.assertEqual((task.metadata().status, task.metadata().data), ("waiting", {"n": 2}))
        self.assertIn((person(), "put back in line"), story(task))

    def test_a_key_that_is_taken_there_is_an_error(self):
        submit("a")
        submit("a", queue="slow")
        self.assertIn("already has a task", refused(self, "pq_task", "move", "a", "--to", "slow"))
