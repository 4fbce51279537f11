import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.core.management.color import no_style
from django.test import SimpleTestCase

from django_perfectqueue.application import Registry, TimeLimits
from django_perfectqueue.conf import Options
from django_perfectqueue.lib import processes
from django_perfectqueue.worker.database.link import Link
from django_perfectqueue.worker.launcher.generation import (
    SUPERVISOR,
    first_environment,
    spawned,
)
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process import signals
from django_perfectqueue.worker.process import signals as wakeup
from django_perfectqueue.worker.process.child import Child, fork, next_fork
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared.status import COUNTED, ProcessorStatus
from django_perfectqueue.worker.supervisor.places import Place, how_it_ended
from django_perfectqueue.worker.supervisor.supervisor import Supervisor

from ...waiting import wait_until

SILENT = Reporter(print, no_style(), 0)
PLAN = Plan(dispatch=Registry, queues=("default",), using="default", options=Options())


class WakeupTests(SimpleTestCase):
    def setUp(self):
        self.wakeup = Wakeup()
        self.addCleanup(self.wakeup.close)

    def test_a_ring_ends_the_waiting(self):
        threading.Timer(0.05, self.wakeup.wake).start()
        self.assertTrue(self.wakeup.wait(60))

    def test_a_ring_before_the_waiting_counts(self):
        self.wakeup.wake()
        self.assertTrue(self.wakeup.wait(60))
        self.assertFalse(self.wakeup.wait(0))

    def test_any_number_of_rings_is_one(self):
        for _ring in range(100_000):
            self.wakeup.wake()
        self.assertTrue(self.wakeup.wait(0))
        self.assertFalse(self.wakeup.wait(0))

    def test_a_closed_end_is_reported_from_silence(self):
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self.assertEqual(wakeup.drain(read_fd), b"")
        os.close(write_fd)
        self.assertIsNone(wakeup.drain(read_fd))
        os.close(read_fd)


class ProcessorStatusTests(SimpleTestCase):
    def test_a_supervisor_reads_what_a_dead_processor_was_running(self):
        status = ProcessorStatus.shared(2)

        def live():
            status.count("finished", 3)
            status.begin(2**62, since=5.0, limits=TimeLimits(2.0, 0.5), index=1)
            os.kill(os.getpid(), signal.SIGKILL)

        child = fork(live)
        codes = []
        wait_until(lambda: codes.append(child.reap()) or codes[-1] is not None)
        self.assertEqual(codes[-1], -signal.SIGKILL)
        [task] = status.tasks
        self.assertEqual((task.task_id, task.since, task.kill_at), (2**62, 5.0, 7.5))
        self.assertEqual(status.totals()["finished"], 3)
        status.clear()
        self.assertEqual(status.tasks, [])


class ChildTests(SimpleTestCase):
    def test_what_a_child_has_started_goes_before_it_is_reaped(self):
        """
        Reaped, its id may be another's, and that one's group would be killed.
        """
        seen = []

        def look(group, signum):
            seen.append(os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT).si_pid)

        child = fork(lambda: 1)
        with mock.patch("django_perfectqueue.worker.process.child.send_to_group", look):
            wait_until(lambda: child.reap() == 1)
        self.assertEqual(seen, [child.pid])

    def test_what_a_child_that_ends_well_has_started_is_left(self):
        child = fork(lambda: 0)
        with mock.patch("django_perfectqueue.worker.process.child.send_to_group") as send:
            wait_until(lambda: child.reap() == 0)
        send.assert_not_called()


class NextForkTests(SimpleTestCase):
    def test_who_dies_young_again_and_again_is_replaced_later_and_later(self):
        """
        A worker that can't start must not eat the machine; one bad task must not stop it.
        """
        table = [(0, 0), (1, 0), (2, 5), (3, 10), (4, 20), (5, 40), (6, 60), (99, 60)]
        for deaths, wait in table:
            with self.subTest(deaths=deaths):
                self.assertEqual(next_fork(1000.0, deaths=deaths, limit=5.0), 1000.0 + wait)

    def test_a_limit_of_none_replaces_at_once(self):
        self.assertEqual(next_fork(1000.0, deaths=9, limit=0.0), 1000.0)


class TreeTests(SimpleTestCase):
    def test_descendants_come_youngest_first(self):
        rows = [(2, 1), (3, 2), (4, 2), (5, 3), (6, 9)]
        with mock.patch.object(processes, "processes", return_value=rows):
            self.assertEqual(processes.descendants(2), [5, 4, 3])

    def test_this_process_is_among_its_parents_descendants(self):
        self.assertIn(os.getpid(), processes.descendants(os.getppid()))

    def test_a_process_that_is_gone_is_no_error(self):
        child = fork(lambda: 0)
        wait_until(lambda: child.reap() is not None)
        processes.kill_tree(child.pid)


