"""The process that forks processors and helpers, watches them, and replaces them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from django_perfectqueue.lib.processes import adopt_orphans, reap_orphans, send

from ..database.link import prepare_for_fork
from ..helpers.janitor import Janitor
from ..helpers.listener import Listener
from ..helpers.registration import WorkerRegistration, registration_of
from ..plan import Plan
from ..process import output
from ..process.child import Body
from ..process.signals import (
    ALIVE,
    DETACH,
    DUMP,
    HEARS,
    READY,
    REOPEN_LOGS,
    REPLACED,
    RESTART,
    RESTART_NOW,
    STOP,
    STOP_NOW,
    SignalQueue,
    reopen_logs,
)
from ..process.stack_dump import StackDumps
from ..process.wakeup import drain, readable
from ..report import Reporter
from ..shared.status_page import StatusPage
from .forks import Forks
from .helper_slot import Helpers, HelperSlot
from .processors import Processors

logger = logging.getLogger("django_perfectqueue.supervisor")

TICK = 0.5
HELPERS_AFTER = 0.5
PROBES = "probe server"


class Supervisor:
    """
    Keeps PROCESSORS processors, a listener and a janitor running until a stop.

    It has one thread and no database connection, so it can fork at any time and never
    blocks.
    """

    def __init__(self, plan: Plan, reporter: Reporter, launcher: socket.socket | None) -> None:
        self.plan = plan
        self.options = plan.options
        self.reporter = reporter
        self.launcher = launcher
        self.launcher_pid = os.getppid()
        if launcher is not None:
            launcher.setblocking(False)
        self.signal_queue = SignalQueue()
        self.parent_alive, self.parent_alive_w = os.pipe()
        os.set_blocking(self.parent_alive, False)
        self.forks = Forks(plan)
        self.forks.closers += [
            lambda: os.close(self.parent_alive_w),
            self.signal_queue.forget,
            self.close_launcher,
        ]
        self.helpers = Helpers(plan, reporter, self.forks)
        self.processors = Processors(
            plan, reporter, self.forks, self.helpers.give_back, parent_alive=self.parent_alive
        )
        self.status_page = StatusPage()
        self.stacks = StackDumps()
        self.helpers.statuses = self.needed_helpers()
        self.stopping = False
        self.now = self.watched_at = self.began = time.monotonic()
        self.helped = False

    def needed_helpers(self) -> list[HelperSlot]:
        limit = self.options.CHILD_FORK_FREQUENCY_LIMIT
        worker = registration_of(self.plan)
        statuses, wakeups = self.processors.statuses, self.processors.wakeups

        def clean() -> int:
            registration = WorkerRegistration(worker, self.status_page, statuses)
            return Janitor(self.plan, wakeups, registration, parent_alive=self.parent_alive).run()

        def listen() -> int:
            return Listener(self.plan, wakeups, parent_alive=self.parent_alive).run()

        found = [HelperSlot("janitor", clean, limit, lasting=True)]
        if not self.plan.burst:
            found.insert(0, HelperSlot("listener", listen, limit))
        if self.plan.reload and not self.plan.burst:
            found.append(HelperSlot("reloader", self.watching(), limit))
        if self.plan.health is not None:
            found.append(HelperSlot(PROBES, self.serving_probes(), limit, lasting=True))
        return found

    def serving_probes(self) -> Body:
        """Return the body of a probe server."""
        # Imported here, as few workers need it; before the fork, so that a restarted helper
        # runs the code with which the worker started.
        from ..helpers.probe_server import ProbeServer

        statuses, alive = self.processors.statuses, self.parent_alive
        return lambda: ProbeServer(self.plan, self.status_page, statuses, parent_alive=alive).run()

    def watching(self) -> Body:
        """Return the body of a reloader, which requests a restart for each change."""
        # Imported here, as workers in production do not need it.
        from ..helpers.reloader import Reloader, SourceFiles

        files = SourceFiles()

        def restart(file: Path) -> None:
            self.reporter.say(f"{file} has changed; the worker starts anew.")
            send(self.launcher_pid, RESTART)

        return lambda: Reloader(files, restart, parent_alive=self.parent_alive).run()

    def run(self) -> int:
        """Work until a stop, or in a burst until no task is due; return the exit code."""
        self.signal_queue.open(signal.SIGCHLD)
        self.tell_launcher(HEARS)
        adopt_orphans()
        # Frozen objects are not touched by the collector, so forks keep sharing their pages.
        gc.collect()
        gc.freeze()
        try:
            prepare_for_fork()
            self.work()
        except Exception:
            logger.critical("The supervisor failed.", exc_info=True)
            return 1
        finally:
            self.close()
            self.reporter.summary(self.processors.totals(), time.monotonic() - self.began)
        return 0

    def work(self) -> None:
        ready = False
        while True:
            self.now = time.monotonic()
            self.show()
            self.obey(self.signal_queue.read())
            self.stacks.go_on(self.now)
            self.reap()
            self.watch()
            self.fill()
            if not ready and self.processors.are_serving(self.now):
                ready = self.tell_launcher(READY)
            if self.is_over():
                return
            self.wait()

    def show(self) -> None:
        """Update the status that the probes read."""
        self.status_page.turn(len(self.processors.children))
        output.push()
        self.status_page.status.dropped = output.dropped.total()

    def obey(self, signals: Iterable[signal.Signals]) -> None:
        for signum in signals:
            if signum in (STOP, DETACH):
                if signum == DETACH:
                    self.give_up_port()
                self.stop()
            elif signum == STOP_NOW:
                self.stop(now=True)
            elif signum in (RESTART, RESTART_NOW):
                # fill() replaces them.
                self.processors.stop(now=signum == RESTART_NOW)
            elif signum == REOPEN_LOGS:
                self.reopen_logs()
            elif signum == DUMP:
                self.stacks.ask(self.titles())

    def stop(self, *, now: bool = False) -> None:
        if not self.stopping:
            self.reporter.say("Stopping at once." if now else self.farewell())
        self.stopping = True
        self.status_page.leave()
        self.processors.stop(now=now)
        self.helpers.stop()

    def give_up_port(self) -> None:
        """Leave the probes to the worker that follows, which may share the port."""
        self.helpers.retire(PROBES)

    def farewell(self) -> str:
        if not any(tenure.status.tasks for tenure in self.processors.tenures):
            return "Stopping."
        return (
            "Stopping once the running tasks have ended. To end them at once: kill -QUIT"
            f" {os.getpid()}"
        )

    def reopen_logs(self) -> None:
        reopen_logs()
        for child in self.forks.children:
            send(child.pid, REOPEN_LOGS)

    def titles(self) -> Iterator[tuple[int, str]]:
        """Yield pid and title of each process."""
        yield from self.processors.titles(self.now)
        for name, child in self.helpers.named():
            yield child.pid, f"{name.capitalize()}, pid {child.pid}:"

    def reap(self) -> None:
        self.helpers.reap(self.now)
        self.processors.reap(self.now, stopping=self.stopping)
        reap_orphans(self.forks.pids())

    def watch(self) -> None:
        """
        Kill processes without heartbeats.

        If the supervisor itself did not run for long, the machine was suspended: then no
        process is killed for its silence.
        """
        longest = max(self.options.CHILD_HEARTBEAT_LIMIT / 2, 4 * TICK)
        frozen = self.now - self.watched_at > longest
        self.watched_at = self.now
        self.processors.watch(self.now, frozen=frozen)
        if self.stopping:
            for child in self.helpers.reapers:
                child.stop()
        self.helpers.watch(self.now, frozen=frozen)

    def fill(self) -> None:
        """Fork missing processes whose restart is due."""
        if self.plan.burst and self.helpers.reapers:
            return
        if not self.stopping:
            self.processors.fill(self.now)
        if self.may_help() and (not self.stopping or self.processors.tenures):
            self.helpers.fill(self.now, only_lasting=self.stopping)

    def may_help(self) -> bool:
        """
        Return whether helpers may start: once a processor has looked for tasks, or after a
        moment, so that they do not slow the first task down.
        """
        self.helped = (
            self.helped
            or self.now - self.began >= HELPERS_AFTER
            or any(status.serves for status in self.processors.statuses)
        )
        return self.helped

    def is_over(self) -> bool:
        if self.processors.tenures or self.helpers.reapers:
            return False
        if not self.stopping:
            if not self.processors.are_all_vacant():
                return False
            self.stopping = True
        self.helpers.stop(lasting=True)
        return self.helpers.are_gone()

    def wait(self) -> None:
        heartbeats = [tenure.heartbeat_r for tenure in self.processors.tenures]
        launcher = -1 if self.launcher is None else self.launcher.fileno()
        files = [self.signal_queue.read_fd, *heartbeats, *([launcher] if self.launcher else [])]
        if launcher in readable(files, self.pause()):
            words = drain(launcher)
            if words is None:
                self.lose_launcher()
                return
            if REPLACED in words:
                self.give_up_port()
            self.tell_launcher(ALIVE)

    def pause(self) -> float:
        due = [*self.processors.due(), *self.stacks.due()]
        return max(0.01, min([TICK, *(at - self.now for at in due if at > self.now)]))

    def tell_launcher(self, word: bytes) -> bool:
        """Send a byte to the launcher; return False if its buffer is full."""
        if self.launcher is not None:
            try:
                self.launcher.send(word)
            except BlockingIOError:
                return False
            except OSError:
                self.lose_launcher()
        return True

    def lose_launcher(self) -> None:
        """Stop when the launcher dies, unless a stop is in progress."""
        self.close_launcher()
        if not self.stopping:
            logger.error("The launcher is gone; the worker stops.")
            self.stop()

    def close_launcher(self) -> None:
        if self.launcher is not None:
            self.launcher.close()
            self.launcher = None

    def close(self) -> None:
        for child in self.forks.children:
            child.kill()
        self.signal_queue.close()
        self.status_page.close()
        os.close(self.parent_alive_w)
        os.close(self.parent_alive)
        self.close_launcher()
