"""The process that forks processors, watches them, and replaces them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from django.utils.translation import gettext as _

from django_perfectqueue import store
from django_perfectqueue.processes import (
    adopt_orphans,
    halt,
    kill_orphans,
    mark,
    reap_orphans,
    resume,
    send,
    terminate_descendants,
)

from . import outlet
from .belfry import Wakeups
from .bell import Bell, drain, readable
from .board import StatusPage, path_for
from .child import Body, Child, fork, next_fork
from .database import close_for_fork
from .gauge import Gauge
from .helper import LIMIT, Helper
from .janitor import Janitor
from .listener import Listener
from .plan import Plan
from .presence import Presence, registration
from .processor import DONE, RECYCLED, Seat
from .pulse import Pulse
from .queue_order import QueueAccounts
from .receptionist import Receptionist
from .report import Reporter
from .signals import (
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
from .slate import Slot, TaskSlot
from .stacks import Stacks
from .staff import processor_of
from .title import set_title
from .undertaker import Estate, Undertaker
from .watcher import Watch, Watcher

logger = logging.getLogger("django_perfectqueue.supervisor")

TICK = 0.5
ENOUGH_AFTER = 5.0


@dataclass(slots=True, eq=False)
class Place:
    """
    Where a processor sits: one after another, with one slot and one account of queues.

    ``heard_at`` is when it was last heard of, and ``worked_at`` when it was last seen to
    compute; ``silence`` is for how long neither, if it was killed for that. ``told_at`` is
    since when a task should have ended, and ``forced`` tells that it was killed for that.
    """

    number: int
    slot: Slot
    accounts: QueueAccounts
    bell: Bell = field(default_factory=Bell)
    child: Child | None = None
    holder: int = 0
    pulse: int = -1
    heard_at: float = 0.0
    gauge: Gauge | None = None
    worked_at: float = 0.0
    silence: float = 0.0
    told_at: float | None = None
    forced: bool = False
    deaths: int = 0
    fork_at: float = 0.0
    vacant: bool = False


class Supervisor:
    """
    Keeps PROCESSORS processors, a listener and a janitor alive until it is told to stop.

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
        numbers = range(1, self.options.PROCESSORS + 1)
        self.places = [self.new_place(number) for number in numbers]
        self.wakeups = Wakeups([(place.slot, place.bell) for place in self.places])
        self.board = StatusPage(path_for(os.getpid()))
        self.stacks = Stacks()
        self.helpers = self.needed_helpers()
        self.undertakers: list[Child] = []
        self.stopping = False
        self.serving_since: float | None = None
        self.now = self.listened_at = time.monotonic()

    def new_place(self, number: int) -> Place:
        places = self.options.places
        return Place(number, Slot.shared(places), QueueAccounts(self.plan.queues, places))

    def needed_helpers(self) -> list[Helper]:
        limit = self.options.CHILD_FORK_FREQUENCY_LIMIT
        worker = registration(self.plan)

        def tidy() -> int:
            presence = Presence(worker, self.board, [place.slot for place in self.places])
            return Janitor(self.plan, self.wakeups, presence, lifeline=self.lifeline).run()

        def listen() -> int:
            return Listener(self.plan, self.wakeups, lifeline=self.lifeline).run()

        def answer() -> int:
            return Receptionist(self.plan, self.board, lifeline=self.lifeline).run()

        found = [Helper("janitor", tidy, limit, lasting=True)]
        if not self.plan.burst:
            found.insert(0, Helper("listener", listen, limit))
        if self.plan.reload and not self.plan.burst:
            found.append(Helper("watcher", self.watching(), limit))
        if self.plan.health is not None:
            found.append(Helper("receptionist", answer, limit, lasting=True))
        return found

    def watching(self) -> Body:
        """Return what asks the launcher for a restart when the code has changed since now."""
        watch = Watch()

        def tell(file: Path) -> None:
            self.reporter.say(_("%s has changed; the worker starts anew.") % file)
            send(self.launcher_pid, RESTART)

        return lambda: Watcher(watch, tell, lifeline=self.lifeline).run()

    def run(self) -> int:
        """Work until told to stop, or in a burst until all is done; return the exit code."""
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
            self.reporter.summary(self.counts(), time.monotonic() - began)
        return 0

    def work(self) -> None:
        ready = False
        while True:
            self.now = time.monotonic()
            self.board.turn(sum(place.child is not None for place in self.places))
            outlet.push()
            self.board.status.dropped = outlet.dropped.total()
            self.obey(self.mailbox.read())
            self.stacks.go_on(self.now)
            self.reap()
            self.listen()
            self.enforce()
            self.press()
            self.fill()
            if not ready and self.serves():
                ready = self.tell_launcher(READY)
            if self.is_over():
                return
            self.wait()

    def serves(self) -> bool:
        """Tell whether every processor has looked for tasks, or after a while at least one."""
        serving = sum(place.slot.serves for place in self.places)
        if serving and self.serving_since is None:
            self.serving_since = self.now
        if not serving or self.serving_since is None:
            return False
        enough = self.now - self.serving_since >= ENOUGH_AFTER
        return enough or serving == len(self.places)

    def obey(self, signals: Iterable[signal.Signals]) -> None:
        for signum in signals:
            if signum in (STOP, DETACH):
                self.stop()
            elif signum == STOP_NOW:
                self.stop(now=True)
            elif signum == RESTART:
                self.replace()
            elif signum == RESTART_NOW:
                self.replace(now=True)
            elif signum == REOPEN_LOGS:
                self.reopen_logs()
            elif signum == DUMP:
                self.stacks.ask(self.titles())

    def stop(self, *, now: bool = False) -> None:
        if not self.stopping:
            self.reporter.say(_("Stopping at once.") if now else self.farewell())
        self.stopping = True
        self.board.leave()
        for place in self.places:
            if place.child is not None:
                place.child.kill() if now else place.child.stop()
        for helper in self.helpers:
            if helper.child is not None and not helper.lasting:
                helper.child.stop()

    def farewell(self) -> str:
        if not any(place.slot.tasks for place in self.places if place.child is not None):
            return _("Stopping.")
        return (
            _("Stopping once the running tasks have ended. To end them at once: kill -QUIT %d")
            % os.getpid()
        )

    def replace(self, *, now: bool = False) -> None:
        """Let other processors take the places of those that are here."""
        for place in self.places:
            if place.child is not None:
                place.child.kill() if now else place.child.stop()

    def reopen_logs(self) -> None:
        reopen_logs()
        for child in self.children():
            send(child.pid, REOPEN_LOGS)

    def titles(self) -> Iterator[tuple[int, str]]:
        """Yield the pid of each process, and what it is and does."""
        for place in self.places:
            if place.child is not None:
                tasks = ", ".join(
                    f"{begun.task_id} for {self.now - begun.since:.1f} s"
                    for begun in place.slot.tasks
                )
                what = f"Processor {place.number}, pid {place.child.pid}, runs"
                yield place.child.pid, f"{what} {f'task {tasks}' if tasks else 'nothing'}:"
        for helper in self.helpers:
            if helper.child is not None:
                pid = helper.child.pid
                yield pid, f"{helper.name.capitalize()}, pid {pid}:"

    def children(self) -> list[Child]:
        everyone = [place.child for place in self.places] + [one.child for one in self.helpers]
        return [child for child in everyone if child is not None]

    def reap(self) -> None:
        self.undertakers = [child for child in self.undertakers if child.reap() is None]
        for helper in self.helpers:
            helper.reap(self.now)
        for place in self.places:
            if place.child is not None and (code := place.child.reap()) is not None:
                self.bury(place, place.child, code)
        reap_orphans(self.known())

    def known(self) -> set[int]:
        return {child.pid for child in (*self.children(), *self.undertakers)}

    def bury(self, place: Place, child: Child, code: int) -> None:
        """Clear the place of a processor that has ended, and say what comes next there."""
        place.child = None
        place.slot.pid = 0
        left = code in (DONE, RECYCLED) and place.slot.signed_off
        if not left:
            kill_orphans(self.known(), holder=place.holder, pipe=place.pulse)
        os.close(place.pulse)
        as_told = left or child.killed
        if not left:
            self.give_back(place, child, code)
        place.slot.clear()
        place.slot.seeking = False
        if place.slot.rung:
            self.wakeups.wake_one()
        early = self.now - child.born < self.options.CHILD_FORK_FREQUENCY_LIMIT
        place.deaths = 0 if as_told else place.deaths + 1 if early else 1
        limit = self.options.CHILD_FORK_FREQUENCY_LIMIT
        place.fork_at = next_fork(child.born, deaths=place.deaths, limit=limit)
        place.vacant = self.plan.burst and left and code == DONE and child.stopping_since is None
        if place.vacant or self.stopping:
            self.reporter.say(_("Processor %(number)s has ended.") % {"number": place.number})

    def give_back(self, place: Place, child: Child, code: int) -> None:
        running = {begun.task_id: self.now - begun.since for begun in place.slot.tasks}
        overdue = place.slot.overdue(self.now) if place.forced else []
        as_told = place.forced or (child.killed and child.stopping_since is not None)
        message = how_it_ended(code, place.silence)
        if not as_told:
            logger.error(
                "A processor died. pid=%s task_ids=%s: %s", child.pid, list(running), message
            )
            place.slot.count("crashed", len(running))
        estate = Estate(
            holder=place.holder,
            worker=f"{socket.gethostname()}:{child.pid}",
            crashed=() if as_told else tuple(running),
            why=store.Failure(error="crashed", message=message),
            overdue={begun.task_id: running[begun.task_id] for begun in overdue},
            seconds=running,
        )
        try:
            # Made in the child: what it opens is closed when that ends.
            child = self.fork_helper(
                "undertaker", lambda: Undertaker(self.plan, estate, self.reporter).run()
            )
        except OSError as error:
            logger.error("What it held comes back with its lease. %s", error)
        else:
            self.undertakers.append(child)

    def listen(self) -> None:
        """
        Hear who is alive, and end who has not been heard of for too long.

        Who was frozen with the whole machine can't blame others for their silence.
        """
        longest = max(self.options.CHILD_HEARTBEAT_LIMIT / 2, 4 * TICK)
        frozen = self.now - self.listened_at > longest
        self.listened_at = self.now
        for place in self.places:
            if place.child is None:
                continue
            if drain(place.pulse) or frozen:
                place.heard_at, place.gauge = self.now, None
            self.feel(place, place.child)
            silent = self.now - max(place.heard_at, place.worked_at)
            if silent > self.options.CHILD_HEARTBEAT_LIMIT and not place.child.killed:
                logger.error(
                    "A processor is silent; it is killed. pid=%s seconds=%.0f",
                    place.child.pid,
                    silent,
                )
                place.silence = silent
                place.child.kill()
                place.child.stopping_since = None
        for helper in self.helpers:
            if helper.child is not None:
                self.listen_to(helper.child, helper.name, frozen)
        for child in self.undertakers:
            self.listen_to(child, "undertaker", frozen)

    def listen_to(self, child: Child, name: str, frozen: bool) -> None:
        """End a helper that stands still: another takes its place."""
        if frozen and child.pulse is not None:
            child.pulse.beat()
        silent = child.silence(self.now)
        if silent > self.options.CHILD_HEARTBEAT_LIMIT and not child.killed:
            logger.error(
                "The %s is silent; it is killed. pid=%s seconds=%.0f", name, child.pid, silent
            )
            child.kill()

    def feel(self, place: Place, child: Child) -> None:
        """
        See whether one who is silent computes.

        A handler that keeps Python's lock silences its processor; that is no reason to kill
        it, as long as it is at work.
        """
        if self.now - place.heard_at <= self.options.CHILD_HEARTBEAT_LIMIT / 2:
            return
        if place.gauge is None:
            place.gauge = Gauge(child.pid, self.now)
        elif place.gauge.is_busy(self.now) and place.slot.tasks:
            place.worked_at = self.now

    def enforce(self) -> None:
        """
        End by force the tasks that go on after they should have ended.

        First what their handler has started is asked to end, so that one who waits for it
        comes back; then all of it goes, with the processor.
        """
        for place in self.places:
            if place.child is None or place.child.killed:
                continue
            overdue = place.slot.overdue(self.now)
            if not overdue:
                place.told_at = None
            elif place.told_at is None:
                self.ask(place, place.child, overdue)
            elif self.now - place.told_at >= self.options.CHILD_KILL_INTERVAL:
                self.force(place, place.child)

    def ask(self, place: Place, child: Child, overdue: list[TaskSlot]) -> None:
        place.told_at = self.now
        logger.error(
            "A handler does not end; it is ended by force. pid=%s task_ids=%s",
            child.pid,
            [begun.task_id for begun in overdue],
        )
        if len(overdue) == len(place.slot.tasks):
            terminate_descendants(child.pid)

    def force(self, place: Place, child: Child) -> None:
        """Kill a processor, unless what it should have ended has just done so."""
        halt(child.pid)
        if place.slot.overdue(self.now):
            place.forced = True
            child.kill()
        else:
            resume(child.pid)

    def press(self) -> None:
        interval = self.options.CHILD_KILL_INTERVAL
        for place in self.places:
            if place.child is not None:
                limit = self.options.CHILD_GRACEFUL_KILL_LIMIT
                place.child.press(self.now, interval=interval, limit=limit)
        if self.stopping:
            for child in self.undertakers:
                child.stop()
        for child in self.undertakers:
            child.press(self.now, interval=interval, limit=LIMIT)
        for helper in self.helpers:
            helper.press(self.now, interval=interval)

    def fill(self) -> None:
        """Fork what is missing, unless it is too early."""
        if self.plan.burst and self.undertakers:
            return
        if not self.stopping:
            for place in self.places:
                if place.child is None and not place.vacant and self.now >= place.fork_at:
                    self.try_to_seat(place)
        for helper in self.helpers:
            if not self.stopping or (helper.lasting and self.has_processors()):
                helper.fill(self.fork_helper, self.now)

    def has_processors(self) -> bool:
        return any(place.child is not None for place in self.places)

    def try_to_seat(self, place: Place) -> None:
        """Fork a processor; one that the machine has no room for must not end the others."""
        try:
            self.seat(place)
        except OSError as error:
            logger.error("A processor can't be started. %s", error)
            place.fork_at = self.now + max(1.0, self.options.CHILD_FORK_FREQUENCY_LIMIT)

    def seat(self, place: Place) -> None:
        try:
            self.plan.dispatch.before_fork()
        except Exception:
            logger.exception("A handler's before_fork() raised.")
        pulse, beat = os.pipe()
        os.set_blocking(pulse, False)
        os.set_blocking(beat, False)
        place.pulse, place.holder, place.heard_at = pulse, store.new_holder(), self.now
        place.gauge, place.silence, place.told_at, place.forced = None, 0.0, None, False
        seat = Seat(
            number=place.number,
            holder=place.holder,
            slot=place.slot,
            accounts=place.accounts,
            bell=place.bell,
            pulse=beat,
            lifeline=self.lifeline,
            wakeups=self.wakeups,
        )
        drain(place.bell.ear)
        place.slot.sign_on(place.holder)

        def process() -> int:
            mark(seat.holder)
            kind = processor_of(self.options.PROCESSOR_TYPE)
            return kind(self.plan, seat, self.reporter).run()

        try:
            place.child = self.fork(f"processor {place.number}", process)
        except OSError:
            os.close(pulse)
            raise
        finally:
            os.close(beat)
        place.slot.pid = place.child.pid
        words = {"number": place.number, "pid": place.child.pid}
        self.reporter.say(_("Processor %(number)s started, pid %(pid)s.") % words)

    def fork_helper(self, role: str, body: Body) -> Child:
        """Fork what shows by a pulse that it goes on; a processor has a keeper for that."""
        pulse = Pulse()

        def with_pulse() -> int:
            pulse.start(self.options.CHILD_HEARTBEAT_INTERVAL)
            return body()

        return self.fork(role, with_pulse, pulse)

    def fork(self, role: str, body: Body, pulse: Pulse | None = None) -> Child:
        def alone() -> int:
            set_title(role)
            self.plan.outage.process = role
            self.let_go()
            return body()

        close_for_fork()
        return fork(alone, pulse)

    def let_go(self) -> None:
        """Close, in a child, what only the supervisor may hold."""
        os.close(self.hold)
        self.mailbox.forget()
        if self.launcher is not None:
            self.launcher.close()
        for place in self.places:
            if place.child is not None:
                os.close(place.pulse)

    def is_over(self) -> bool:
        if self.has_processors() or self.undertakers:
            return False
        if not self.stopping:
            if not all(place.vacant for place in self.places):
                return False
            self.stopping = True
        helpers = [helper.child for helper in self.helpers if helper.child is not None]
        for child in helpers:
            child.stop()
        return not helpers

    def wait(self) -> None:
        pulses = [place.pulse for place in self.places if place.child is not None]
        ears = [self.mailbox.ear, *pulses]
        launcher = -1
        if self.launcher is not None:
            launcher = self.launcher.fileno()
            ears.append(launcher)
        if launcher in readable(ears, self.pause()):
            if drain(launcher) is None:
                self.lose_launcher()
            else:
                self.tell_launcher(ALIVE)

    def pause(self) -> float:
        due = [
            place.fork_at - self.now
            for place in self.places
            if place.child is None and not place.vacant
        ]
        due += [at - self.now for at in self.stacks.due()]
        for place in self.places:
            due += [begun.kill_at - self.now for begun in place.slot.tasks]
            if place.told_at is not None:
                due.append(place.told_at + self.options.CHILD_KILL_INTERVAL - self.now)
        return max(0.01, min([TICK, *(wait for wait in due if wait > 0)]))

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
        if self.launcher is not None:
            self.launcher.close()
            self.launcher = None
        if not self.stopping:
            logger.error("The launcher is gone; the worker stops.")
            self.stop()

    def counts(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for place in self.places:
            for word, number in place.slot.totals().items():
                total[word] = total.get(word, 0) + number
        return total

    def close(self) -> None:
        for child in (*self.children(), *self.undertakers):
            child.kill()
        self.mailbox.close()
        self.board.close()
        os.close(self.hold)
        os.close(self.lifeline)
        if self.launcher is not None:
            self.launcher.close()


def how_it_ended(code: int, silence: float = 0.0) -> str:
    if silence:
        return f"Its processor stood still for {silence:.0f} s, and was killed."
    if code >= 0:
        return f"Its processor ended with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"Its processor was ended by {name}."