class ReopenTests(SimpleTestCase):
    def test_a_log_that_was_moved_away_is_begun_anew(self):
        """
        USR2 is what logrotate sends: the next line must be in the new file.
        """
        with TemporaryDirectory() as folder:
            path = Path(folder, "worker.log")
            handler = logging.FileHandler(path)
            logger = logging.getLogger("django_perfectqueue.rotated")
            logger.addHandler(handler)
            try:
                logger.error("before")
                path.rename(path.with_suffix(".1"))
                signals.reopen_logs()
                logger.error("after")
            finally:
                logger.removeHandler(handler)
                handler.close()
            self.assertEqual(path.read_text(), "after\n")
            self.assertEqual(path.with_suffix(".1").read_text(), "before\n")


class ReporterTests(SimpleTestCase):
    def setUp(self):
        self.lines = []

    def test_silence_is_silent(self):
        reporter = Reporter(self.lines.append, no_style(), verbosity=0)
        reporter.head("hello")
        reporter.summary(dict.fromkeys(COUNTED, 0), 1.0)
        self.assertEqual(self.lines, [])

    def test_a_summary_names_what_there_was(self):
        counts = dict.fromkeys(COUNTED, 0) | {"finished": 10, "cancelled": 1}
        Reporter(self.lines.append, no_style()).summary(counts, 2.0)
        self.assertEqual(
            self.lines,
            ["10 finished, 0 retried, 0 failed, 1 cancelled in 2.0 s (5.0 finished a second)"],
        )

    def test_a_reader_that_has_gone_ends_the_talking_and_not_the_work(self):
        def closed(text):
            raise BrokenPipeError

        reporter = Reporter(closed, no_style())
        reporter.say("hello")
        self.assertEqual(reporter.verbosity, 0)


class FailureTests(SimpleTestCase):
    def test_a_supervisor_that_fails_ends_with_an_error(self):
        """
        And leaves no process behind: its children would work without anyone to watch them.
        """
        supervisor = Supervisor(PLAN, SILENT, None)
        child = fork(lambda: time.sleep(600) or 0)
        place = Place(supervisor, "helper", lambda heartbeat_w: 0)
        place.child = child
        supervisor.places.append(place)
        before = {signum: signal.getsignal(signum) for signum in (*signals.ALL, signal.SIGCHLD)}
        self.addCleanup(lambda: [signal.signal(*pair) for pair in before.items()])
        with (
            mock.patch.object(supervisor, "work", side_effect=RuntimeError("as it should")),
            mock.patch("django_perfectqueue.worker.supervisor.supervisor.prepare_for_fork"),
            self.assertLogs("django_perfectqueue.supervisor", "CRITICAL"),
        ):
            self.assertEqual(supervisor.run(), 1)
        wait_until(lambda: child.reap() == -signal.SIGKILL)


class EarlyStopTests(SimpleTestCase):
    def test_a_stop_ends_who_does_not_hear_yet(self):
        """
        It has begun nothing, and may be waiting for a database that does not answer.
        """
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        generation = spawned([sys.executable, "-c", deaf], os.environ)
        self.addCleanup(generation.process.wait)
        self.addCleanup(generation.close)
        generation.send(signals.STOP)
        wait_until(lambda: generation.code() == 0)

    def test_who_hears_is_notified_and_not_killed(self):
        hearing = (
            "import os, signal, socket; ours = socket.socket(fileno=int(os.environ['FD']));"
            "signal.signal(15, lambda *_: os._exit(7)); ours.send(b'h'); signal.pause()"
        )
        code = f"import os; os.environ['FD'] = os.environ['{SUPERVISOR}']; {hearing}"
        generation = spawned([sys.executable, "-c", code], os.environ)
        self.addCleanup(generation.close)
        wait_until(lambda: generation.listen() or generation.hears)
        generation.send(signals.STOP)
        wait_until(lambda: generation.code() == 7)


class ReadyTests(SimpleTestCase):
    def test_a_generation_takes_over_when_its_processors_have_looked(self):
        """
        Where one of them can't, the first is enough after a while.
        """
        options = Options().replace(PROCESSORS=2)
        plan = Plan(dispatch=Registry, queues=("default",), using="default", options=options)
        supervisor = Supervisor(plan, SILENT, None)
        first, second = supervisor.statuses
        now = 1000.0
        self.assertFalse(supervisor.are_serving(now))
        now += 100
        self.assertFalse(supervisor.are_serving(now))
        first.serves = True
        self.assertFalse(supervisor.are_serving(now))
        now += 5
        self.assertTrue(supervisor.are_serving(now))
        first.sign_on()
        self.assertFalse(supervisor.are_serving(now))
        for status in (first, second):
            status.serves = True
        supervisor.serving_since = now
        self.assertTrue(supervisor.are_serving(now))


