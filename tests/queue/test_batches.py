"""Batches, through the door that programs use."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest import mock

from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext, tag

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    BatchEndedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    WaitInTransactionError,
    WaitTimeoutError,
)
from django_perfectqueue.inspection.family import held_up
from django_perfectqueue.models import Batch, BatchDelta, BatchMember, Task, TaskQuerySet, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.dependencies import batches as batch_counts
from django_perfectqueue.store.dependencies import fold
from django_perfectqueue.store.records import dependency_events
from django_perfectqueue.store.tasks import revise
from django_perfectqueue.store.upkeep import deletion

from ..factories import after_statement, completion, elsewhere
from ..worker.statements import in_packet


def status(key):
    return Queue()[key].metadata().status


def take(key):
    task = Queue().poll()
    assert task is not None, f"Nothing is due, not even '{key}'."
    assert task.key == key, f"'{task.key}' is due before '{key}'."
    return task


def state(batch):
    found = batch.progress()
    return (found.total, found.finished, found.dead, found.ended)


def members(*keys, **options):
    return [{"key": key, "type": "report", **options} for key in keys]


class BatchTests(TransactionTestCase):
    def tearDown(self):
        self.assertEqual(list(BatchDelta.objects.all()), [])

    def test_its_callback_runs_once_all_its_tasks_have_ended(self):
        with Queue().batch("nightly", user="ann") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
        self.assertEqual(state(batch), (2, 0, 0, False))
        self.assertEqual(Queue()["a"].metadata().user, "ann")
        take("a").finish(3)
        self.assertEqual((state(batch), status("mail")), ((2, 1, 0, False), "blocked"))
        take("b").fail()
        self.assertEqual((state(batch), status("mail")), ((2, 1, 1, True), "waiting"))

        task = take("mail")
        self.assertEqual((task.user, task.closes.name, task.batch), ("ann", "nightly", None))
        self.assertEqual(list(task.closes.results()), [("a", 3)])

    def test_a_callback_for_finished_waits_until_dead_tasks_were_put_back(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("all", "report", when="finished")
            batch.then("some", "report", when="failed")
        take("a").finish()
        take("b").fail()
        self.assertEqual((status("all"), status("some")), ("blocked", "waiting"))
        take("some").finish()
        self.assertEqual(batch.retry(), 1)
        self.assertEqual(state(batch), (2, 1, 0, False))
        take("b").finish()

        self.assertEqual(state(batch), (2, 2, 0, True))
        take("all").finish()

    def test_a_callback_for_failed_is_cancelled_where_all_have_finished(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("sorry", "report", when="failed")
        take("a").finish()

        self.assertEqual(status("sorry"), "cancelled")

    def test_an_empty_batch_ends(self):
        with Queue().batch("nightly") as batch:
            batch.then("mail", "report")

        self.assertEqual(state(batch), (0, 0, 0, True))
        take("mail")

    def test_a_callback_that_is_given_late_runs_at_once(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
        take("a").finish()
        batch.then("mail", "report")

        take("mail")

    def test_a_block_that_is_rolled_back_leaves_nothing(self):
        with self.assertRaises(ZeroDivisionError), Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("mail", "report")
            raise ZeroDivisionError

        for model in (Batch, BatchMember, BatchDelta, Task):
            self.assertEqual(model.objects.count(), 0)

    def test_a_task_adds_to_its_own_batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("mail", "report")
        task = take("a")
        task.batch.submit("b", "report")
        task.finish()
        self.assertEqual((state(batch), status("mail")), ((2, 1, 0, False), "blocked"))
        take("b").finish()

        take("mail")

    def test_a_task_that_is_put_back_adds_to_its_batch(self):
        with Queue().batch("outer") as outer, outer.batch("inner") as inner:
            inner.submit("a", "report")
            for when in ("done", "finished", "failed"):
                inner.then(when, "callback", when=when, priority=-1)
        take("a").fail()
        self.assertEqual((state(inner), state(outer)), ((1, 0, 1, True), (1, 0, 1, True)))
        for put_back in (inner.retry, Queue()["a"].retry):
            put_back()
            self.assertEqual((state(inner), state(outer)), ((1, 0, 0, False), (1, 0, 0, False)))
            task = take("a")
            if put_back == inner.retry:
                task.fail()
        task.batch.submit("b", "report")
        inner.then("late", "callback", priority=-1)
        task.finish()
        self.assertEqual((state(inner), status("finished")), ((2, 1, 0, False), "blocked"))
        take("b").finish()

        self.assertEqual((state(inner), state(outer)), ((2, 2, 0, True), (1, 1, 0, True)))
        with self.assertRaises(BatchEndedError):
            inner.submit("c", "report")
        for key in ("done", "finished", "failed", "late"):
            take(key).finish()
        self.assertIsNone(Queue().poll())

    def test_a_task_that_runs_before_its_retry_is_counted_adds_to_its_batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
        take("a").fail()
        with mock.patch.object(dependency_events, "followers", []):
            Queue()["a"].retry()
            task = take("a")
            task.batch.submit("b", "report")
            self.assertEqual(state(batch), (2, 0, 0, False))
        task.finish()
        take("b").finish()
        self.assertEqual(state(batch), (2, 2, 0, True))

    def test_a_cancelled_batch_that_is_put_back_takes_tasks_again(self):
        with Queue().batch("outer") as outer, outer.batch("inner") as inner:
            inner.submit_many(members("a", "b"))
        self.assertEqual(outer.cancel_request(), (2, 0))
        with self.assertRaisesMessage(BatchEndedError, "has ended"):
            inner.submit("c", "report")
        self.assertEqual(outer.retry(), 2)
        inner.submit("c", "report")
        for task in Queue().acquire(3):
            task.finish()

        self.assertEqual((state(inner), state(outer)), ((3, 3, 0, True), (1, 1, 0, True)))

    def test_what_is_cancelled_after_the_commit_is_not_yet_cancelled(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
        with transaction.atomic():
            self.assertEqual(batch.cancel_request(), (0, 2))
            self.assertEqual(status("a"), "waiting")

        self.assertEqual(state(batch), (2, 0, 2, True))

    def test_nothing_is_added_to_a_batch_that_has_ended_or_was_cancelled(self):
        with Queue().batch("one") as one:
            one.submit("a", "report")
        with Queue().batch("two") as two:
            two.submit("b", "report")
        take("a").finish()
        two.cancel_request()
        for batch, words in ((one, "'one' has ended"), (two, "'two' has ended")):
            with self.assertRaisesMessage(BatchEndedError, words):
                batch.submit("c", "report")
            with self.assertRaises(BatchEndedError), batch.batch("inner"):
                pass
        self.assertFalse(Queue()["c"].exists())

    def test_a_batch_in_a_batch_counts_as_one_task(self):
        with Queue().batch("outer", user="ann") as outer:
            outer.submit("a", "report")
            with outer.batch("inner") as inner:
                inner.submit_many(members("b", "c"))
                inner.then("half", "report")
            outer.then("mail", "report", when="finished")
        self.assertEqual((state(outer), state(inner)), ((2, 0, 0, False), (2, 0, 0, False)))
        take("a").finish()
        take("b").finish()
        take("c").fail()
        self.assertEqual((state(outer), state(inner)), ((2, 1, 1, True), (2, 1, 1, True)))
        take("half").finish()
        self.assertEqual(status("mail"), "blocked")
        self.assertEqual(outer.retry(), 1)
        self.assertEqual((state(outer), state(inner)), ((2, 1, 0, False), (2, 1, 0, False)))
        take("c").finish()

        self.assertEqual(state(outer), (2, 2, 0, True))
        take("mail")

    def test_no_task_for_which_one_of_a_batch_waits_waits_for_its_end(self):
        Queue().submit("x", "report")
        Queue().submit("y", "report", after=["x"])
        with Queue().batch("outer") as outer:
            mail = outer.then("mail", "report")
            with outer.batch("inner") as inner:
                inner.submit("a", "report", after=["y"])
        with self.assertRaisesMessage(InvalidTaskError, "would wait for one another"):
            Queue()["y"].wait_for([mail])
        take("x").finish()

        for key in ("y", "a", "mail"):
            take(key).finish()

    def test_no_task_of_a_batch_waits_for_its_end(self):
        with Queue().batch("outer") as outer:
            outer.submit("a", "report")
            after = [outer.then("mail", "report")]
            with outer.batch("inner") as inner:
                inner.submit("b", "report")
        Queue().submit("c", "report", after=after)
        for batch, parents in ((outer, after), (inner, after), (outer, [Queue()["c"]])):
            with self.assertRaisesMessage(InvalidTaskError, "would wait for a callback"):
                batch.submit("d", "report", after=parents)
        outer.submit("d", "report", after=[Queue()["b"]])
        with self.assertRaisesMessage(InvalidTaskError, "would wait for one another"):
            Queue()["d"].wait_for(after)

        for key in "abd":
            take(key).finish()
        take("mail").finish()
        take("c")

    def test_a_parent_that_fails_again_while_its_batch_is_put_back_blocks_no_child(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.submit("b", "report", after=[Queue()["a"]], if_failed="cancel")
        take("a").fail()
        self.assertEqual(state(batch), (2, 0, 2, True))
        steer, parent = store.steer, Queue()["a"].id

        def put_back_and_fail(verb, task_id, **options):
            steer(verb, task_id, **options)
            if task_id == parent:
                take("a").fail()

        with mock.patch.object(store, "steer", put_back_and_fail):
            self.assertEqual(batch.retry(), 2)

        self.assertEqual((status("a"), status("b")), ("failed", "cancelled"))
        self.assertEqual(state(batch), (2, 0, 2, True))

    def test_a_batch_is_cancelled_as_a_whole(self):
        with Queue().batch("outer") as outer:
            outer.submit("a", "report")
            with outer.batch("inner") as inner:
                inner.submit("b", "report")
            outer.then("mail", "report")
        running = take("a")
        self.assertEqual(outer.cancel_request(), (1, 1))
        self.assertEqual((status("b"), status("mail")), ("cancelled", "blocked"))
        running.cancel()

        self.assertEqual(state(outer), (2, 0, 2, True))
        take("mail")

    def test_its_end_can_be_waited_for(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
        with self.assertRaisesMessage(WaitTimeoutError, "1 of 1 tasks are open"):
            batch.wait(0.05)
        with transaction.atomic(), self.assertRaises(WaitInTransactionError):
            batch.wait(1)
        take("a").finish()

        self.assertEqual(Queue().batch_named("nightly").wait(1).finished, 1)

    def test_tasks_that_are_forgotten_are_no_longer_counted(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
        Queue()["mail"].move("elsewhere")
        Queue()["b"].move("elsewhere")
        self.assertEqual(Queue().clear(), 1)

        self.assertEqual(state(batch), (1, 0, 0, False))
        Queue("elsewhere").poll().finish()
        self.assertEqual((state(batch), Queue("elsewhere").poll().key), ((1, 1, 0, True), "mail"))

    def test_a_task_that_replaces_one_of_a_batch_takes_its_place(self):
        with Queue().batch("outer") as outer, outer.batch("nightly") as batch:
            batch.submit_many(members("a", "b", "c"))
            batch.then("mail", "report", when="finished", priority=-1)
        take("a").finish(1)
        take("b").fail()
        for key, counted in (("c", (3, 1, 1, False)), ("b", (3, 1, 0, False))):
            Queue().submit(key, "other", on_conflict="replace")
            self.assertEqual((state(batch), status("mail")), (counted, "blocked"))
        task = take("c")
        self.assertEqual((task.type, task.batch.name), ("other", "nightly"))
        task.finish()
        take("b").finish()
        self.assertEqual((state(batch), state(outer)), ((3, 3, 0, True), (1, 1, 0, True)))

        Queue().submit("a", "other", on_conflict="replace", tags=["again"])
        self.assertEqual((state(batch), state(outer)), ((3, 2, 0, False), (1, 0, 0, False)))
        take("a").finish(2)
        self.assertEqual((state(batch), state(outer)), ((3, 3, 0, True), (1, 1, 0, True)))
        self.assertEqual(dict(take("mail").closes.results()), {"a": 2, "b": None, "c": None})

    def test_a_task_of_a_batch_is_not_replaced_by_one_that_waits_for_its_end(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            mail = batch.then("mail", "report")
        with self.assertRaisesMessage(InvalidTaskError, "would wait for one another"):
            Queue().submit("a", "report", after=[mail], on_conflict="replace")

        take("a").finish()
        take("mail").finish()

    def test_a_task_is_kept_until_its_batch_and_the_callbacks_have_ended(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
            batch.then("sorry", "report", when="failed")
        take("a").finish(1)
        self.assertEqual(Queue().purge(older_than=0), 0)
        with self.assertRaisesMessage(NotSupportedError, "or for its batch"):
            store.upkeep.delete_ended(Queue()["a"].id, using="default")
        take("b").finish(2)
        self.assertEqual(status("sorry"), "cancelled")
        self.assertEqual(Queue().purge(older_than=0, status="finished"), 0)
        take("mail").fail()
        self.assertEqual(Queue().purge(older_than=0, status="finished"), 0)
        Queue()["mail"].retry()
        task = take("mail")
        self.assertEqual(dict(task.closes.results()), {"a": 1, "b": 2})
        task.finish()

        self.assertEqual(Queue().purge(older_than=0, status="finished"), 3)

    def test_results_are_all_or_an_error(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            for name, key in (("good", "c"), ("bad", "d")):
                with batch.batch(name) as inner:
                    inner.submit(key, "report")
        take("a").finish(1)
        take("b").finish(2)
        take("c").finish(3)
        self.assertEqual(list(batch.results()), [("a", 1), ("b", 2)])
        take("d").fail()
        self.assertEqual(list(batch.results()), [("a", 1), ("b", 2)])
        store.upkeep.delete_ended(Queue()["a"].id, using="default")

        self.assertEqual(state(batch), (4, 3, 1, True))
        with self.assertRaisesMessage(NotFoundError, "Of 2 results of batch 'nightly' 1 are gone"):
            next(batch.results())

    def test_a_task_whose_replacement_is_refused_is_still_counted(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
        task = take("a")
        with transaction.atomic(), self.assertRaises(NotSupportedError):
            Queue().submit("a", "other", on_conflict="replace")
        task.finish()

        self.assertEqual((state(batch), status("mail")), ((2, 1, 0, False), "blocked"))
        take("b").finish()
        self.assertEqual((state(batch), status("mail")), ((2, 2, 0, True), "waiting"))

    def test_a_batch_is_forgotten_after_its_tasks(self):
        with Queue().batch("outer") as outer, outer.batch("inner") as inner:
            inner.submit("a", "report")
        self.assertEqual(store.dependencies.forget_batches(0, using="default"), 0)
        take("a").finish()
        self.assertEqual(store.dependencies.forget_batches(0, using="default"), 0)
        store.upkeep.delete_ended(Queue()["a"].id, using="default")
        self.assertEqual(store.dependencies.forget_batches(3600, using="default"), 0)
        self.assertEqual(
            [store.dependencies.forget_batches(0, using="default") for _time in "12"], [1, 1]
        )
        with self.assertRaises(NotFoundError):
            outer.progress()

    def test_a_batch_is_kept_while_it_counts_in_one_that_has_tasks(self):
        with Queue().batch("outer") as outer:
            with outer.batch("inner") as inner:
                inner.submit("a", "report")
            outer.submit_many(members("b", "c"))
        take("a").finish()
        self.assertEqual(Queue().purge(0), 1)
        take("b").finish(2)
        self.assertEqual(list(outer.results()), [("b", 2)])
        take("c").finish(3)
        self.assertEqual(store.dependencies.forget_batches(0, using="default"), 0)
        self.assertEqual(list(outer.results()), [("b", 2), ("c", 3)])
        self.assertEqual(Queue().purge(0), 2)
        self.assertFalse(Batch.objects.exists())

    def test_a_name_is_free_once_what_it_named_is_gone(self):
        def begin():
            with Queue().batch("outer") as outer, outer.batch("inner") as inner:
                inner.submit("a", "report")
            with Queue().batch("empty") as empty:
                empty.then("mail", "report", when="failed")

        def purge():
            take("a").finish()
            Queue().purge(0, status="finished")
            Queue().purge(0, status="cancelled")

        for forget in (
            Queue().clear,
            lambda: call_command("pq_queue", "clear", "default", yes=True),
            purge,
        ):
            begin()
            with self.assertRaises(AlreadyExistsError):
                begin()
            forget()
            self.assertFalse(Batch.objects.exists())
        begin()
        with Queue("elsewhere").batch("empty"):
            Queue().clear()
        self.assertEqual(list(Batch.objects.values_list("queue", flat=True)), ["elsewhere"])

    def test_a_callback_does_not_wait_for_a_batch_that_is_gone(self):
        with Queue().batch("outer") as batch:
            batch.then("all", "report", when="finished")
            with batch.batch("inner") as inner:
                inner.submit("a", "report")
        take("a").fail()
        self.assertEqual(status("all"), "blocked")
        Queue().purge(0, status="failed")

        self.assertEqual(status("all"), "cancelled")
        self.assertIn("was deleted", Queue()["all"].metadata().dead_letter.message)
        with self.assertRaises(NotFoundError):
            batch.then("more", "report")
        self.assertFalse(Queue()["more"].exists())

    def test_wrong_names_and_words_are_refused(self):
        with self.assertRaises(NotFoundError):
            Queue().batch_named("nope")
        with self.assertRaises(InvalidTaskError), Queue().batch(""):
            pass
        with Queue().batch("nightly") as batch:
            for wrong in ({"when": "never"}, {"after": ["a"]}):
                with self.assertRaises(InvalidTaskError):
                    batch.then("mail", "report", **wrong)
        with self.assertRaises(AlreadyExistsError), Queue().batch("nightly"):
            pass

    def test_more_tasks_than_are_stored_at_once_are_all_counted(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members(*(str(number) for number in range(2_300))))
            batch.then("mail", "report")
        left = 2_300
        while left:
            self.assertEqual(status("mail"), "blocked")
            leases = [task.lease for task in Queue().acquire(500)]
            store.finish([store.Completion(one, None, 0, 0) for one in leases], using="default")
            left -= len(leases)

        self.assertEqual(state(batch), (2_300, 2_300, 0, True))
        take("mail")

    def test_while_others_are_open_ends_cost_two_statements_and_no_commit(self):
        def statements(count):
            completions = [completion(task.lease) for task in Queue().acquire(count)]
            with CaptureQueriesContext(connection) as found:
                store.finish(completions, using="default")
            sent = [one for query in found for one in in_packet(query["sql"])]
            return [one.split()[0] for one in sent]

        Queue().submit_many(members("x", "y"))
        alone = statements(2)
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b", "c"))
        self.assertEqual(Counter(statements(2)) - Counter(alone), Counter(INSERT=1, SELECT=1))
        self.assertEqual(state(batch), (3, 2, 0, False))
        take("c").finish()

    def test_counts_are_merged_and_none_is_lost(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members(*"abcde"))
            batch.then("mail", "report")
        with mock.patch.object(batch_counts, "MANY", 2):
            for number in range(4):
                self.assertEqual(state(batch), (5, number, 0, False))
                Queue().poll().finish()
                self.assertLess(BatchDelta.objects.count(), 2)
        Queue().poll().finish()
        self.assertEqual(state(batch), (5, 5, 0, True))
        take("mail")


@tag("thorough")
class DepthTests(TransactionTestCase):
    def test_no_batch_is_nested_too_deep(self):
        # MySQL and MariaDB follow 1,000 levels by default.
        depth = 1_100
        with Queue().batch("0") as outermost:
            mail = outermost.then("mail", "report", when="finished")
            with outermost.batch("1") as inner:
                inner.submit("1", "report")
        for first in range(2, depth, 100):
            with transaction.atomic():
                for number in range(first, min(depth, first + 100)):
                    with inner.batch(str(number)) as innermost:
                        if number % 100 == 99:
                            innermost.submit(str(number), "report")
                    inner = innermost
                inner.submit(f"last-{first}", "report")
        Queue().submit("x", "report")
        with CaptureQueriesContext(connection) as found:
            with self.assertRaisesMessage(InvalidTaskError, "would wait for a callback"):
                inner.submit("circle", "report", after=[mail])
            inner.submit("fits", "report", after=["x"])
            batches = store.dependencies.batches_within(outermost.id, using="default")
        self.assertEqual(len(batches), depth)
        self.assertLess(len(found), 60)
        count = BatchMember.objects.count()

        self.assertEqual(outermost.cancel_request(), (count, 0))
        self.assertEqual(state(outermost), (1, 0, 1, True))
        with CaptureQueriesContext(connection) as found:
            self.assertEqual(held_up(using="default"), (1, {"batch": "0", "child": "mail"}))
        self.assertLess(len(found), 6)
        self.assertEqual(outermost.retry(), count)
        self.assertEqual(state(outermost), (1, 0, 0, False))


@mock.patch.object(batch_counts, "MANY", 2)
class PutBackTests(TransactionTestCase):
    """Callbacks that are put back after their batch has ended."""

    def test_each_comes_to_its_end_and_is_not_blocked_for_ever(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a"))
            for when in ("done", "finished", "failed"):
                batch.then(when, "report", when=when)
        Queue()["done"].cancel_request()
        Queue()["finished"].cancel_request()
        take("a").finish()
        self.assertEqual(status("failed"), "cancelled")
        for when in ("done", "finished", "failed"):
            Queue()[when].retry()

        for task in Queue().acquire(5):
            task.finish()
        ends = {when: status(when) for when in ("done", "finished", "failed")}
        self.assertEqual(ends, {"done": "finished", "finished": "finished", "failed": "cancelled"})


class FirstFailureTests(TransactionTestCase):
    def batch(self, *keys):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members(*keys))
            batch.then("stop", "report", priority=9, when="first_failure")
        return batch

    def test_it_runs_once_at_the_first_death_while_the_others_go_on(self):
        batch = self.batch("a", "b", "c", "d")
        take("a").finish()
        self.assertEqual(status("stop"), "blocked")
        b = take("b")
        take("c").fail()
        stop = take("stop")
        b.fail()
        stop.finish()
        Queue()["c"].retry()
        take("d").finish()
        take("c").fail()

        self.assertEqual((state(batch), status("stop")), ((4, 2, 2, True), "finished"))

    def test_it_cancels_the_rest(self):
        batch = self.batch("a", "b", "c")
        running = take("a")
        take("b").fail()
        self.assertEqual(take("stop").closes.cancel_request(), (1, 1))
        running.cancel()
        self.assertEqual(state(batch), (3, 0, 3, True))

    def test_a_task_that_is_cancelled_counts_and_one_that_is_tried_again_does_not(self):
        self.batch("a", "b")
        take("a").retry(0)
        self.assertEqual(status("stop"), "blocked")
        Queue()["b"].cancel_request()
        take("stop")

    def test_it_is_cancelled_where_all_have_finished(self):
        self.batch("a")
        take("a").finish()
        self.assertEqual(status("stop"), "cancelled")
        Queue()["stop"].retry()
        self.assertEqual(status("stop"), "cancelled")

    def test_it_runs_at_once_where_one_has_died_before_it_is_given(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
        take("a").fail()
        batch.then("stop", "report", priority=9, when="first_failure")
        take("stop")

    def test_a_batch_in_it_has_died_when_it_has_ended(self):
        with Queue().batch("outer") as outer:
            outer.submit_many(members("a"))
            with outer.batch("inner") as inner:
                inner.submit_many(members("x", "y"))
            outer.then("stop", "report", priority=9, when="first_failure")
        take("a").finish()
        take("x").fail()
        self.assertEqual(status("stop"), "blocked")
        take("y").finish()
        take("stop")

    def test_one_that_is_held_or_added_to_at_the_death_is_released_later(self):
        batch = self.batch("a", "b")
        task = take("a")

        def hold():
            stop = Queue()["stop"].id
            with transaction.atomic():
                Ticket.objects.select_for_update().get(pk=stop)
                batch.submit("c", "report")
                elsewhere(task.fail)
                self.assertEqual(elsewhere(lambda: status("stop")), "blocked")

        if connection.vendor != "sqlite":
            hold()
            store.records.follow(using="default")
            take("stop")


class ConcurrentTests(TransactionTestCase):
    """Merges, folds and looks of several at once."""

    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")

    def test_of_two_who_die_at_once_one_releases_the_callback(self):
        for number in range(8):
            with Queue().batch(f"b{number}") as batch:
                batch.submit_many(members(f"{number}a", f"{number}b", f"{number}c"))
                batch.then(f"{number}stop", "report", priority=9, when="first_failure")
            tasks, barrier = Queue().acquire(2), Barrier(2)

            def die(task, barrier=barrier):
                try:
                    barrier.wait(10)
                    task.fail()
                finally:
                    connection.close()

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(die, tasks))
            self.assertEqual(
                [task.key for task in Queue().acquire(9)], [f"{number}stop", f"{number}c"]
            )

    def test_of_many_who_end_at_once_the_last_ends_each_batch(self):
        def work(_name):
            try:
                while task := Queue().poll():
                    task.finish()
            finally:
                connection.close()

        for number in range(12):
            with Queue().batch(f"outer{number}") as outer:
                outer.then(f"mail{number}", "report", priority=-1)
                for name in "ab":
                    with outer.batch(f"{name}{number}") as inner:
                        keys = (f"{name}{number}-{key}" for key in range(6))
                        inner.submit_many({**one, "user": one["key"]} for one in members(*keys))
            with ThreadPoolExecutor() as pool:
                list(pool.map(work, range(4)))
            self.assertEqual(state(outer), (2, 2, 0, True))
            self.assertIn(status(f"mail{number}"), ("waiting", "finished"))
            work(0)
        self.assertFalse(BatchDelta.objects.exists())

    def test_who_ends_the_last_task_during_a_sweep_is_seen_by_it(self):
        """The sweep holds the row of the batch, and the end passes over it."""
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b", "c"))
            batch.then("mail", "report")
        left = Queue().acquire(3)
        left.pop().finish()
        left.pop().finish()

        def end_the_last():
            while left:
                left.pop().finish()

        with after_statement('UPDATE "perfectqueue_batch" SET', end_the_last):
            store.records.follow(using="default")
        self.assertEqual(left, [])
        self.assertEqual((state(batch), status("mail")), ((3, 3, 0, True), "waiting"))


class OpenTests(TransactionTestCase):
    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer.")

    def test_who_rolls_back_what_it_adds_holds_up_the_end_for_seconds_at_most(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("mail", "report")
        task = take("a")
        self.assertIsNone(elsewhere(Queue().poll))
        with transaction.atomic():
            batch.submit("b", "report")
            elsewhere(task.finish)
            transaction.set_rollback(True)
        self.assertEqual(status("mail"), "blocked")
        began = time.monotonic()
        while (mail := Queue().poll()) is None:
            self.assertLess(time.monotonic() - began, 10)
            time.sleep(0.1)

        self.assertEqual((mail.key, state(batch)), ("mail", (1, 1, 0, True)))

    def test_who_adds_in_a_long_transaction_holds_up_nobody_and_the_end_waits_for_it(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
        with transaction.atomic():
            batch.submit("c", "report", user="other")

            def work():
                take("a").finish()
                take("b").finish()

            with mock.patch.object(fold, "fold_batch", wraps=fold.fold_batch) as looks:
                elsewhere(work)
            self.assertLessEqual(looks.call_count, 2)
            self.assertEqual(elsewhere(lambda: status("mail")), "blocked")
        self.assertEqual(state(batch), (3, 2, 0, False))
        take("c").finish()

        take("mail")

    def test_a_task_that_ends_while_it_is_replaced_is_counted_no_longer(self):
        with Queue().batch("nightly") as batch:
            batch.submit_many(members("a", "b"))
            batch.then("mail", "report")
        task, lock = take("a"), revise.lock_tickets

        def lock_after_its_end(*given):
            if status("a") == "running":
                elsewhere(task.finish)
            return lock(*given)

        with mock.patch.object(revise, "lock_tickets", lock_after_its_end):
            Queue().submit("a", "other", on_conflict="replace")

        self.assertEqual((state(batch), status("mail")), ((2, 0, 0, False), "blocked"))

    def test_nobody_puts_back_what_is_being_cleared(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
        take("a").fail()

        def after_a_look(*given):
            self.assertEqual(elsewhere(not_locked), [])
            forget_tasks(*given)

        def not_locked():
            with transaction.atomic():
                return list(TaskQuerySet(Task).select_for_update(skip_locked=True).filter(key="a"))

        forget_tasks = deletion.forget_tasks
        with mock.patch.object(deletion, "forget_tasks", after_a_look):
            self.assertEqual(Queue().clear(), 1)

        with self.assertRaises(NotFoundError):
            batch.progress()

    def test_a_batch_stays_for_a_callback_that_is_about_to_be_committed(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
        take("a").finish()
        store.upkeep.delete_ended(Queue()["a"].id, using="default")
        with transaction.atomic():
            batch.then("mail", "report")
            self.assertEqual(
                elsewhere(lambda: store.dependencies.forget_batches(0, using="default")), 0
            )

        take("mail").finish()

    def test_a_callback_that_another_holds_at_the_end_is_released_later(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report", priority=1)
            for when in ("done", "finished", "failed"):
                batch.then(when, "report", when=when)
            batch.then("never", "report", when="failed")
        held = Queue()["done"].id, Queue()["failed"].id
        with transaction.atomic():
            list(Ticket.objects.select_for_update().filter(pk__in=held))
            elsewhere(lambda: take("a").finish())
            self.assertEqual(elsewhere(lambda: status("finished")), "waiting")
            self.assertEqual(elsewhere(lambda: status("never")), "cancelled")
            self.assertEqual(elsewhere(lambda: store.records.follow(using="default")) < 200, True)
        self.assertEqual(state(batch), (1, 1, 0, True))
        self.assertEqual(status("done"), "blocked")
        store.records.follow(using="default")
        self.assertEqual((status("done"), status("failed")), ("waiting", "cancelled"))
        self.assertFalse(BatchDelta.objects.exists())


class TestCaseTests(TestCase):
    def test_a_callback_is_released_when_a_task_is_looked_for(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.then("mail", "report")
        take("a").finish()
        take("mail").finish()
        self.assertEqual(state(batch), (1, 1, 0, True))
