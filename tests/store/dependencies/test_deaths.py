"""A process that dies before any statement or commit, of those that concern dependencies."""

import os
import signal
from datetime import timedelta

from django.db import connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.models import (
    Account,
    Batch,
    BatchDelta,
    Dependency,
    DependencyEvent,
    Ticket,
)
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.database.link import prepare_for_fork

from ...examples import each_moment
from ...factories import at as with_time
from ...waiting import wait_until

MOST = 200


class Death:
    """Kills its process before the n-th statement or commit."""

    def __init__(self, at):
        self.left = at

    def __call__(self, execute, *statement):
        self.step()
        return execute(*statement)

    def step(self):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(act, at):
    """Run in a process that dies at its n-th step; return whether it lived to the end."""
    prepare_for_fork()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            connection.ensure_connection()
            death, commit = Death(at), connection._commit
            connection._commit = lambda: (death.step(), commit())
            with connection.execute_wrapper(death):
                act()
            code = 0
        finally:
            os._exit(code)
    _pid, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "It did not die, but failed."
        return True
    return False


class DeathTests(TransactionTestCase):
    def each_death(self, prepare, act, check):
        """Have a process that acts die at each step; see that the work goes on all the same."""
        for at in each_moment():
            assert at < MOST
            with self.subTest(at=at):
                prepare()
                lived = run_and_die(act, at)
                self.wait_for_rollback()
                check()
                self.assertEqual(DependencyEvent.objects.count(), 0)
                Queue().clear()
                self.assertEqual(Dependency.objects.count(), 0)
            if lived:
                return

    def wait_for_rollback(self):
        """
        Wait until the server has freed what the dead process had locked.

        Until it sees that its client is gone, whoever skips what is locked skips that.
        """
        with transaction.atomic():
            for model in (Ticket, Account, Batch):
                list(model.objects.select_for_update())

    def finish_all(self):
        """Finish what there is, as others do; return the keys in their order."""
        keys, moment = [], timezone.now() + timedelta(days=1)
        wait_until(self.is_swept)
        while task := Queue().poll(now=moment):
            with_time(task, moment).finish()
            keys.append(task.key)
        return keys

    def is_swept(self):
        """A server may take a moment to see that a client is gone, and what it held is free."""
        store.records.follow(using="default")
        store.upkeep.wake_forgotten_lanes(using="default")
        return not (DependencyEvent.objects.exists() or BatchDelta.objects.exists())

    def test_who_submits_a_child(self):
        def act():
            Queue().submit("b", "report", after=["a"])

        def check():
            there = Queue()["b"].exists()
            self.assertEqual(self.finish_all(), ["a", "b"] if there else ["a"])

        self.each_death(lambda: Queue().submit("a", "report"), act, check)

    def test_who_submits_a_graph(self):
        def act():
            tasks = [
                {"key": "b", "type": "report", "after": ["a"]},
                {"key": "c", "type": "report", "after": ["a", "b"]},
            ]
            Queue().submit_many(tasks)

        def check():
            keys = ["a", "b", "c"] if Queue()["c"].exists() else ["a"]
            self.assertEqual(self.finish_all(), keys)

        self.each_death(lambda: Queue().submit("a", "report"), act, check)

    def test_who_finishes_a_parent(self):
        def prepare():
            Queue().submit("a", "report")
            Queue().submit("b", "report", after=["a"])

        def act():
            Queue().poll().finish()

        def check():
            first = [] if Queue()["a"].metadata().outcome else ["a"]
            self.assertEqual(self.finish_all(), [*first, "b"])

        self.each_death(prepare, act, check)

    def test_who_ends_a_parent_of_a_child_that_is_cancelled_then(self):
        def prepare():
            Queue().submit("a", "report")
            Queue().chain(
                [{"key": "b", "type": "report", "after": ["a"]}, {"key": "c", "type": "report"}],
                if_failed="cancel",
            )

        def act():
            Queue().poll().fail()

        def check():
            if Queue()["a"].metadata().outcome:
                self.assertEqual(self.finish_all(), [])
                statuses = [Queue()[key].metadata().status for key in "bc"]
                self.assertEqual(statuses, ["cancelled", "cancelled"])
            else:
                self.assertEqual(self.finish_all(), ["a", "b", "c"])

        self.each_death(prepare, act, check)

    def test_who_puts_a_failed_parent_back(self):
        def prepare():
            Queue().submit("a", "report")
            Queue().submit("b", "report", after=["a"])
            Queue().poll().fail()

        def act():
            Queue()["a"].retry()

        def check():
            if Queue()["a"].metadata().outcome:
                Queue()["a"].retry()
            self.assertEqual(self.finish_all(), ["a", "b"])

        self.each_death(prepare, act, check)

    def batch(self):
        with Queue().batch("nightly") as batch:
            batch.submit("a", "report")
            batch.submit("b", "report")
            batch.then("mail", "report")
        return batch

    def forget(self):
        Queue().clear()
        store.dependencies.forget_batches(-60, using="default")

    def test_who_submits_a_batch(self):
        def check():
            there = Queue()["mail"].exists()
            self.assertEqual(self.finish_all(), ["a", "b", "mail"] if there else [])
            self.assertEqual(Batch.objects.count(), int(there))
            self.forget()

        self.each_death(lambda: None, self.batch, check)

    def test_who_adds_to_a_batch(self):
        def check():
            added = Queue()["c"].exists()
            self.assertEqual(self.finish_all(), ["a", "b", *(["c"] if added else []), "mail"])
            self.assertEqual(Queue().batch_named("nightly").progress().total, 2 + added)
            self.forget()

        def act():
            Queue().batch_named("nightly").submit("c", "report")

        self.each_death(self.batch, act, check)

    def test_who_finishes_the_last_of_a_batch(self):
        def prepare():
            self.batch()
            Queue().poll().finish()

        def act():
            Queue().poll().finish()

        def check():
            left = [] if Queue()["b"].metadata().outcome else ["b"]
            self.assertEqual(self.finish_all(), [*left, "mail"])
            progress = Queue().batch_named("nightly").progress()
            self.assertEqual((progress.finished, progress.ended), (2, True))
            self.forget()

        self.each_death(prepare, act, check)

    def test_who_fails_the_first_of_a_batch(self):
        def prepare():
            self.batch().then("stop", "report", when="first_failure", priority=9)

        def act():
            Queue().poll().fail()

        def check():
            if Queue()["a"].metadata().outcome:
                self.assertEqual(self.finish_all(), ["stop", "b", "mail"])
            else:
                self.assertEqual(self.finish_all(), ["a", "b", "mail"])
                self.assertEqual(Queue()["stop"].metadata().status, "cancelled")
            self.forget()

        self.each_death(prepare, act, check)

    def test_who_replaces_a_parent(self):
        def prepare():
            Queue().submit("a", "report")
            Queue().submit("b", "report", after=["a"])

        def act():
            Queue().submit("a", "other", on_conflict="replace")

        self.each_death(prepare, act, lambda: self.assertEqual(self.finish_all(), ["a", "b"]))

    def sequence(self):
        for key in "ab":
            Queue().submit(key, "report", sequence="s")

    def test_who_submits_to_a_sequence(self):
        def act():
            tasks = ({"key": key, "type": "report", "sequence": "s"} for key in "cd")
            Queue().submit_many(tasks)

        def check():
            there = Queue()["d"].exists()
            self.assertEqual(self.finish_all(), ["a", "b", *(["c", "d"] if there else [])])
            Queue().submit("e", "report", sequence="s")
            self.assertEqual(self.finish_all(), ["e"])

        self.each_death(self.sequence, act, check)

    def test_who_finishes_one_of_a_sequence(self):
        def act():
            Queue().poll().finish()

        def check():
            first = [] if Queue()["a"].metadata().outcome else ["a"]
            Queue().submit("c", "report", sequence="s")
            self.assertEqual(self.finish_all(), [*first, "b", "c"])

        self.each_death(self.sequence, act, check)

    def test_who_skips_one_of_a_sequence(self):
        def prepare():
            self.sequence()
            Queue().submit("c", "report", sequence="s")

        def act():
            Queue()["b"].force_finish()

        def check():
            left = [] if Queue()["b"].metadata().outcome else ["b"]
            self.assertEqual(self.finish_all(), ["a", *left, "c"])

        self.each_death(prepare, act, check)

    def test_who_deletes_the_one_that_stops_a_sequence(self):
        def prepare():
            self.sequence()
            Queue().poll().fail()

        def act():
            store.upkeep.delete_ended(Queue()["a"].id, using="default")

        def check():
            self.assertEqual(self.finish_all(), [] if Queue()["a"].exists() else ["b"])

        self.each_death(prepare, act, check)
