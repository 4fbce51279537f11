"""Attempts that take too long, and handlers that do not end when interrupted."""

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

from django.test import SimpleTestCase, TestCase

from django_perfectqueue import conf, store
from django_perfectqueue.application import Application, Dispatch, TimeLimits, time_limits
from django_perfectqueue.exceptions import ConfigError, TimeLimitError
from django_perfectqueue.models import Account, Attempt, DeadLetter, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.worker.helpers.reaper import Leftovers, Reaper
from django_perfectqueue.worker.shared.status import NEVER, ProcessorStatus

from ...databases.lifetime import is_alive
from ...factories import acquire, assert_books_balance, submit
from ...waiting import wait_until
from ..forked import SILENT, SLOW_MACHINE, ForkedWorkerTestCase, plan_of

TIMED_OUT = "django_perfectqueue.exceptions.TimeLimitError"


def write(task, word):
    """Note something of a task, so that it is there as a whole or not at all."""
    path = Path(task.data["folder"], task.key)
    path.with_suffix(".new").write_text(str(word))
    path.with_suffix(".new").rename(path)


def turn_deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def sleep_for_ever():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)


def descend(pids, generations):
    """Fork a deaf child in a session of its own, with as many below it; note them all."""
    if not generations or os.fork():
        return
    os.setsid()
    turn_deaf()
    descend(pids, generations - 1)
    with open(pids, "a") as file:
        file.write(f"{os.getpid()} ")
    sleep_for_ever()


def cut_loose(pids):
    """Leave behind a copy of this process and a program, of which no parent is left."""
    if middle := os.fork():
        os.waitpid(middle, 0)
        return
    descend(pids, 1)
    script = f"trap '' TERM HUP; echo $$ >> {pids}; exec sleep 600"
    _left = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    os._exit(0)


class Sleep(Application):
    retry_wait = 0
    max_attempts = 2

    def perform(self):
        time.sleep(600)


class TidyUp(Sleep):
    time_limit = 0.1

    def perform(self):
        try:
            time.sleep(600)
        except TimeLimitError as error:
            return str(error)


class Endless(Application):
    time_limit = math.inf

    def perform(self):
        time.sleep(0.3)


class Deaf(Application):
    kill_wait = 0.2
    max_attempts = 1

    def perform(self):
        turn_deaf()
        pids = Path(self.task.data["folder"], "pids")
        descend(pids, 2)
        if self.task.data.get("loose"):
            cut_loose(pids)
        count = 4 if self.task.data.get("loose") else 2
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == count, within=60)
        write(self.task, pids.read_text())
        sleep_for_ever()


class Locked(Application):
    """Keeps Python's lock for good."""

    time_limit = 0.2
    kill_wait = 0.2
    max_attempts = 1

    def perform(self):
        re.match(r"(a+)+$", "a" * 60 + "b")


class Blocking(Application):
    """A coroutine that blocks its event loop for good."""

    time_limit = 0.2
    kill_wait = 0.2
    max_attempts = 1

    async def perform(self):
        time.sleep(600)


class Limited(Dispatch):
    routes = {
        "sleep": Sleep,
        "tidy": TidyUp,
        "endless": Endless,
        "deaf": Deaf,
        "locked": Locked,
        "blocking": Blocking,
        "report": lambda task: None,
    }


class ChoiceTests(SimpleTestCase):
    def test_the_task_goes_before_its_handler_and_that_before_the_settings(self):
        class Own(Application):
            time_limit = 5
            kill_wait = math.inf

        plain = conf.options().replace(TIME_LIMIT=60, TASK_KILL_WAIT=3)
        table = [
            (None, None, TimeLimits(60, 3)),
            (Application, None, TimeLimits(60, 3)),
            (Application, 7.0, TimeLimits(7, 3)),
            (Own, None, TimeLimits(5, math.inf)),
            (Own, 7.0, TimeLimits(7, math.inf)),
        ]
        for kind, given, limits in table:
            with self.subTest(kind=kind, given=given):
                self.assertEqual(time_limits(kind, given, plain), limits)
        without = conf.options().replace(TIME_LIMIT=None, TASK_KILL_WAIT=None)
        self.assertEqual(time_limits(None, None, without), TimeLimits(math.inf, math.inf))

    def test_a_limit_that_is_no_length_of_time_is_refused_before_anything_runs(self):
        for name, value in (("time_limit", "5m"), ("time_limit", 0), ("kill_wait", -1)):
            kind = type("Wrong", (Application,), {name: value})
            dispatch = type("OneDispatch", (Dispatch,), {"routes": {"report": kind}})
            with self.subTest(name), self.assertRaisesRegex(ConfigError, f"Wrong.{name} must be"):
                dispatch.load()


