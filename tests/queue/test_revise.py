"""Move a task to another queue, run a copy, edit its data."""

import threading

from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
)
from django_perfectqueue.inspection.steering import actions_of, describe_action
from django_perfectqueue.models import Limit, Ticket
from django_perfectqueue.payload.inputs import merged
from django_perfectqueue.queue import Queue
from tests.factories import acquire, failed, finish, running, status, submit


def story(task):
    row = task.metadata()
    return [(change.by, describe_action(change)) for change in actions_of(row, using="default")]


class MoveTests(TestCase):
    def test_a_waiting_task_is_run_by_the_workers_of_the_other_queue(self):
        task = submit("a", user="ann", now=None, data={"n": 1})

        moved = task.move("other", by="bob")

        self.assertFalse(task.exists())
        self.assertEqual(acquire(now=None), [])
        [held] = acquire(now=None, queues=["other"])
        self.assertEqual((held.key, held.user, held.task_id), ("a", "ann", moved.id))
        self.assertEqual(story(moved), [("bob", "moved to another queue: default → other")])

    def test_a_scheduled_one_keeps_its_time(self):
        moved = submit("a", run_at="1h", now=None).move("other")

        self.assertEqual(moved.metadata().status, "scheduled")
        self.assertEqual(acquire(now=None, queues=["other"]), [])

    def test_a_failed_one_keeps_its_error_and_is_retried_there(self):
        moved = failed("a").move("other")
        self.assertEqual(moved.metadata().dead_letter.status, "failed")

        moved.retry()
        [held] = acquire(now=None, queues=["other"])
        self.assertEqual(held.key, "a")

    def test_a_blocked_one_waits_for_its_parent_still(self):
        parent = submit("parent", now=None)
        moved = submit("child", after=[parent], now=None).move("other")
        self.assertEqual(status(moved), "blocked")

        [lease] = acquire(now=None)
        finish(lease, now=None)
        [held] = acquire(now=None, queues=["other"])
        self.assertEqual(held.key, "child")

    def test_it_keeps_to_the_limits_of_the_other_queue(self):
        Limit.objects.create(scope="queue", name="other", max_running=1)
        submit("first", queue="other", now=None)
        self.assertEqual(len(acquire(now=None, queues=["other"])), 1)

        submit("a", now=None).move("other")

        self.assertEqual(acquire(5, now=None, queues=["other"]), [])

    def test_a_key_that_is_taken_there_is_an_error_and_changes_nothing(self):
        task = submit("a")
        submit("a", queue="other")

        with self.assertRaisesMessage(AlreadyExistsError, "Queue 'other' already has a task"):
            task.move("other")
        self.assertEqual(story(task), [])
        self.assertEqual(status(task), "waiting")

    def test_what_can_not_be_moved(self):
        held, lease = running("held")
        with self.assertRaisesMessage(NotSupportedError, "is running"):
            held.move("other")
        finish(lease)
        with self.assertRaises(AlreadyFinishedError):
            held.move("other")
        with self.assertRaises(NotFoundError):
            Queue()["none"].move("other")
        with self.assertRaisesMessage(NotSupportedError, "is in queue 'default' already"):
            submit("a").move("default")
        with self.assertRaises(InvalidTaskError):
            submit("b").move("")

    def test_what_people_did_before_stands_in_its_story_still(self):
        moved = submit("a", now=None).move("other", by="ann").move("third", by="bob")

        self.assertEqual([by for by, _what in story(moved)], ["bob", "ann"])


class EditTests(TestCase):
    def test_the_handler_gets_the_patched_data(self):
        task = submit("a", data={"keep": 1, "drop": 2, "in": {"x": 1}}, now=None)

        task.edit_data({"drop": None, "in": {"y": 2}}, by="ann")

        [held] = acquire(now=None)
        self.assertEqual(held.payload, '{"keep":1,"in":{"x":1,"y":2}}')
        self.assertEqual(story(task), [("ann", "data edited")])

    def test_one_that_runs_or_has_finished_is_refused(self):
        task, lease = running("a", data={"n": 1})
        with self.assertRaises(NotSupportedError):
            task.edit_data({"n": 2})
        self.assertEqual(task.metadata().data, {"n": 1})
        finish(lease)
        with self.assertRaises(AlreadyFinishedError):
            task.edit_data({"n": 2})

    def test_what_can_not_be_stored_changes_nothing(self):
        task = submit("a", data={"n": 1})

        with self.assertRaises(InvalidTaskError):
            task.edit_data({"n": object()})
        self.assertEqual((task.metadata().data, story(task)), ({"n": 1}, []))

    def test_it_can_be_done_from_a_coroutine(self):
        task = failed("a")
        async_to_sync(task.aedit_data)({"n": 2}, by="ann")
        self.assertEqual(task.metadata().data, {"n": 2})
        moved = async_to_sync(task.amove)("other")
        self.assertEqual(async_to_sync(moved.acopy)("b").metadata().data, {"n": 2})

    def test_it_merges_as_rfc_7386_says(self):
        for value, patch, result in (
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c"], ["c"]),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ):
            with self.subTest(value=value, patch=patch):
                self.assertEqual(merged(value, patch), result)


class CopyTests(TestCase):
    def test_it_is_submitted_anew_with_the_same_options(self):
        options = {"user": "ann", "priority": 3, "limits": ["api"], "tags": ["x"]}
        task, lease = running("a", data={"n": 1}, **options, now=None)
        finish(lease, now=None)

        copy = task.copy("b", by="bob")

        row = copy.metadata()
        self.assertEqual((row.type, row.data, row.status), ("report", {"n": 1}, "waiting"))
        self.assertEqual((row.user, row.priority, row.limits), ("ann", 3, "api"))
        self.assertEqual(copy.tags, ["x"])
        self.assertEqual(story(task), [("bob", "copied")])
        self.assertEqual(story(copy), [("bob", "submitted as a copy")])
        self.assertEqual([held.key for held in acquire(now=None)], ["b"])

    def test_a_key_that_is_taken_is_an_error(self):
        task = submit("a")
        with self.assertRaises(AlreadyExistsError):
            task.copy("a")
        self.assertEqual(story(task), [])
        self.assertNotEqual(task.copy().key, "a")


class TogetherTests(TransactionTestCase):
    def test_in_a_transaction_of_the_callers_it_is_done_after_the_commit(self):
        task = submit("a", now=None)
        with transaction.atomic():
            moved = task.move("other", by="ann")
            self.assertTrue(task.exists())
        self.assertEqual(story(moved)[0][0], "ann")

    def test_of_two_who_move_tasks_of_one_key_one_succeeds(self):
        tasks = [submit("a", queue=queue, now=None) for queue in ("one", "two")]
        start, errors = threading.Barrier(2), []

        def move(task):
            from django.db import connection

            start.wait()
            try:
                task.move("other")
            except AlreadyExistsError as error:
                errors.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=move, args=[task]) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        self.assertEqual(len(errors), 1)
        self.assertEqual(Ticket.objects.count(), 2)
        self.assertTrue(Queue("other")["a"].exists())

    def test_a_task_is_moved_and_recorded_or_neither(self):
        from unittest import mock

        from django_perfectqueue.store.tasks import revise

        task = submit("a", now=None)
        with (
            mock.patch.object(revise, "record", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            task.move("other", by="ann")
        self.assertEqual((status(task), story(task)), ("waiting", []))
