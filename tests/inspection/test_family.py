"""What is read of a task's parents and children, and of a batch."""

from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.health.checks import check_blocked
from django_perfectqueue.inspection.family import (
    callbacks,
    counts,
    exact,
    family,
    members,
    state_of,
    summed,
)
from django_perfectqueue.models import Batch
from django_perfectqueue.queue import Queue

from ..factories import submit


def chain(*keys):
    return Queue().chain([{"key": key, "type": "report"} for key in keys])


def keys(found):
    return [(relative.key, relative.status, link.mode, link.state) for relative, link in found]


def end(key, verb):
    """End the task that is next, and act on it as happens after a commit."""
    task = Queue().poll()
    assert task.key == key, task
    getattr(task, verb)()
    store.records.follow(using="default")


class FamilyTests(TestCase):
    def family(self, key, **options):
        return family(Queue()[key].id, using="default", **options)

    def test_a_task_alone(self):
        submit("a", now=None)
        with CaptureQueriesContext(connection) as captured:
            found = self.family("a")
        self.assertEqual((found.relatives, found.links, found.more), ({}, [], False))
        # One finds the id, one looks up and down.
        self.assertEqual(len(captured), 2)

    def test_all_that_are_linked_to_it_are_found_up_and_down(self):
        chain("a", "b", "c", "d")
        submit("e", now=None, after=["b"], if_failed="run")
        found = self.family("c")
        self.assertEqual({one.key for one in found.relatives.values()}, {"b", "c", "d"})
        self.assertEqual(len(found.links), 2)
        self.assertEqual(keys(found.parents), [("b", "blocked", "wait", "awaited")])
        self.assertEqual(keys(found.children), [("d", "blocked", "wait", "awaited")])
        self.assertEqual(
            keys(self.family("b").children),
            [("c", "blocked", "wait", "awaited"), ("e", "blocked", "run", "awaited")],
        )

    def test_what_failed_is_first_among_the_parents(self):
        for key in ("a", "b", "c"):
            submit(key, now=None)
        submit("d", now=None, after=["a", "b", "c"])
        end("a", "finish")
        end("b", "fail")
        states = [("b", "failed"), ("c", "awaited"), ("a", "met")]
        found = self.family("d")
        self.assertEqual([(one.key, link.state) for one, link in found.parents], states)

    def test_it_is_bounded(self):
        submit("a", now=None)
        for number in range(5):
            submit(f"c{number}", now=None, after=["a"])
        self.assertEqual(len(self.family("a", most=5).children), 5)
        self.assertFalse(self.family("a", most=5).more)
        found = self.family("a", most=3)
        self.assertEqual((len(found.children), found.more), (3, True))

    def test_a_callback_has_its_batch_as_parent(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("mail", "report", when="finished")
        self.assertEqual(
            keys(self.family("mail").parents), [("nightly", "running", "finished", "awaited")]
        )
        found = callbacks(batch.id, using="default")
        self.assertEqual(keys(found), [("mail", "blocked", "finished", "awaited")])
        end("a", "finish")
        self.assertEqual(
            keys(self.family("mail").parents), [("nightly", "finished", "finished", "met")]
        )

    def test_members_are_counted_with_those_of_inner_batches(self):
        with Queue().batch("outer") as outer:
            outer.submit("a", "report")
            with outer.batch("inner") as inner:
                inner.submit("b", "report")
        end("a", "fail")
        ids = store.dependencies.batches_within(outer.id, using="default")
        self.assertEqual(ids, [outer.id, inner.id])
        self.assertEqual(counts(members(ids, using="default")), {"waiting": 1, "failed": 1})
        self.assertEqual(counts(members([inner.id], using="default")), {"waiting": 1})

    def test_counts_are_exact_before_they_are_folded(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many([{"key": key, "type": "report"} for key in "abc"])
        end("a", "fail")
        end("b", "finish")
        [row] = exact(summed(Batch.objects.all()))
        self.assertEqual((row.total, row.finished, row.dead, state_of(row)), (3, 1, 1, "running"))
        end("c", "finish")
        [row] = exact(summed(Batch.objects.all()))
        self.assertEqual((row.total, row.finished, row.dead, state_of(row)), (3, 2, 1, "failed"))
        batch.retry()
        [row] = exact(summed(Batch.objects.all()))
        self.assertEqual((row.finished, row.dead, state_of(row)), (2, 0, "running"))

    def test_health_counts_what_is_held_up(self):
        self.assertEqual(check_blocked("default").known["count"], 0)
        chain("a", "b")
        submit("c", now=None, after=["a"])
        end("a", "fail")
        finding = check_blocked("default")
        self.assertEqual((finding.ok, finding.known["count"]), (True, 2))
        self.assertEqual(finding.sentence, "2 tasks wait for tasks that have failed.")
        self.assertIn("waits for 'a': retry what has failed", finding.detail)
        Queue()["a"].retry()
        self.assertEqual(check_blocked("default").known["count"], 0)

    def test_health_counts_the_callbacks_that_failed_batches_hold_up(self):
        with Queue().batch("outer") as outer:
            outer.then("outer-mail", "report", when="finished")
            with outer.batch("inner") as inner:
                inner.submit("a", "report")
                inner.then("mail", "report", when="finished")
        end("a", "fail")
        store.records.follow(using="default")
        finding = check_blocked("default")
        self.assertEqual((finding.ok, finding.known["count"]), (True, 2))
        child, batch = finding.keys["child"], finding.keys["batch"]
        self.assertIn((child, batch), [("mail", "inner"), ("outer-mail", "outer")])
        self.assertIsNone(finding.keys["parent"])
        self.assertIn(f"'{child}' waits for batch '{batch}', which ended with", finding.detail)
        Queue()["a"].retry()
        end("a", "finish")
        store.records.follow(using="default")
        self.assertEqual(check_blocked("default").known["count"], 0)
