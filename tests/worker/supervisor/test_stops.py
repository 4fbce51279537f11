import os
import pty
import random
import signal
import time
from functools import partial
from pathlib import Path

from django.test import tag

from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.process.signals import (
    DETACH,
    REOPEN_LOGS,
    RESTART,
    RESTART_NOW,
    STOP,
    STOP_NOW,
)

from ...databases.lifetime import children
from ...waiting import wait_until
from ..workers import WorkerTestCase, is_alive


class StopTests(WorkerTestCase):
    def test_an_idle_worker_leaves_at_once(self):
        """
        A deployment stops many workers; each poll interval slept through adds up.
        """
        worker = self.worker(afresh=True, POLL_INTERVAL=60, CHILD_HEARTBEAT_INTERVAL=20).ready()
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(40), 0)
        self.assert_gone(worker)

    def test_term_lets_the_running_task_end_and_gives_the_others_back_at_once(self):
        """
        Another worker may run the others meanwhile; none of them counts an attempt.
        """
        for number in range(3):
            self.submit(f"k{number}")
        worker = self.worker(TASK_PREFETCH=2)
        self.wait_for_note("start")
        worker.send(signal.SIGTERM)
        wait_until(lambda: Queue().list().in_status("waiting").count() == 2)
        self.assertEqual(self.notes("end"), [])

        self.open_gate()
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertEqual([key for key, _pid in self.notes("end")], ["k0"])
        self.assertEqual(self.status("k0"), "finished")
        row = Queue()["k1"].metadata()
        self.assertEqual((row.ticket.errors, row.ticket.crashes), (0, 0))

    def test_quit_ends_everything_and_counts_nothing(self):
        """
        With the processor goes what its handler has started; the task comes back at once.
        """
        pid_file = self.folder / "pid"
        self.submit("k0", "offspring", data={"pid": str(pid_file)})
        worker = self.worker()
        self.wait_for_note("start")
        worker.send(signal.SIGQUIT)
        self.assertEqual(worker.wait(), 0, worker.errors)

        self.assertFalse(is_alive(int(pid_file.read_text())))
        self.assert_gone(worker)
        row = Queue()["k0"].metadata()
        self.assertEqual((row.status, row.ticket.crashes), ("waiting", 0))

    def test_int_detaches(self):
        """
        The service manager sees the command leave and may start the next release, while
        this one ends what it has begun.
        """
        self.submit("k0")
        worker = self.worker(DETACH_WAIT=0.2)
        self.wait_for_note("start")
        worker.send(signal.SIGINT)
        self.assertEqual(worker.wait(), 0)
        self.assertEqual(self.status("k0"), "running")
        self.assertTrue(worker.alive())

        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assert_gone(worker)

    def test_int_with_nothing_to_end_is_a_stop(self):
        worker = self.worker(DETACH_WAIT=60).ready()
        worker.send(signal.SIGINT)
        self.assertEqual(worker.wait(), 0)
        self.assert_gone(worker)

    def test_a_stop_that_takes_too_long_becomes_a_kill(self):
        """
        Of all that there is below it: of who ignores every signal, and of its children.
        """
        pid_file = self.folder / "pid"
        self.submit("k0", "deaf", data={"pid": str(pid_file)})
        worker = self.worker(CHILD_GRACEFUL_KILL_LIMIT=0.5, CHILD_KILL_INTERVAL=60)
        deaf = self.wait_for_note("start")
        family = [deaf, *map(int, pid_file.read_text().split())]
        self.assertEqual(len(family), 3)
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertLess(time.monotonic() - began, 40)
        self.assertFalse(any(map(is_alive, family)))
        self.assertEqual(self.status("k0"), "waiting")


@tag("any-database")
class EarlyTests(WorkerTestCase):
    """Signals that come at a moment of the start that is another with each run."""

    def send_early(self, *signals):
        """Return a worker that got these, its first supervisor, and when it got them."""
        moments = sorted((random.uniform(0.0, 0.6), signum) for signum in signals)
        worker = self.worker()
        wait_until(lambda: children(worker.process.pid))
        first, began = worker.supervisor, time.monotonic()
        for moment, signum in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            worker.send(signum)
        return worker, first, moments

    def test_a_stop_counts(self):
        worker, _first, moments = self.send_early(random.choice([STOP, STOP_NOW, DETACH]))
        with self.subTest(moments=moments):
            self.assertEqual(worker.wait(), 0)
            self.assert_gone(worker)

    def test_a_stop_counts_at_any_moment(self):
        """
        Also while Python loads: then the signal ends it, and nothing has begun.
        """
        self.stop_at_any_moment(rounds=1)

    @tag("thorough")
    def test_a_stop_counts_at_many_moments(self):
        self.stop_at_any_moment(rounds=5)

    def stop_at_any_moment(self, rounds):
        for _round in range(rounds):
            started = [self.worker_and_stop() for _worker in range(5)]
            for worker, stop, after in started:
                with self.subTest(stop=stop.name, after=after):
                    self.assertIn(worker.wait(), (0, -stop))
                    self.assert_gone(worker)
                    self.assertNotIn("Traceback", worker.errors)
                    self.assertNotIn("Exception ignored", worker.errors)

    def worker_and_stop(self):
        """Start a worker and stop it at some moment from when it has read its settings."""
        stop, after = random.choice([STOP, STOP_NOW, DETACH]), random.uniform(0.0, 1.2)
        # A shell has what it starts in the background ignore two of them.
        before = signal.getsignal(stop)
        signal.signal(stop, random.choice([before, signal.SIG_IGN]))
        try:
            worker = self.worker()
        finally:
            signal.signal(stop, before)
        wait_until(lambda: Path(f"{worker.settings}.read").exists())
        time.sleep(after)
        worker.send(stop)
        return worker, stop, after

    def test_a_restart_counts(self):
        restart = random.choice([RESTART, RESTART_NOW])
        worker, first, moments = self.send_early(REOPEN_LOGS, restart)
        with self.subTest(moments=moments):
            wait_until(lambda: set(children(worker.process.pid)) - {first})
            wait_until(lambda: len(children(worker.process.pid)) == 1)
            self.assertNotEqual(worker.supervisor, first)
            self.assertTrue(worker.ready())