class ProcessorStatusTests(SimpleTestCase):
    def setUp(self):
        self.status = ProcessorStatus.shared(2)

    def kill_at(self):
        [begun] = self.status.tasks
        return begun.kill_at

    def test_a_handler_is_ended_some_time_after_its_limit_or_after_it_was_notified(self):
        self.status.begin(7, since=100.0, limits=TimeLimits(50.0, 10.0), index=1)
        self.assertEqual(self.kill_at(), 160.0)
        self.status.ask_to_stop(7, 120.0)
        self.status.ask_to_stop(7, 125.0)
        self.assertEqual(self.kill_at(), 130.0)
        self.status.returned(7)
        self.assertEqual(self.kill_at(), NEVER)

    def test_what_is_noted_of_one_does_not_hold_for_the_next(self):
        self.status.begin(7, since=100.0, limits=TimeLimits(kill_wait=10.0))
        self.status.ask_to_stop(7, 120.0)
        for next_one in (8, 7):
            self.status.begin(next_one, since=121.0, limits=TimeLimits(kill_wait=10.0))
            self.assertEqual(self.kill_at(), NEVER)
        self.status.ask_to_stop(8, 125.0)
        self.assertEqual(self.status.overdue(1000.0), [])

    def test_what_may_never_be_ended_by_force_is_not(self):
        self.status.begin(7, since=100.0, limits=TimeLimits(time_limit=5.0))
        self.status.ask_to_stop(7, 120.0)
        self.assertEqual(self.status.overdue(1e8), [])


class ReaperTests(TestCase):
    """What becomes of tasks whose processor was killed for one of them."""

    def setUp(self):
        for number, type_ in enumerate(["locked", "sleep", "deaf", "report"]):
            submit(type_, type=type_, now=None, priority=-number, time_limit=5)
        taken = acquire(4, lease=50, holder=7, now=None)
        self.ids = {lease.key: lease.task_id for lease in taken}
        self.cost = {lease.key: lease.charge for lease in taken}

    def add_dead_letters(self, **seconds):
        leftovers = Leftovers(
            holder=7,
            loss=Loss(
                worker="host:1",
                why=store.Failure(error="crashed", message="Its processor was ended by SIGKILL."),
            ),
            overdue={self.ids[key]: ran for key, ran in seconds.items()},
        )
        reaper = Reaper(plan_of(Limited), leftovers, SILENT)
        self.addCleanup(reaper.wakeup.close)
        with self.assertLogs("django_perfectqueue.supervisor") as logged:
            reaper.give_back(reaper.settle_overdue())
        assert_books_balance(self)
        return "\n".join(logged.output)

    def test_who_was_over_its_limit_has_made_an_error_and_follows_its_handlers_rules(self):
        log = self.add_dead_letters(locked=20.0, sleep=20.0)

        self.assertIn("killed with its processor: timed out, failed. key=locked", log)
        self.assertIn("killed with its processor: timed out, retried. key=sleep", log)
        letter = DeadLetter.objects.get()
        self.assertEqual(
            (letter.task.key, letter.status, letter.group, letter.errors, letter.crashes),
            ("locked", "failed", TIMED_OUT, 1, 0),
        )
        self.assertIn("Its time limit is 5 s. It had not ended 0.2 s after", letter.message)
        ticket = Ticket.objects.get(task__key="sleep")
        self.assertEqual((ticket.errors, ticket.crashes), (1, 0))
        self.assertEqual(Attempt.objects.get(task__key="sleep").error, TIMED_OUT)

    def test_rules_that_raise_give_way_to_those_of_the_settings(self):
        """The tasks beside it come back all the same."""
        with mock.patch.object(Sleep, "retry_wait", "soon"):
            self.add_dead_letters(sleep=20.0)
        ticket = Ticket.objects.get(task__key="sleep")
        self.assertEqual((ticket.errors, ticket.crashes), (1, 0))
        self.assertEqual(Ticket.objects.filter(state=0, errors=0).count(), 3)

    def test_who_was_to_be_cancelled_is(self):
        Queue()["deaf"].cancel_request()
        self.add_dead_letters(deaf=2.0)

        letter = DeadLetter.objects.get()
        self.assertEqual((letter.task.key, letter.status), ("deaf", "cancelled"))
        self.assertEqual(letter.crashes, 0)
        self.assertIn("so its processor was killed", letter.message)

    def test_its_neighbours_have_done_nothing(self):
        self.add_dead_letters(locked=20.0)

        for key in ("sleep", "deaf", "report"):
            ticket = Ticket.objects.get(task__key=key)
            self.assertEqual((ticket.state, ticket.errors, ticket.crashes), (0, 0, 0))

    def test_who_was_notified_for_neither_reason_has_crashed(self):
        """
        Its lease seemed lost, for the database was away for long; but no one has taken it.
        """
        leftovers = {self.ids["report"]: 2.0}
        reaper = Reaper(
            plan_of(Limited),
            Leftovers(holder=7, loss=Loss(worker="", why=store.Failure()), overdue=leftovers),
            SILENT,
        )
        self.addCleanup(reaper.wakeup.close)
        reaper.give_back(reaper.settle_overdue())
        ticket = Ticket.objects.get(task__key="report")
        self.assertEqual((ticket.errors, ticket.crashes), (0, 1))

    def test_its_user_pays_for_the_time(self):
        before = Account.objects.get().virtual_time
        self.add_dead_letters(locked=20.0)
        self.assertAlmostEqual(Account.objects.get().virtual_time - before, 20.0, delta=0.1)

    def test_what_another_has_by_now_is_not_touched(self):
        Queue()["locked"].force_finish()
        leftovers = Leftovers(
            holder=7,
            loss=Loss(worker="", why=store.Failure()),
            overdue={self.ids["locked"]: 20.0},
        )
        reaper = Reaper(plan_of(Limited), leftovers, SILENT)
        self.addCleanup(reaper.wakeup.close)
        self.assertEqual(reaper.settle_overdue(), ())
        self.assertEqual(Queue()["locked"].metadata().status, "finished")


