import logging
import os
import signal
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.core.management.color import no_style
from django.test import SimpleTestCase

from django_perfectqueue.application import TimeLimits
from django_perfectqueue.runtime import bell, signals, tree
from django_perfectqueue.runtime.bell import Bell
from django_perfectqueue.runtime.child import fork, next_fork
from django_perfectqueue.runtime.database import Link
from django_perfectqueue.runtime.launcher import first_environment
from django_perfectqueue.runtime.report import Reporter, in_parts
from django_perfectqueue.runtime.slate import Slate
from django_perfectqueue.runtime.supervisor import how_it_ended

from ..waiting import wait_until


class BellTests(SimpleTestCase):
    def setUp(self):
        self.bell = Bell()
        self.addCleanup(self.bell.close)

    def test_a_ring_ends_the_waiting(self):
        threading.Timer(0.05, self.bell.ring).start()
        self.assertTrue(self.bell.wait(60))

    def test_a_ring_before_the_waiting_counts(self):
        self.bell.ring()
        self.assertTrue(self.bell.wait(60))
        self.assertFalse(self.bell.wait(0))

    def test_any_number_of_rings_is_one(self):
        for _ring in range(100_000):
            self.bell.ring()
        self.assertTrue(self.bell.wait(0))
        self.assertFalse(self.bell.wait(0))

    def test_a_closed_end_is_told_from_silence(self):
        ear, cord = os.pipe()
        os.set_blocking(ear, False)
        self.assertEqual(bell.drain(ear), b"")
        os.close(cord)
        self.assertIsNone(bell.drain(ear))
        os.close(ear)


class SlateTests(SimpleTestCase):
    def test_a_supervisor_reads_what_a_dead_processor_was_running(self):
        slate = Slate(seats=2)
        self.addCleanup(slate.close)

        def live():
            slate.count("finished", 3)
            slate.begin(2**62, since=5.0, limits=TimeLimits(2.0, 0.5), seat=1)
            os.kill(os.getpid(), signal.SIGKILL)

        child = fork(live)
        codes = []
        wait_until(lambda: codes.append(child.reap()) or codes[-1] is not None)
        self.assertEqual(codes[-1], -signal.SIGKILL)
        self.assertEqual(slate.begun, [(2**62, 5.0, 7.5)])
        self.assertEqual(slate.counts()["finished"], 3)
        slate.clear()
        self.assertEqual(slate.begun, [])


class ChildTests(SimpleTestCase):
    def test_what_a_child_has_started_goes_before_it_is_reaped(self):
        """
        Reaped, its id may be another's, and that one's group would be killed.
        """
        seen = []

        def look(group, signum):
            seen.append(os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT).si_pid)

        child = fork(lambda: 1)
        with mock.patch("django_perfectqueue.runtime.child.send_to_group", look):
            wait_until(lambda: child.reap() == 1)
        self.assertEqual(seen, [child.pid])

    def test_what_a_child_that_ends_well_has_started_is_left(self):
        child = fork(lambda: 0)
        with mock.patch("django_perfectqueue.runtime.child.send_to_group") as send:
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
        with mock.patch.object(tree, "processes", return_value=rows):
            self.assertEqual(tree.descendants(2), [5, 4, 3])

    def test_this_process_is_among_its_parents_descendants(self):
        self.assertIn(os.getpid(), tree.descendants(os.getppid()))

    def test_a_process_that_is_gone_is_no_error(self):
        child = fork(lambda: 0)
        wait_until(lambda: child.reap() is not None)
        tree.kill_tree(child.pid)


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
        reporter.summary(dict.fromkeys(Slate().places, 0), 1.0)
        self.assertEqual(self.lines, [])

    def test_a_summary_names_what_there_was(self):
        counts = dict.fromkeys(Slate().places, 0) | {"finished": 10, "cancelled": 1}
        Reporter(self.lines.append, no_style()).summary(counts, 2.0)
        self.assertEqual(
            self.lines,
            ["10 finished, 0 retried, 0 failed, 1 cancelled in 2.0 s (5.0 finished a second)"],
        )

    def test_lines_are_written_in_pieces_that_a_pipe_keeps_whole(self):
        parts = list(in_parts(["x" * 1000] * 9))
        self.assertEqual([part.count("\n") + 1 for part in parts], [4, 4, 1])

    def test_a_reader_that_has_gone_ends_the_talking_and_not_the_work(self):
        def closed(text):
            raise BrokenPipeError

        reporter = Reporter(closed, no_style())
        reporter.say("hello")
        self.assertEqual(reporter.verbosity, 0)


class WordsTests(SimpleTestCase):
    def test_how_a_processor_ended_is_told_in_words(self):
        self.assertEqual(how_it_ended(-9), "Its processor was ended by SIGKILL.")
        self.assertEqual(how_it_ended(1), "Its processor ended with exit code 1.")
        self.assertEqual(
            how_it_ended(-9, silence=60.4), "Its processor stood still for 60 s, and was killed."
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
        bell = Bell()
        self.addCleanup(bell.close)
        link = Link("default", bell, lambda: float("inf"))
        first, *pauses = [link.pause() for _try in range(9)]
        self.assertEqual(first, 0.0)
        for pause, longest in zip(pauses, (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0), strict=True):
            self.assertLessEqual(pause, longest)
            self.assertGreaterEqual(pause, longest / 2)
