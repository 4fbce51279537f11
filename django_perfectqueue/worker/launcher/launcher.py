"""The command itself: it starts the supervisor, passes signals on, tells the service manager."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from ..process import output, signals
from .generation import GENERATION, Generation, PidFile, spawned

# Notifications to a service manager, by the protocol of systemd's sd_notify(3).


NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
LONGEST_SEND = 1.0
MICROSECOND = 1e-6


class Notifier:
    """
    Notifies a service manager of starts, restarts and stops.

    Without NOTIFY_SOCKET it sends nothing. It never sends MAINPID, since the pid of the
    launcher does not change.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = environment or {}
        self.address = given.get("NOTIFY_SOCKET", "")
        self.interval = watchdog_interval(given)
        self.next_ping = 0.0

    def notify(self, text: str, *lines: str) -> None:
        """Send a status for people, with lines of the protocol."""
        self.send(*lines, f"STATUS={text}")

    def is_due(self, now: float) -> bool:
        """Return whether a watchdog notification is due: three in each watchdog interval."""
        if not self.interval or now < self.next_ping:
            return False
        self.next_ping = now + self.interval
        return True

    def send(self, *lines: str) -> None:
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            ours.settimeout(LONGEST_SEND)
            ours.sendto("\n".join(lines).encode(), address)


def watchdog_interval(environment: Mapping[str, str]) -> float:
    """Return a third of the watchdog interval in seconds; 0 without a watchdog."""
    asked = environment.get("WATCHDOG_USEC", "")
    whom = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not asked.isdecimal() or whom != str(os.getpid()):
        return 0.0
    return int(asked) * MICROSECOND / 3


def taken_out_of(environment: MutableMapping[str, str]) -> dict[str, str]:
    """
    Remove from an environment, and return, the variables for this process alone.

    Programs started by handlers must not notify in the worker's name.
    """
    return {name: environment.pop(name) for name in NAMES if name in environment}


logger = logging.getLogger("django_perfectqueue.launcher")

TICK = 1.0