class SoftTests(ForkedWorkerTestCase):
    def test_a_handler_is_interrupted_when_its_time_is_up(self):
        self.submit("setting", "sleep")
        self.submit("type", "tidy")
        self.submit("task", "tidy", time_limit="0.2s")
        self.submit("endless", "endless")
        self.worker(Limited, TIME_LIMIT=0.1)

        self.wait_for_status("setting", "failed")
        self.assertEqual(Attempt.objects.filter(error=TIMED_OUT).count(), 2)
        letter = DeadLetter.objects.get()
        self.assertEqual((letter.group, letter.errors, letter.crashes), (TIMED_OUT, 2, 0))
        for key, limit in (("type", "0.1"), ("task", "0.2")):
            row = self.wait_for_status(key, "finished")
            self.assertEqual(
                row.result, f"Task '{key}' has run for longer than its time limit of {limit} s."
            )
        self.wait_for_status("endless", "finished")


class ForceTests(ForkedWorkerTestCase):
    def test_who_is_deaf_is_ended_with_all_that_it_has_started(self):
        """
        The call for it comes at once, not with the next look a minute later; and what waits
        behind it is given back as if nothing had been.
        """
        self.submit("deaf", "deaf", {"loose": True})
        self.submit("behind", "report")
        self.worker(Limited, TASK_HEARTBEAT_INTERVAL=60, TASK_PREFETCH=1)
        pids = [int(pid) for pid in self.note("deaf").split()]
        self.assertEqual([is_alive(pid) for pid in pids], [True] * 4)
        self.assertFalse(Queue()["deaf"].cancel_request())

        self.wait_for_status("deaf", "cancelled")
        self.wait_for_status("behind", "finished")
        self.assertEqual([is_alive(pid) for pid in pids], [False] * 4)
        self.assertIn("processor was killed", DeadLetter.objects.get().message)
        self.assertFalse(Attempt.objects.exclude(task__key="deaf").exists())
        self.assertIn(
            "A handler exceeds its time limit; its processor will be killed", self.log.read_text()
        )

    def test_who_is_deaf_and_has_no_supervisor_left_is_ended_all_the_same(self):
        """
        Else it would go on for ever, with a lease that is renewed for ever.
        """
        self.submit("deaf", "deaf")
        worker = self.worker(Limited)
        pids = [int(pid) for pid in self.note("deaf").split()]
        os.kill(worker.pid, signal.SIGKILL)
        Queue()["deaf"].cancel_request()

        def gone():
            return not any(is_alive(pid) for pid in pids)

        wait_until(gone, within=SLOW_MACHINE)
        self.assertIn("A handler exceeds its time limit", self.log.read_text())

    def test_who_keeps_pythons_lock_is_ended_when_its_time_is_up(self):
        """
        No signal is handled there, no thread runs, and no one can be interrupted.
        """
        self.submit("locked", "locked")
        self.worker(Limited)
        self.wait_for_status("locked", "failed")
        letter = DeadLetter.objects.get()
        self.assertEqual((letter.group, letter.errors, letter.crashes), (TIMED_OUT, 1, 0))

    def test_a_coroutine_that_blocks_its_loop_is_ended(self):
        self.end_blocking("process")

    def test_so_is_one_that_blocks_the_loop_of_others(self):
        self.end_blocking("async")

    def end_blocking(self, type_):
        self.submit("blocking", "blocking")
        self.submit("behind", "report")
        self.worker(Limited, PROCESSOR_TYPE=type_)
        self.wait_for_status("blocking", "failed")
        self.wait_for_status("behind", "finished")
        self.assertEqual(DeadLetter.objects.get().group, TIMED_OUT)
