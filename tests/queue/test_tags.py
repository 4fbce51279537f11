"""Tags: names by which tasks are found together."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from unittest import skipUnless

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue import compat
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    InvalidTaskError,
    NotFoundError,
)
from django_perfectqueue.models import Tag, Task
from django_perfectqueue.payload.inputs import MOST_TAGS
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import submitted

from ..admin.staff import LIST, AdminTestCase
from ..factories import elsewhere
from ..management.running import refused, run, run_json

TWENTY = [f"t{number}" for number in range(MOST_TAGS)]


def submit(key, *tags, **options):
    return Queue().submit(key, "report", tags=tags, **options)


def tagged(*tags):
    return sorted(Queue().list().tagged(*tags).values_list("key", flat=True))


def tagged_any(*tags):
    return sorted(Queue().list().tagged_any(*tags).values_list("key", flat=True))


class TagTests(TestCase):
    def test_tasks_are_found_by_all_of_some_tags_or_by_any(self):
        submit("a", "red", "round"), submit("b", "red"), submit("c", "round"), submit("d")

        self.assertEqual(tagged("red"), ["a", "b"])
        self.assertEqual(tagged("red", "round"), ["a"])
        self.assertEqual(tagged_any("red", "round"), ["a", "b", "c"])
        self.assertEqual(tagged_any(), [])
        self.assertEqual(Task.objects.tagged("red").tagged_any("round", "blue").get().key, "a")
        self.assertEqual(Queue()["a"].tags, ["red", "round"])

    def test_a_tag_counts_once_and_is_exact(self):
        submit("a", "red", "red", "Red", "réd", "red ")
        self.assertEqual(Queue()["a"].tags, ["red", "Red", "réd", "red "])
        self.assertEqual(Queue().list().tagged("red").count(), 1)
        self.assertEqual(Queue().list().tagged_any("red", "Red").count(), 1)

    def test_bad_tags_are_refused_and_nothing_is_stored(self):
        for wrong in ([""], ["x" * 65], ["a\0"], ["\ud800"], [None], [7], "red", 7, [*TWENTY, "u"]):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                Queue().submit("a", "report", tags=wrong)
        self.assertFalse(Queue()["a"].exists())
        submit("a", *TWENTY, "t0")
        submit("b", "ä" * 64)
        self.assertEqual(tagged("ä" * 64), ["b"])

    def test_many_are_tagged_with_some_without(self):
        tasks = [
            {"key": f"k{n}", "type": "report", "tags": [*TWENTY[: n % 21]]} for n in range(100)
        ]
        Queue().submit_many(tasks)
        self.assertEqual(Queue().list().tagged("t0").count(), 95)
        self.assertEqual(Queue()["k41"].tags, TWENTY)

    def test_a_key_that_is_taken_keeps_its_own_tags(self):
        submit("a", "old")
        with self.assertRaises(AlreadyExistsError):
            submit("a", "new")
        submit("a", "new", on_conflict="ignore")
        self.assertEqual(Queue()["a"].tags, ["old"])
        submit("a", "new", on_conflict="replace")
        self.assertEqual((Queue()["a"].tags, Tag.objects.count()), (["new"], 1))
        submit("a", on_conflict="replace")
        self.assertEqual(Tag.objects.count(), 0)

    def test_they_go_with_their_task(self):
        submit("a", "red")
        Queue().poll().finish()
        self.assertEqual(tagged("red"), ["a"])
        Queue().purge(0)
        self.assertEqual(Tag.objects.count(), 0)
        submit("a", "red")
        Queue().clear()
        self.assertEqual(Tag.objects.count(), 0)

    def test_a_task_gets_tags_later_and_loses_them(self):
        handle = submit("a", "red")
        for _twice in range(2):
            handle.tag("blue", "red")
        self.assertEqual(handle.tags, ["red", "blue"])
        for _twice in range(2):
            handle.untag("red", "green")
        self.assertEqual(handle.tags, ["blue"])
        with self.assertRaisesMessage(InvalidTaskError, "at most 20 tags"):
            handle.tag(*TWENTY)
        with self.assertRaises(NotFoundError):
            Queue()["nope"].tag("red")

    def test_chains_batches_and_callbacks_have_them(self):
        Queue().chain([{"key": "a", "type": "x", "tags": ["red"]}, {"key": "b", "type": "x"}])
        with Queue().batch("nightly") as batch:
            batch.submit("c", "x", tags=["red"])
            batch.then("d", "x", tags=["red", "blue"])
        self.assertEqual(tagged("red"), ["a", "c", "d"])

    def test_those_without_any_read_and_write_nothing_for_them(self):
        statements = []

        def note(execute, sql, *rest):
            statements.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            submit("a")
            Queue().submit_many([{"key": "b", "type": "report"}, {"key": "c", "type": "report"}])
            Queue().poll().finish()
        self.assertEqual([sql for sql in statements if "perfectqueue_tag" in sql], [])

    def test_tests_see_them(self):
        submit("a", "red")
        [task] = submitted()
        self.assertEqual(task.task.tags, ["red"])

    @skipUnless(compat.HAS_TASKS, "It is about Django's tasks.")
    def test_djangos_tasks_have_them(self):
        from ..backend import jobs

        result = jobs.add.using(tags=["red"]).enqueue(1, 2)
        self.assertEqual(Queue()[result.id].tags, ["red"])
        jobs.add.using(tags=["blue"]).enqueue_many([((1, 2), {}), ((3, 4), {})])
        self.assertEqual(Task.objects.tagged("blue").count(), 2)
        with self.assertRaises(compat.InvalidTask):
            jobs.add.using(tags="red").enqueue(1, 2)
        with self.assertRaises(compat.InvalidTask):
            jobs.add.using(tags=["x" * 65]).enqueue(1, 2)


class TransactionTests(TransactionTestCase):
    def test_a_transaction_that_is_rolled_back_leaves_none(self):
        with self.assertRaises(KeyError), transaction.atomic():
            submit("a", "red")
            raise KeyError
        self.assertEqual(Tag.objects.count(), 0)

    async def test_async_twins_take_them(self):
        await Queue().asubmit("a", "report", tags=["red"])
        await Queue()["a"].atag("blue")
        await Queue()["a"].auntag("red")
        self.assertEqual(await Tag.objects.values_list("tag", flat=True).aget(), "blue")

    def test_who_tags_at_the_same_moment_adds_to_one_another(self):
        submit("a")

        def add(number):
            elsewhere(lambda: Queue()["a"].tag("both", f"t{number}"))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(add, range(8)))
        self.assertEqual(sorted(Queue()["a"].tags), sorted(["both", *TWENTY[:8]]))


class DoorTests(AdminTestCase):
    def test_commands_take_and_show_them(self):
        run("pq_submit", "a", "report", "{}", "--tag", "red", "--tag", "round")
        run("pq_submit", "b", "report", "{}", "--tag", "red")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(json.dumps({"key": "c", "type": "report", "tags": ["red"]}))
            file.flush()
            run("pq_submit", "--file", file.name)
        self.assertEqual(
            [row["key"] for row in run_json("pq_task", "list", "--tag", "red")], [*"cba"]
        )
        found = run_json("pq_task", "list", "--tag", "red", "--tag", "round", "--status", "waiting")
        self.assertEqual([row["key"] for row in found], ["a"])
        self.assertIn("has no such tasks", run("pq_task", "list", "--tag", "blue"))
        self.assertRegex(run("pq_task", "show", "a"), r"tags +red, round\n")
        self.assertEqual(run_json("pq_task", "show", "a")[0]["tags"], ["red", "round"])
        self.assertIn("1 to 64", refused(self, "pq_submit", "d", "report", "{}", "--tag", "x" * 65))

    def test_all_with_a_tag_are_cancelled_and_put_back(self):
        submit("a", "red", user="ann"), submit("b", "red"), submit("c", user="ann")
        terms = ("--tag", "red", "--user", "ann")
        reported = run_json("pq_task", "cancel", *terms, "--yes")
        self.assertEqual(reported, [{"cancelled": 1, "requested": 0}])
        run("pq_task", "cancel", "--all", "--yes")
        reported = run_json("pq_task", "retry", "--tag", "red", "--status", "cancelled", "--yes")
        self.assertEqual(reported, [{"retried": 2}])
        self.assertEqual(Queue()["c"].metadata().status, "cancelled")
        self.assertIn(
            "Give keys, or", refused(self, "pq_task", "retry", "a", "--tag", "red", "--yes")
        )

    def test_the_admin_lists_by_tag_and_shows_them(self):
        submit("a", "<b>", "red"), submit("b", "red"), submit("c")
        self.assertEqual(self.keys(tag="red"), ["b", "a"])
        self.assertEqual(self.keys(tag="red", status="waiting", queue="default"), ["b", "a"])
        self.assertEqual(self.keys(tag="blue"), [])
        self.assertLess(self.client.get(LIST, {"tag": "a\0"}).status_code, 500)
        task = Queue()["a"].metadata()
        page = self.client.get(f"/admin/perfectqueue/task/{task.pk}/change/")
        self.assertContains(page, f'<a href="{LIST}?tag=%3Cb%3E">&lt;b&gt;</a>', html=True)
