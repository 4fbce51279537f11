"""Notifications to a service manager, by the protocol of systemd's sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, MutableMapping

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

    def starting(self) -> None:
        self.notify(status("Starting."))

    def ready(self, supervisor: int) -> None:
        text = f"Taking tasks. The supervisor has the pid {supervisor}."
        self.notify("READY=1", status(text))

    def restarting(self) -> None:
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.notify("RELOADING=1", f"MONOTONIC_USEC={moment}", status("Restarting."))

    def restart_failed(self) -> None:
        text = "The restart failed; the worker goes on as before. The log tells why."
        self.notify("READY=1", status(text))

    def stopping(self) -> None:
        self.notify("STOPPING=1", status("Stopping once the running tasks have ended."))

    def is_due(self, now: float) -> bool:
        """Return whether a watchdog notification is due: three in each watchdog interval."""
        if not self.interval or now < self.next_ping:
            return False
        self.next_ping = now + self.interval
        return True

    def ping_watchdog(self) -> None:
        self.notify("WATCHDOG=1")

    def notify(self, *lines: str) -> None:
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours,
        ):
            ours.settimeout(LONGEST_SEND)
            ours.sendto("\n".join(lines).encode(), address)


def status(text: str) -> str:
    return f"STATUS={text}"


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