class PlaceTests(SimpleTestCase):
    def place(self):
        supervisor = Supervisor(PLAN, SILENT, None)
        self.addCleanup(os.close, supervisor.parent_alive)
        self.addCleanup(supervisor.close_in_child)
        return Place(supervisor, "helper", lambda heartbeat_w: 1)

    def test_one_that_can_not_live_is_replaced_later_and_later(self):
        place, pauses, now = self.place(), [], 1000.0
        for _death in range(4):
            with mock.patch.object(place.supervisor, "fork", self.dead(now)):
                place.fill(now)
            with self.assertLogs("django_perfectqueue.supervisor", "ERROR"):
                place.reap(now + 1)
            pauses.append(place.next_at - now)
            now = max(now + 1, place.next_at)
        self.assertEqual(pauses, [0.0, 5.0, 10.0, 20.0])

    def dead(self, now):
        """Return what forks a process that dies at once."""
        child = mock.Mock(born=now, killed=False, heartbeat_r=os.open(os.devnull, os.O_RDONLY))
        child.reap.return_value = 1
        return lambda name, body: child

    def test_one_for_which_there_is_no_room_is_tried_again(self):
        place, refused = self.place(), mock.Mock(side_effect=BlockingIOError("no room"))
        with (
            mock.patch.object(place.supervisor, "fork", refused),
            self.assertLogs("django_perfectqueue.supervisor", "ERROR"),
        ):
            place.fill(1000.0)
        self.assertEqual((place.child, place.next_at), (None, 1005.0))


class PressTests(SimpleTestCase):
    def test_who_is_asked_to_stop_is_notified_again_and_at_last_killed(self):
        """
        At the limit, however seldom it learns the count; and then again and again.
        """
        for interval, expected in (
            (2.0, ["2 TERM", "4 TERM", "5 kill", "7 kill"]),
            (9.0, ["5 kill"]),
        ):
            with self.subTest(interval=interval):
                self.assertEqual(self.pressed(interval=interval, limit=5.0), expected)
        self.assertEqual(self.pressed(interval=3.0, limit=None), ["3 TERM", "6 TERM"])

    def pressed(self, *, interval, limit):
        child, said = Child(1, stopping_since=1000.0, signalled_at=1000.0), []
        module = "django_perfectqueue.worker.process.child."
        for second in range(9):
            now = 1000.0 + second
            with (
                mock.patch(module + "send") as send,
                mock.patch(module + "kill_tree") as kill,
                mock.patch(module + "time.monotonic", return_value=now),
            ):
                child.press(now, interval=interval, limit=limit)
            said += [f"{second} TERM"] * send.call_count + [f"{second} kill"] * kill.call_count
        return said


class WordsTests(SimpleTestCase):
    def test_how_a_processor_ended_is_reported_in_words(self):
        self.assertEqual(how_it_ended(-9), "Its processor was ended by SIGKILL.")
        self.assertEqual(how_it_ended(1), "Its processor ended with exit code 1.")
        self.assertEqual(
            how_it_ended(-9, silence=60.4), "Its processor was silent for 60 s, and was killed."
        )

    def test_the_first_environment_has_what_this_process_was_given(self):
        self.assertEqual(first_environment().get("PATH"), os.environ.get("PATH"))

    def test_the_first_environment_has_nothing_of_what_came_since(self):
        """
        A restart reads .env anew; what the old generation read of it must not stand in the way.
        """
        os.environ["PERFECTQUEUE_CAME_LATER"] = "yes"
        self.addCleanup(os.environ.pop, "PERFECTQUEUE_CAME_LATER")
        if Path("/proc/self/environ").exists():
            self.assertNotIn("PERFECTQUEUE_CAME_LATER", first_environment())


class LinkTests(SimpleTestCase):
    def test_the_first_new_try_comes_at_once_and_the_others_later_and_later(self):
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        link = Link("default", wakeup, lambda: float("inf"))
        first, *pauses = [link.pause() for _try in range(9)]
        self.assertEqual(first, 0.0)
        for pause, longest in zip(pauses, (0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0), strict=True):
            self.assertLessEqual(pause, longest)
            self.assertGreaterEqual(pause, longest / 2)