@tag("any-database")
class TerminalTests(WorkerTestCase):
    """Started by hand, a worker does what people expect of their keys."""

    def setUp(self):
        super().setUp()
        self.ours, self.theirs = pty.openpty()
        self.addCleanup(os.close, self.ours)
        self.addCleanup(os.close, self.theirs)

    def test_ctrl_c_leaves_nothing_in_the_background(self):
        self.submit("k0")
        worker = self.worker(stdin=self.theirs, DETACH_WAIT=0)
        self.wait_for_note("start")
        worker.send(signal.SIGINT)
        wait_until(lambda: "Ctrl-C again" in worker.output)
        wait_until(lambda: "Stopping once" in worker.output)
        self.assertNotIn("background", worker.output)

        self.open_gate()
        self.assertEqual(worker.wait(), 0)
        self.assertEqual(self.status("k0"), "finished")
        self.assertNotIn("background", worker.output)

    def test_a_second_ctrl_c_ends_what_is_running(self):
        self.submit("k0")
        worker = self.worker(stdin=self.theirs)
        self.wait_for_note("start")
        worker.send(signal.SIGINT)
        wait_until(lambda: "Ctrl-C again" in worker.output)
        self.assertEqual(self.status("k0"), "running")
        worker.send(signal.SIGINT)
        self.assertEqual(worker.wait(), 0)
        self.assert_gone(worker)
        self.assertEqual(self.status("k0"), "waiting")

    def test_a_terminal_that_is_closed_stops_it(self):
        worker = self.worker(stdin=self.theirs).ready()
        worker.send(signal.SIGHUP)
        self.assertEqual(worker.wait(), 0)
        self.assert_gone(worker)


class RestartTests(WorkerTestCase):
    def test_no_restart_undoes_a_stop(self):
        self.submit("k0")
        worker = self.worker()
        self.wait_for_note("start")
        worker.send(signal.SIGTERM)
        wait_until(lambda: "Stopping once" in worker.output)
        worker.send(signal.SIGHUP)
        self.open_gate()
        self.assertEqual(worker.wait(), 0)
        self.assert_gone(worker)
        self.assertEqual(len(self.notes("start")), 1)

    def test_usr1_starts_new_code_and_settings_while_old_tasks_end(self):
        """
        With as many processors as the new settings say, more or fewer; what only the new
        code knows has waited for it.
        """
        old_code = {"DISPATCH": "tests.tasks.SampleDispatch", "RETRY_WAIT": 0.1}
        self.submit("k0")
        self.submit("k1", "note")
        worker = self.worker(PROCESSORS=2, **old_code)
        old = self.wait_for_note("start")
        wait_until(lambda: "No handler for tasks of this type" in worker.errors)
        worker.configure(PROCESSORS=3, RETRY_WAIT=0.1)
        worker.send(signal.SIGUSR1)
        self.wait_for_status("k1", "finished")
        self.assertTrue(is_alive(old))
        self.assertEqual(self.status("k0"), "running")
        self.assertEqual(len(worker.processors()), 2 + 3)

        worker.configure(PROCESSORS=1)
        worker.send(signal.SIGUSR1)
        wait_until(lambda: sum(map(is_alive, worker.processors())) == 1 + 1)
        self.assertEqual(len(worker.processors()), 2 + 3 + 1)
        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assertEqual(self.notes("end"), [("k0", old)])
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)

    def test_hup_does_not_wait_for_old_tasks(self):
        self.submit("k0")
        worker = self.worker()
        old = self.wait_for_note("start")
        worker.send(signal.SIGHUP)
        new = self.wait_for_note("start", 2)
        self.assertNotEqual(old, new)
        self.assertFalse(is_alive(old))
        self.assertEqual(Queue()["k0"].metadata().ticket.crashes, 0)

    def test_a_restart_that_fails_changes_nothing(self):
        """
        A release that can't start must not take the running one down.
        """
        worker = self.worker().ready()
        worker.configure(PROCESSORS="many")
        worker.send(signal.SIGUSR1)
        wait_until(lambda: "The restart failed" in worker.errors)
        self.submit("k0", "note")
        self.wait_for_status("k0", "finished")
        self.assertEqual(self.notes("ran")[0][1], worker.processors()[0])

    def test_the_supervisor_itself_replaces_its_processors(self):
        worker = self.worker().ready()
        os.kill(worker.supervisor, signal.SIGUSR1)
        wait_until(lambda: len(worker.processors()) == 2)
        self.submit("k0", "note")
        self.wait_for_status("k0", "finished")
        self.assertEqual(self.notes("ran")[0][1], worker.processors()[1])

    def test_usr2_reopens_logs_and_disturbs_no_task(self):
        log = self.folder / "worker.log"
        self.submit("k0")
        worker = self.worker(LOG=str(log))
        pid = self.wait_for_note("start")
        log.rename(Path(f"{log}.1"))
        worker.send(signal.SIGUSR2)
        wait_until(log.exists)
        for process in (worker.process.pid, worker.supervisor, worker.helper(), pid):
            wait_until(partial(has_open, process, log))

        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assertEqual(self.notes("end"), [("k0", pid)])


def has_open(pid, path):
    return str(path) in [os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
