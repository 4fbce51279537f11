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

from django.utils.translation import gettext as _

from django_perfectqueue.lib.processes import adopt_orphans, reap_orphans, send

from ..database.link import close_for_fork
from ..helpers.janitor import Janitor
from ..helpers.listener import Listener
from ..helpers.probe_server import Receptionist
from ..helpers.registration import Presence, registration
from ..helpers.reloader import Watch, Watcher
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
    RESTART,
    RESTART_NOW,
    STOP,
    STOP_NOW,
    Mailbox,
    reopen_logs,
)
from ..process.stack_dump import Stacks
from ..process.wakeup import drain, readable
from ..report import Reporter
from ..shared.status_page import StatusPage, path_for
from .forks import Forks
from .helper_slot import Helpers, HelperSlot
from .processors import Processors

logger = logging.getLogger("django_perfectqueue.supervisor")

TICK = 0.5


class Supervisor:
    """
    Keeps PROCESSORS processors, a listener and a janitor alive until it is to stop.

    It has one thread and no connection to the database, so it may fork at any time and
    is never held up.
    """

    def __init__(self, plan: Plan, reporter: Reporter, launcher: socket.socket | None) -> None:
        self.plan = plan
        self.options = plan.options
        self.reporter = reporter
        self.launcher = launcher
        self.launcher_pid = os.getppid()
        if launcher is not None:
            launcher.setblocking(False)
        self.mailbox = Mailbox()
        self.lifeline, self.hold = os.pipe()
        os.set_blocking(self.lifeline, False)
        self.forks = Forks(plan)
        self.forks.closers += [
            lambda: os.close(self.hold),
            self.mailbox.forget,
            self.close_launcher,
        ]
        self.helpers = Helpers(plan, reporter, self.forks)
        self.processors = Processors(
            plan, reporter, self.forks, self.helpers.give_back, lifeline=self.lifeline
        )
        self.board = StatusPage(path_for(os.getpid()))
        self.stacks = Stacks()
        self.helpers.slots = self.needed_helpers()
        self.stopping = False
        self.now = self.watched_at = time.monotonic()

    def needed_helpers(self) -> list[HelperSlot]:
        limit = self.options.CHILD_FORK_FREQUENCY_LIMIT
        worker = registration(self.plan)
        slots, wakeups = self.processors.slots, self.processors.wakeups

        def tidy() -> int:
            presence = Presence(worker, self.board, slots)
            return Janitor(self.plan, wakeups, presence, lifeline=self.lifeline).run()

        def listen() -> int:
            return Listener(self.plan, wakeups, lifeline=self.lifeline).run()

        def answer() -> int:
            return Receptionist(self.plan, self.board, lifeline=self.lifeline).run()

        found = [HelperSlot("janitor", tidy, limit, lasting=True)]
        if not self.plan.burst:
            found.insert(0, HelperSlot("listener", listen, limit))
        if self.plan.reload and not self.plan.burst:
            found.append(HelperSlot("watcher", self.watching(), limit))
        if self.plan.health is not None:
            found.append(HelperSlot("receptionist", answer, limit, lasting=True))
        return found

    def watching(self) -> Body:
        """Return what asks the launcher for a restart when the code has changed since now."""
        watch = Watch()

        def restart(file: Path) -> None:
            self.reporter.say(_("%s has changed; the worker starts anew.") % file)
            send(self.launcher_pid, RESTART)

        return lambda: Watcher(watch, restart, lifeline=self.lifeline).run()

    def run(self) -> int:
        """Work until it is to stop, or in a burst until all is done; return the exit code."""
        began = time.monotonic()
        self.mailbox.open(signal.SIGCHLD)
        self.tell_launcher(HEARS)
        adopt_orphans()
        # What is there now stays for good: children share its memory as long as no one writes.
        gc.collect()
        gc.freeze()
        try:
            port = self.plan.health[1] if self.plan.health else 0
            self.board.introduce(os.getpid(), os.getppid(), port)
            close_for_fork()
            self.work()
        except Exception:
            logger.critical("The supervisor failed.", exc_info=True)
            return 1
        finally:
            self.close()
            self.reporter.summary(self.processors.totals(), time.monotonic() - began)
        return 0

    def work(self) -> None:
        ready = False
        while True:
            self.now = time.monotonic()
            self.show()
            self.obey(self.mailbox.read())
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
        """Show outside how the worker stands."""
        self.board.turn(len(self.processors.children))
        output.push()
        self.board.status.dropped = output.dropped.total()

    def obey(self, signals: Iterable[signal.Signals]) -> None:
        for signum in signals:
            if signum in (STOP, DETACH):
                self.stop()
            elif signum == STOP_NOW:
                self.stop(now=True)
            elif signum in (RESTART, RESTART_NOW):
                # Others take the places of those that end.
                self.processors.stop(now=signum == RESTART_NOW)
            elif signum == REOPEN_LOGS:
                self.reopen_logs()
            elif signum == DUMP:
                self.stacks.ask(self.titles())

    def stop(self, *, now: bool = False) -> None:
        if not self.stopping:
            self.reporter.say(_("Stopping at once.") if now else self.farewell())
        self.stopping = True
        self.board.leave()
        self.processors.stop(now=now)
        self.helpers.stop()

    def farewell(self) -> str:
        if not any(tenure.slot.tasks for tenure in self.processors.tenures):
            return _("Stopping.")
        return (
            _("Stopping once the running tasks have ended. To end them at once: kill -QUIT %d")
            % os.getpid()
        )

    def reopen_logs(self) -> None:
        reopen_logs()
        for child in self.forks.children:
            send(child.pid, REOPEN_LOGS)

    def titles(self) -> Iterator[tuple[int, str]]:
        """Yield the pid of each process, and what it is and does."""
        yield from self.processors.titles(self.now)
        for name, child in self.helpers.named():
            yield child.pid, f"{name.capitalize()}, pid {child.pid}:"

    def reap(self) -> None:
        self.helpers.reap(self.now)
        self.processors.reap(self.now, stopping=self.stopping)
        reap_orphans(self.forks.pids())

    def watch(self) -> None:
        """
        See who is alive, and end who has not been heard of for too long.

        Where the whole machine stood still, nobody is blamed for that silence.
        """
        longest = max(self.options.CHILD_HEARTBEAT_LIMIT / 2, 4 * TICK)
        frozen = self.now - self.watched_at > longest
        self.watched_at = self.now
        self.processors.watch(self.now, frozen=frozen)
        if self.stopping:
            for child in self.helpers.undertakers:
                child.stop()
        self.helpers.watch(self.now, frozen=frozen)

    def fill(self) -> None:
        """Fork what is missing, unless it is too early."""
        if self.plan.burst and self.helpers.undertakers:
            return
        if not self.stopping:
            self.processors.fill(self.now)
        if not self.stopping or self.processors.tenures:
            self.helpers.fill(self.now, only_lasting=self.stopping)

    def is_over(self) -> bool:
        if self.processors.tenures or self.helpers.undertakers:
            return False
        if not self.stopping:
            if not self.processors.are_all_vacant():
                return False
            self.stopping = True
        self.helpers.stop(lasting=True)
        return self.helpers.are_gone()

    def wait(self) -> None:
        heartbeats = [tenure.heartbeat for tenure in self.processors.tenures]
        launcher = -1 if self.launcher is None else self.launcher.fileno()
        files = [self.mailbox.ear, *heartbeats, *([launcher] if self.launcher else [])]
        if launcher in readable(files, self.pause()):
            if drain(launcher) is None:
                self.lose_launcher()
            else:
                self.tell_launcher(ALIVE)

    def pause(self) -> float:
        due = [*self.processors.due(), *self.stacks.due()]
        return max(0.01, min([TICK, *(at - self.now for at in due if at > self.now)]))

    def tell_launcher(self, word: bytes) -> bool:
        """Say that tasks are being taken, or when asked that this process goes on."""
        if self.launcher is not None:
            try:
                self.launcher.send(word)
            except BlockingIOError:
                return False
            except OSError:
                self.lose_launcher()
        return True

    def lose_launcher(self) -> None:
        """Stop without it, unless it has left because this is to stop."""
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
        self.mailbox.close()
        self.board.close()
        os.close(self.hold)
        os.close(self.lifeline)
        self.close_launcher()