@dataclass(eq=False)
class Launcher:
    """
    The process between a service manager and the supervisor.

    A restart starts another generation with new code and settings. Once that takes tasks,
    the old one gets the stop signal. If it does not start, the old one stays. ``first`` is
    a forked generation that waits to be let go.
    """

    command: Sequence[str]
    detach_wait: float
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    pid_file: PidFile | None = None
    notifier: Notifier = field(default_factory=Notifier)
    first: Generation | None = None

    def __post_init__(self) -> None:
        self.announced = self.stopping = self.interrupted = False
        self.signal_queue = signals.SignalQueue()
        self.started = 0
        self.older: list[Generation] = []
        self.next: Generation | None = None
        self.stop_old_by: signal.Signals = signals.STOP
        self.once_more: signal.Signals | None = None
        self.leave_at = float("inf")
        self.by_hand = os.isatty(0)

    def run(self) -> int:
        """
        Stay until the supervisor has ended, or detached from it; return the exit code.

        Raise ConfigError when the pid file is another worker's, or can't be written.
        """
        if self.pid_file is None:
            return self.launch()
        self.pid_file.take()
        try:
            return self.launch()
        finally:
            self.pid_file.remove()

    def launch(self) -> int:
        before = {signum: signal.getsignal(signum) for signum in signals.HELD_BACK}
        # Signals that arrive after the end go to the restored handlers.
        with signals.held_back():
            self.notifier.notify("Starting.")
            self.current = self.start()
            self.signal_queue.open()
            try:
                return self.stay()
            finally:
                signals.hold_back(signal.SIGCHLD, signals.DUMP)
                self.close()
                for signum, handler in before.items():
                    signal.signal(signum, handler)

    def start(self) -> Generation:
        self.started += 1
        if self.started == 1 and self.first is not None:
            self.first.tell(signals.GO)
            return self.first
        environment = {**self.environment, GENERATION: str(self.started)}
        return spawned(self.command, environment)

    def stay(self) -> int:
        while True:
            self.wait()
            for signum in self.signal_queue.read():
                self.pass_on(signum)
            self.hand_over()
            self.report_state()
            for old in [old for old in self.older if old.code() is not None]:
                self.older.remove(old)
                old.close()
            code = self.current.code()
            if code is not None and (code or not (self.older or self.next)):
                return code
            if time.monotonic() >= self.leave_at:
                pids = ", ".join(str(one.process.pid) for one in self.generations())
                text = f"What is running goes on in the background, under pid {pids}."
                output.put(text, sys.stdout)
                return 0

    def wait(self) -> None:
        output.push()
        generations = self.generations()
        sources = [file for one in generations for file in one.sources]
        tick = min(TICK, self.notifier.interval or TICK)
        pause = min(tick, max(0.0, self.leave_at - time.monotonic()))
        signals.readable([self.signal_queue.read_fd, *sources], pause)
        for one in generations:
            one.listen()

    def generations(self) -> list[Generation]:
        return [self.current, *self.older, *([self.next] if self.next else [])]

    def pass_on(self, signum: signal.Signals) -> None:
        """Handle a signal; a restart after a stop is ignored."""
        signum = self.meant_by(signum)
        if signum in (signals.RESTART, signals.RESTART_NOW):
            if not self.stopping:
                self.restart(signals.STOP if signum == signals.RESTART else signals.STOP_NOW)
            return
        if signum in (signals.STOP, signals.STOP_NOW, signals.DETACH):
            self.stopping = True
            self.notifier.notify("Stopping once the running tasks have ended.", "STOPPING=1")
        if signum in (*signals.ALL, signals.DUMP):
            for one in self.generations():
                if signum == signals.DUMP:
                    output.put(f"\nSupervisor, pid {one.process.pid}:", sys.stderr)
                one.send(signum)
        if signum == signals.REOPEN_LOGS:
            signals.reopen_logs()
        if signum == signals.DETACH:
            self.detach()
        elif signum == signals.STOP_NOW:
            self.leave_at = float("inf")

    def detach(self) -> None:
        """Leave after ``detach_wait`` seconds, at a second signal at once; generations go on."""
        again = self.leave_at < float("inf")
        self.leave_at = time.monotonic() + (0.0 if again else self.detach_wait)
        if self.pid_file is not None:
            self.pid_file.let_go()

    def meant_by(self, signum: signal.Signals) -> signal.Signals:
        """
        Return what a signal means.

        At a terminal nothing is left in the background: Ctrl-C and the terminal's end are
        stops, and a second Ctrl-C ends at once what is running.
        """
        if self.by_hand and signum == signals.DETACH:
            again, self.interrupted = self.interrupted, True
            if again:
                return signals.STOP_NOW
            output.put("Press Ctrl-C again to end what is running at once.", sys.stdout)
            return signals.STOP
        if self.by_hand and signum == signals.RESTART_NOW:
            return signals.STOP
        return signum

    def restart(self, stop_old_by: signal.Signals) -> None:
        """Start the next generation; during a restart, remember to restart again."""
        self.stop_old_by = stop_old_by
        if self.next is not None:
            self.once_more = stop_old_by
            logger.info("A restart is under way; another follows. pid=%s", self.next.process.pid)
            return
        try:
            with signals.held_back():
                self.next = self.start()
        except OSError as error:
            logger.error("The restart failed; the worker goes on as before. %s", error)
            return
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.notifier.notify("Restarting.", "RELOADING=1", f"MONOTONIC_USEC={moment}")

    def hand_over(self) -> None:
        """Make the next generation the current one, once it takes tasks."""
        if self.next is None:
            return
        if self.next.ready:
            self.current.replace(self.stop_old_by)
            self.older.append(self.current)
            self.current, self.next = self.next, None
            self.announced = False
        elif (code := self.next.code()) is not None:
            self.give_up(code)
        if self.next is None and self.once_more is not None:
            again, self.once_more = self.once_more, None
            if not self.stopping:
                self.restart(again)

    def give_up(self, code: int) -> None:
        """Keep the current generation after a failed restart."""
        assert self.next is not None
        if not self.stopping:
            logger.error("The restart failed; the worker goes on as before. code=%s", code)
            if self.announced:
                text = "The restart failed; the worker goes on as before. The log tells why."
                self.notifier.notify(text, "READY=1")
        self.next.close()
        self.next = None

    def report_state(self) -> None:
        """Report the state to the service manager."""
        if self.stopping:
            return
        if not self.announced and self.next is None and self.current.ready:
            self.announced = True
            text = f"Taking tasks. The supervisor has the pid {self.current.process.pid}."
            self.notifier.notify(text, "READY=1")
        due = self.announced and self.notifier.is_due(time.monotonic())
        if due and self.current.has_answered():
            self.notifier.send("WATCHDOG=1")

    def close(self) -> None:
        self.signal_queue.stop()
        for one in self.generations():
            one.close()
