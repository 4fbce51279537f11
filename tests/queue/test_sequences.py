"""Tasks of one sequence run one after the other, through the doors that programs use."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import connection, transaction
from django.test import TransactionTestCase, skipUnlessDBFeature, tag

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError, NotSupportedError
from django_perfectqueue.health.checks import check_blocked
from django_perfectqueue.models import Dependency, DependencyEvent, Tag, Task
from django_perfectqueue.queue import Queue

from ..factories import elsewhere


def submit(*keys, sequence="account-7", queue="default", **options):
    for key in keys:
        Queue(queue).submit(key, "report", {}, sequence=sequence, **options)


def statuses(*keys):
    return [Queue()[key].metadata().status for key in keys]


def take(key, queue="default"):
    """Take the only task that is due, which is to have this key."""
    tasks = Queue(queue).acquire(10)
    assert [task.key for task in tasks] == [key], [task.key for task in tasks]
    return tasks[0]


def finish(*keys):
    for key in keys:
        take(key).finish()


class Cases(TransactionTestCase):
    def tearDown(self):
        self.assertEqual(list(DependencyEvent.objects.all()), [])


class OrderTests(Cases):
    def test_each_starts_once_the_one_before_has_finished(self):
        submit("a", "b", "c")

        self.assertEqual(statuses("a", "b", "c"), ["waiting", "blocked", "blocked"])
        finish("a", "b", "c")

    def test_other_sequences_and_tasks_go_on_beside(self):
        submit("a", "b")
        submit("x", sequence="account-8")
        Queue().submit("y", "report")

        self.assertEqual({task.key for task in Queue().acquire(10)}, {"a", "x", "y"})

    def test_an_attempt_that_fails_keeps_its_turn(self):
        submit("a", "b")
        take("a").retry(0)
        self.assertEqual(statuses("a", "b"), ["waiting", "blocked"])
        finish("a", "b")

    def test_one_that_is_due_later_holds_up_those_behind_it(self):
        submit("a", run_at=timedelta(hours=1))
        submit("b")
        self.assertEqual(Queue().acquire(10), [])
        Queue()["a"].retry()
        finish("a", "b")

    def test_it_goes_on_after_all_have_finished(self):
        submit("a", "b")
        finish("a", "b")
        submit("c")
        finish("c")
        submit("d", "e")
        finish("d", "e")

    def test_many_at_once_keep_their_order(self):
        keys = [f"k{number:02}" for number in range(25)]
        tasks = ({"key": key, "type": "report", "sequence": "s"} for key in keys)
        Queue().submit_many(tasks)
        submit("last", sequence="s")

        finish(*keys, "last")

    def test_several_sequences_at_once(self):
        Queue().submit_many(
            {"key": f"{name}{number}", "type": "report", "sequence": name}
            for number in range(3)
            for name in "xy"
        )

        for number in range(3):
            tasks = Queue().acquire(10)
            self.assertEqual({task.key for task in tasks}, {f"x{number}", f"y{number}"})
            for task in tasks:
                task.finish()

    def test_a_sequence_spans_queues_and_batches(self):
        submit("a")
        submit("b", queue="other")
        with Queue().batch("nightly") as batch:
            batch.submit("c", "report", sequence="account-7")
            batch.then("done", "report")

        finish("a")
        self.assertEqual(Queue().acquire(10), [])
        take("b", "other").finish()
        finish("c", "done")

    def test_it_waits_for_others_too(self):
        Queue("other").submit("x", "report")
        submit("a")
        submit("b", after=[Queue("other")["x"]])
        finish("a")
        self.assertEqual(statuses("b"), ["blocked"])
        Queue("other").poll().finish()
        finish("b")

    def test_what_is_rolled_back_has_no_place(self):
        submit("a")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            submit("b")
            raise ZeroDivisionError
        submit("c")

        finish("a", "c")

    def test_in_one_transaction_they_wait_for_its_commit(self):
        with transaction.atomic():
            submit("a", "b")
        submit("c")

        finish("a", "b", "c")

    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_a_submitter_does_not_wait_and_what_it_commits_later_comes_later(self):
        with transaction.atomic():
            submit("early")
            elsewhere(lambda: submit("a", "b"))
            self.assertEqual(elsewhere(lambda: take("a").key), "a")
        submit("c")
        self.assertLess(Queue()["early"].id, Queue()["a"].id)

        self.assertEqual(statuses("a", "b", "early", "c"), ["running", *["blocked"] * 3])
        Queue()["a"].force_finish()
        finish("b", "early", "c")

    def test_a_predecessor_is_no_parent_for_the_handler(self):
        Queue("other").submit("x", "report")
        submit("a")
        submit("b", after=[Queue("other")["x"]])
        Queue("other").poll().finish(3)
        finish("a")

        task = take("b")
        self.assertEqual(list(task.parents), ["x"])


class StoppedTests(Cases):
    def test_a_dead_one_stops_its_sequence_until_it_is_put_back(self):
        submit("a", "b", "c")
        take("a").fail()
        submit("d")
        self.assertEqual(Queue().acquire(10), [])

        Queue()["a"].retry()
        finish("a", "b", "c", "d")

    def test_one_that_was_cancelled_or_expired_stops_it(self):
        submit("a", expires_at=timedelta(seconds=-1))
        submit("b", "c")
        self.assertEqual(Queue().acquire(10), [])
        self.assertEqual(statuses("a", "b"), ["expired", "blocked"])
        Queue()["a"].retry()
        Queue()["b"].cancel_request()
        finish("a")
        self.assertEqual(statuses("b", "c"), ["cancelled", "blocked"])

        Queue()["b"].retry()
        finish("b", "c")

    def test_to_delete_a_dead_one_skips_it(self):
        submit("a", "b")
        take("a").fail()
        store.upkeep.delete_ended(Queue()["a"].id, using="default")

        finish("b")

    def test_retention_does_not_skip(self):
        submit("a", "b")
        take("a").fail()
        found = store.upkeep.purgeable({"failed": 0}, using="default")
        self.assertEqual(len(found.doomed), 1)
        self.assertEqual(store.upkeep.purge(found, using="default").deleted, 0)

        self.assertEqual(statuses("a", "b"), ["failed", "blocked"])

    def test_one_is_deleted_only_when_its_turn_has_come(self):
        submit("a", "b")
        Queue()["b"].cancel_request()
        gone = Queue()["b"].id
        with self.assertRaisesMessage(NotSupportedError, "its turn in its sequence"):
            store.upkeep.delete_ended(gone, using="default")
        submit("c")
        finish("a")
        self.assertEqual(statuses("b", "c"), ["cancelled", "blocked"])

        store.upkeep.delete_ended(gone, using="default")
        finish("c")

    def test_to_finish_one_by_force_skips_it_and_not_those_before(self):
        submit("a", "b", "c")
        Queue()["b"].force_finish()
        Queue()["c"].force_finish()
        submit("d")
        self.assertEqual(statuses("a", "b", "c", "d"), ["waiting", *["finished"] * 2, "blocked"])

        finish("a", "d")

    def test_a_live_one_is_not_replaced_and_one_that_has_finished_comes_last(self):
        submit("a", "b")
        for key in "ab":
            with self.assertRaisesMessage(NotSupportedError, "in a sequence"):
                submit(key, on_conflict="replace")
            with self.assertRaisesMessage(NotSupportedError, "in a sequence"):
                submit(key, on_conflict="replace", sequence=None)
        finish("a")
        submit("a", on_conflict="replace")

        finish("b", "a")
        submit("a", on_conflict="replace")
        submit("c")
        finish("a", "c")

    def test_it_cannot_be_taken_out_but_no_longer_waits_for_others(self):
        Queue("other").submit("x", "report")
        submit("a")
        submit("b", after=[Queue("other")["x"]])
        with self.assertRaises(NotFoundError):
            Queue()["b"].wait_no_longer_for(["a"])
        Queue()["b"].wait_no_longer_for()

        self.assertEqual(statuses("b"), ["blocked"])
        finish("a", "b")

    def test_tasks_that_would_wait_for_one_another_are_refused(self):
        submit("a", "b")
        Queue().submit("x", "report", after=["b"])
        with self.assertRaises(NotSupportedError):
            Queue()["a"].wait_for(["x"])
        Queue()["b"].cancel_request(together=True)
        with Queue().batch("nightly") as batch, self.assertRaises(InvalidTaskError):
            batch.then("mail", "report", sequence="account-7")

    def test_nothing_is_left_of_a_sequence_once_its_tasks_are_deleted(self):
        submit("a", "b")
        finish("a", "b")
        found = store.upkeep.purgeable({"finished": 0}, using="default")
        store.upkeep.purge(found, using="default")

        self.assertEqual([model.objects.count() for model in (Task, Dependency, Tag)], [0, 0, 0])
        submit("c")
        finish("c")


class ShownTests(Cases):
    def test_it_says_why_it_waits(self):
        submit("a", "b", "c")
        reason = Queue()["b"].why_waiting()
        self.assertEqual((reason.code, reason.name), ("sequence", "a"))
        take("a").fail()
        reason = Queue()["b"].why_waiting()
        self.assertEqual((reason.code, reason.name), ("sequence_stopped", "a"))
        self.assertIn("retry that one, or delete it", reason.sentence)
        reason = Queue()["c"].why_waiting()
        self.assertEqual((reason.code, reason.name), ("sequence_stopped", "a"))

    def test_the_first_that_stops_it_is_named_and_not_the_nearest(self):
        submit("a", "b", "c", "d", "e", "f")
        finish("a")
        take("b").fail()
        for key in "ce":
            Queue()[key].cancel_request()
        store.records.follow(using="default")

        for key in "df":
            reason = Queue()[key].why_waiting()
            self.assertEqual((reason.code, reason.name), ("sequence_stopped", "b"))
        self.assertEqual(check_blocked("default").keys["parent"], "b")
        self.assertIn("waits for 'b'", check_blocked("default").detail)
        Queue()["b"].retry()
        self.assertEqual(Queue()["d"].why_waiting().name, "c")
        finish("b")
        self.assertEqual(Queue()["f"].why_waiting().name, "c")
        Queue()["c"].retry()
        self.assertEqual(Queue()["d"].why_waiting().code, "sequence")
        self.assertEqual(Queue()["f"].why_waiting().name, "e")

    def test_it_is_found_by_a_tag(self):
        submit("a", tags=["x"])
        self.assertEqual(Queue()["a"].tags, ["x", "sequence:account-7"])
        with self.assertRaisesMessage(InvalidTaskError, "give a sequence"):
            Queue().submit("b", "report", tags=["sequence:account-7"])
        # By it a copy comes in the same sequence.
        with self.assertRaisesMessage(InvalidTaskError, "sequence"):
            Queue()["a"].untag("x", "sequence:account-7")
        Queue()["a"].untag("x")
        self.assertEqual(Queue()["a"].tags, ["sequence:account-7"])

    def test_a_copy_comes_last(self):
        submit("a", "b")
        Queue()["a"].copy("copy")
        self.assertEqual(Queue()["copy"].tags, ["sequence:account-7"])
        finish("a", "b", "copy")

    def test_what_is_no_name_is_refused(self):
        for wrong in ("", 7, "x" * 51, "a\x00"):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                submit("a", sequence=wrong)


class StormTests(TransactionTestCase):
    """
    Submitters and workers at once; members fail and are put back.

    What is kept here of each task is written before its start and before its end.
    """

    def setUp(self):
        self.lock = threading.Lock()
        self.finished, self.running, self.wrong = Counter(), set(), []

    def run_storm(self, sequences, members, *, workers, submitters):
        self.total, self.members, self.over = sequences * members, members, 0
        self.dead = []
        with ThreadPoolExecutor(workers + submitters) as pool:
            parts = [range(one, sequences, submitters) for one in range(submitters)]
            tasks = [pool.submit(self.alone, self.submit_all, part) for part in parts]
            tasks += [pool.submit(self.alone, self.work, seed) for seed in range(workers)]
            for task in tasks:
                task.result()
        self.assertEqual(self.wrong, [])
        self.assertEqual(set(self.finished.values()), {members})
        self.assertEqual(len(self.finished), sequences)

    def alone(self, act, *arguments):
        try:
            act(*arguments)
        except BaseException:
            self.over = self.total
            raise
        finally:
            connection.close()

    def submit_all(self, part):
        for first in range(0, self.members, 5):
            some = range(first, min(first + 5, self.members))
            for sequence in part:
                if first % 2:
                    for number in some:
                        self.submit_one(sequence, number)
                else:
                    Queue().submit_many(self.terms(sequence, number) for number in some)

    def submit_one(self, sequence, number):
        Queue().submit(**self.terms(sequence, number))

    def terms(self, sequence, number):
        key = f"{sequence}-{number}"
        return {"key": key, "type": "report", "sequence": f"s{sequence}", "user": str(sequence % 5)}

    def work(self, seed):
        chance = random.Random(seed)
        while self.over < self.total:
            tasks = Queue().acquire(chance.choice([1, 3, 10]))
            for task in tasks:
                sequence, number = map(int, task.key.split("-"))
                with self.lock:
                    if self.finished[sequence] != number or sequence in self.running:
                        self.wrong.append((task.key, self.finished[sequence]))
                    self.running.add(sequence)
            for task in tasks:
                self.end(task, int(task.key.split("-")[0]), chance.random())
            with self.lock:
                dead, self.dead = self.dead, []
            for key in dead:
                Queue()[key].retry()
            if not tasks:
                time.sleep(0.01)

    def end(self, task, sequence, chance):
        with self.lock:
            self.running.discard(sequence)
            if chance > 0.2:
                self.finished[sequence] += 1
                self.over += 1
        if chance > 0.2:
            task.finish()
        elif chance > 0.1:
            task.retry(0)
        else:
            task.fail()
            with self.lock:
                self.dead.append(task.key)

    def test_the_order_is_kept(self):
        self.run_storm(12, 6, workers=3, submitters=2)

    @tag("thorough")
    def test_the_order_is_kept_of_long_ones(self):
        self.run_storm(100, 20, workers=4, submitters=3)
