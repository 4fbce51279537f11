"""Time that a handler has used is charged to its user, however the attempt ends."""

import os
import signal
import time

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.application import Application, CommandHandler
from django_perfectqueue.exceptions import GracefulProcessStopError
from django_perfectqueue.models import Account
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.verdicts import Discard, Retry, Snooze

from ...factories import acquire, after, assert_books_balance, submit
from ...waiting import wait_until
from ..runners import RunnerMixin
from ..workers import WorkerTestCase

SPENT = 0.05


class BusyProgram(CommandHandler):
    command = ("/bin/sh", "-c", f"sleep {SPENT}; exit 75")


def working(end, *, atomic=False):
    """Return a handler that works for a moment, and then does something with its task."""

    class Working(Application):
        def perform(self):
            time.sleep(SPENT)
            return end(self.task)

    Working.atomic = atomic
    return Working


def raising(error):
    def end(task):
        raise error

    return end


ENDS = {
    "release": (lambda task: task.release(60), "released"),
    "snooze": (lambda task: task.snooze(60), "snoozed"),
    "retry": (lambda task: task.retry(0), "retried"),
    "fail": (lambda task: task.fail("why"), "failed"),
    "cancel": (lambda task: task.cancel(), "cancelled"),
    "discard": (lambda task: task.discard("why"), "discarded"),
    "raise": (raising(ValueError()), "retried"),
    "raise Retry": (raising(Retry()), "retried"),
    "raise Snooze": (raising(Snooze(60)), "snoozed"),
    "raise Discard": (raising(Discard()), "discarded"),
    "stop": (raising(GracefulProcessStopError()), "released"),
}


class ChargeTests(RunnerMixin, TestCase):
    def charged(self):
        [time_charged] = Account.objects.values_list("virtual_time", flat=True)
        return time_charged

    def test_whatever_ends_it(self):
        for atomic in (False, True):
            for name, (end, word) in ENDS.items():
                with self.subTest(name, atomic=atomic):
                    Queue().clear()
                    Account.objects.all().delete()
                    self.run_with(working(end, atomic=atomic), expect=word)
                    self.assertGreaterEqual(self.charged(), SPENT)
                    assert_books_balance(self)

    def test_a_program_that_wants_to_be_run_later(self):
        self.run_with(BusyProgram, expect="released")
        self.assertGreaterEqual(self.charged(), SPENT)

    def test_a_program_without_a_worker_that_gives_its_task_back(self):
        submit("task", now=None)
        task = Queue().poll()
        time.sleep(SPENT)
        task.release()
        self.assertGreaterEqual(self.charged(), SPENT)

    def test_of_what_a_dead_processor_held_that_which_had_begun(self):
        for number in range(3):
            submit(f"k{number}", user=f"user-{number}")
        crashed, ended, unbegun = acquire(3, holder=7)
        store.upkeep.give_back(
            7,
            using="default",
            alive_time=60,
            loss=Loss(
                crashed=[crashed.task_id],
                seconds={crashed.task_id: 60.0, ended.task_id: 20.0},
            ),
            now=after(1),
        )
        charged = {
            lease.lane: Account.objects.get(id=lease.lane).virtual_time
            for lease in (crashed, ended, unbegun)
        }
        self.assertAlmostEqual(charged[crashed.lane], 60.0, delta=0.1)
        self.assertAlmostEqual(charged[ended.lane], 20.0, delta=0.1)
        self.assertLess(charged[unbegun.lane], 0.1)
        assert_books_balance(self)


class KilledTests(WorkerTestCase):
    def charged(self):
        return sum(Account.objects.values_list("virtual_time", flat=True))

    def test_a_processor_that_is_killed(self):
        self.submit("k0")
        self.worker(MAX_CRASHES=1)
        pid = self.wait_for_note("start")
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_status("k0", "failed")
        self.assertGreaterEqual(self.charged(), 0.5)

    def test_a_worker_that_is_asked_to_stop_at_once(self):
        self.submit("k0")
        worker = self.worker()
        self.wait_for_note("start")
        time.sleep(0.5)
        worker.send(signal.SIGQUIT)
        worker.wait()
        wait_until(lambda: self.charged() >= 0.5)
