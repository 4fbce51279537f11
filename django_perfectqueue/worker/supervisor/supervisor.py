"""The process that forks processors and helpers, watches them, and replaces them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from django_perfectqueue.lib.processes import adopt_orphans, reap_orphans, send

from ..database.link import prepare_for_fork
from ..helpers.base import Helper, HelperProcess
from ..helpers.janitor import Janitor
from ..helpers.listener import Listener
from ..helpers.reaper import Leftovers, Reaper
from ..helpers.registration import WorkerRegistration, registration_of
from ..plan import Plan
from ..process import output, signals
from ..process.child import Child, fork, set_title
from ..report import Reporter
from ..shared.status import COUNTED, Wakeups, WorkerStatus
from .places import Body, Place, ProcessorPlace

logger = logging.getLogger("django_perfectqueue.supervisor")

TICK = 0.5
HELPERS_AFTER = 0.5
ENOUGH_AFTER = 5.0
PROBES, REAPER = "probe server", "reaper"


class Supervisor:
    """
    Keeps PROCESSORS processors, a listener and a janitor running until a stop.

    It has one thread and no database connection, so it can fork at any time and never
    blocks. The pipe ``parent_alive`` is closed at its death.
    """

    def __init__(self, plan: Plan, reporter: Reporter, launcher: socket.socket | None) -> None:
        self.plan = plan
        self.options = plan.options
        self.reporter = reporter
        self.stopping = False
        self.parent_alive, self.parent_alive_w = os.pipe()
        os.set_blocking(self.parent_alive, False)
        self.launcher = launcher
        self.launcher_pid = os.getppid()
        if launcher is not None:
            launcher.setblocking(False)
        self.signal_queue = signals.SignalQueue()
        numbers = range(1, plan.options.PROCESSORS + 1)
        self.processors = [ProcessorPlace(self, number) for number in numbers]
        self.statuses = [place.status for place in self.processors]
        self.wakeups = Wakeups(
            [(place.status, place.wakeup) for place in self.processors], self.options.SHORT_TASK
        )
        self.worker_status = WorkerStatus.shared(self.statuses)
        self.places: list[Place] = [*self.processors, *self.needed_helpers()]
        self.stacks = signals.StackDumps()
        self.serving_since: float | None = None
        self.now = self.watched_at = self.began = time.monotonic()

    def needed_helpers(self) -> list[Place]:
        plan, status, wakeups = self.plan, self.worker_status, self.wakeups
        registration = WorkerRegistration(registration_of(plan), status)

        def of_all() -> list[Helper]:
            janitor = Janitor(plan, wakeups, registration)
            return [janitor] if plan.burst else [Listener(plan, wakeups, status), janitor]

        found = [self.helper("helper", of_all, lasting=True)]
        # Imported here, as few workers need them; before the fork, so that a restarted helper
        # runs the code with which the worker started.
        if plan.reload and not plan.burst:
            from ..helpers.reloader import Reloader, SourceFiles

            files = SourceFiles()
            found.append(self.helper("reloader", lambda: [Reloader(plan, files, self.restart_for)]))
        if plan.health is not None:
            from ..helpers.probe_server import ProbeServer

            found.append(self.helper(PROBES, lambda: [ProbeServer(plan, status)], lasting=True))
        return found

    def restart_for(self, file: Path) -> None:
        """Request a restart; for the reloader."""
        self.reporter.say(f"{file} has changed; the worker restarts.")
        send(self.launcher_pid, signals.RESTART)

    def run(self) -> int:
        """Work until a stop, or in a burst until no task is due; return the exit code."""
        self.signal_queue.open()
        self.tell_launcher(signals.HEARS)
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
            self.reporter.summary(self.totals(), time.monotonic() - self.began)
        return 0

    def work(self) -> None:
        ready = False
        while True:
            self.now = time.monotonic()
            self.show()
            self.obey(self.signal_queue.read())
            self.stacks.go_on(self.now)
            self.reap(self.now)
            self.watch()
            if not ready and self.are_serving(self.now):
                ready = self.tell_launcher(signals.READY)
            self.fill()
            if self.is_over():
                return
            self.wait()

    def show(self) -> None:
        """Update the status that the probes read."""
        self.worker_status.turn(self.count_processors())
        output.push()
        self.worker_status.dropped = sum(output.dropped)

    def obey(self, arrived: Iterable[signal.Signals]) -> None:
        for signum in arrived:
            if signum in (signals.STOP, signals.DETACH):
                if signum == signals.DETACH:
                    self.give_up_port()
                self.stop()
            elif signum == signals.STOP_NOW:
                self.stop(now=True)
            elif signum in (signals.RESTART, signals.RESTART_NOW):
                # fill() replaces them.
                self.stop_processors(now=signum == signals.RESTART_NOW)
            elif signum == signals.REOPEN_LOGS:
                signals.reopen_logs()
                for child in self.alive:
                    send(child.pid, signum)
            elif signum == signals.DUMP:
                self.stacks.ask(
                    (place.child.pid, place.title(self.now)) for place in self.places if place.child
                )

    def stop(self, *, now: bool = False) -> None:
        if not self.stopping:
            self.reporter.say("Stopping at once." if now else self.farewell())
        self.stopping = True
        self.worker_status.leaving = True
        self.stop_processors(now=now)

    def stop_processors(self, *, now: bool) -> None:
        for place in self.processors:
            place.stop(now=now)

    def give_up_port(self) -> None:
        """Leave the probes to the worker that follows, which may share the port."""
        for place in self.places:
            if place.name == PROBES:
                place.vacant = True
                place.stop()

    def farewell(self) -> str:
        if not self.wakeups.is_at_work():
            return "Stopping."
        return (
            "Stopping once the running tasks have ended. To end them at once: kill -QUIT"
            f" {os.getpid()}"
        )

    def watch(self) -> None:
        """
        Kill processes without heartbeats.

        If the supervisor itself did not run for long, the machine was suspended: then no
        process is killed for its silence.
        """
        longest = max(self.options.CHILD_HEARTBEAT_LIMIT / 2, 4 * TICK)
        frozen = self.now - self.watched_at > longest
        self.watched_at = self.now
        for place in self.places:
            place.watch(self.now, frozen=frozen)
            if self.stopping and not place.lasting:
                place.stop()

    def fill(self) -> None:
        """Fork missing processes whose restart is due."""
        if self.plan.burst and any(place.name == REAPER for place in self.places):
            return
        # Helpers start once a processor has looked for tasks, or after a moment, so that they do
        # not slow the first task down.
        may_help = self.serving_since or self.now - self.began >= HELPERS_AFTER
        for place in self.places:
            wanted = not self.stopping or (place.lasting and self.count_processors())
            if wanted and (may_help or isinstance(place, ProcessorPlace)):
                place.fill(self.now)

    def are_serving(self, now: float) -> bool:
        """Return whether all processors have acquired, or for five seconds at least one."""
        serving = sum(status.serves for status in self.statuses)
        if serving and self.serving_since is None:
            self.serving_since = now
        if not serving or self.serving_since is None:
            return False
        return now - self.serving_since >= ENOUGH_AFTER or serving == len(self.statuses)

    def count_processors(self) -> int:
        return sum(place.child is not None for place in self.processors)

    def totals(self) -> dict[str, int]:
        totals = [status.totals() for status in self.statuses]
        return {word: sum(one[word] for one in totals) for word in COUNTED}

    def is_over(self) -> bool:
        places = self.places
        if any(place.child for place in places if not place.lasting):
            return False
        if not self.stopping:
            if not all(place.vacant for place in self.processors):
                return False
            self.stopping = True
        for place in places:
            place.stop()
        return not self.alive

    def wait(self) -> None:
        heartbeats = [child.heartbeat_r for child in self.alive]
        launcher = -1 if self.launcher is None else self.launcher.fileno()
        files = [self.signal_queue.read_fd, *heartbeats, *([launcher] if self.launcher else [])]
        if launcher in signals.readable(files, self.pause()):
            words = signals.drain(launcher)
            if words is None:
                self.lose_launcher()
                return
            if signals.REPLACED in words:
                self.give_up_port()
            self.tell_launcher(signals.ALIVE)

    def pause(self) -> float:
        due = [at for place in self.places for at in place.due()] + self.stacks.due()
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

    def close_in_child(self) -> None:
        """
        Close what only the supervisor may hold: a copy in a child would keep a pipe open
        after the supervisor's death.
        """
        os.close(self.parent_alive_w)
        self.signal_queue.close()
        self.close_launcher()

    def close(self) -> None:
        for child in self.alive:
            child.kill()
        self.signal_queue.stop()
        os.close(self.parent_alive_w)
        os.close(self.parent_alive)
        self.close_launcher()

    # Its child processes.

    @property
    def alive(self) -> list[Child]:
        return [place.child for place in self.places if place.child is not None]

    def pids(self) -> set[int]:
        return {child.pid for child in self.alive}

    def fork(self, role: str, body: Body) -> Child:
        heartbeat = signals.Wakeup()
        alive = self.alive

        def alone() -> int:
            set_title(role)
            self.plan.outage.process = role
            self.close_in_child()
            for file in (heartbeat.read_fd, *(child.heartbeat_r for child in alive)):
                os.close(file)
            return body(heartbeat.write_fd)

        prepare_for_fork()
        try:
            return fork(alone, heartbeat.read_fd)
        except OSError:
            os.close(heartbeat.read_fd)
            raise
        finally:
            os.close(heartbeat.write_fd)

    def reap(self, now: float) -> None:
        for place in self.places:
            place.reap(now)
        self.places = [place for place in self.places if place.child or not place.vacant]
        reap_orphans(self.pids())

    def helper(
        self, name: str, make: Callable[[], Sequence[Helper]], *, lasting: bool = False
    ) -> Place:
        """Return the place of helpers, which are made in their process, with its descriptors."""

        def body(heartbeat_w: int) -> int:
            return HelperProcess(self.plan, make()).run(heartbeat_w, self.parent_alive)

        return Place(self, name, body, lasting=lasting)

    def give_back(self, leftovers: Leftovers, now: float) -> None:
        """Fork a reaper for the leases of a dead processor; without one they run out."""
        place = self.helper(REAPER, lambda: [Reaper(self.plan, leftovers, self.reporter)])
        place.fill(now)
        place.vacant = True
        self.places.append(place)
