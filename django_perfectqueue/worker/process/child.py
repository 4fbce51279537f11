"""A forked process, from its parent's side."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from django_perfectqueue.lib.processes import kill_tree, send, send_to_group

from . import output
from .signals import drain, held_back

logger = logging.getLogger("django_perfectqueue.supervisor")

CRASHED = 1
CAN_LOOK_FIRST = hasattr(os, "waitid")  # not on macOS before Python 3.13

Body = Callable[[], int]


@dataclass(slots=True, eq=False)
class Child:
    """
    A process that a supervisor forked, with the stop signals sent to it.

    A stop is repeated at an interval. After a limit the process and its descendants are
    killed. ``heartbeat_r`` is the read end of the pipe of its heartbeats, ``seen_at`` when it
    last sent one, and ``silence`` for how many seconds there were none, if it was killed for
    that.
    """

    pid: int
    heartbeat_r: int = -1
    born: float = 0.0
    seen_at: float = 0.0
    silence: float = 0.0
    stopping_since: float | None = None
    signalled_at: float = 0.0
    killed: bool = False

    def stop(self) -> None:
        """Ask it to end after its task."""
        if self.stopping_since is None:
            self.stopping_since = self.signalled_at = time.monotonic()
            send(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and all its descendants."""
        now = time.monotonic()
        self.stopping_since = self.stopping_since or now
        self.signalled_at = now
        self.killed = True
        kill_tree(self.pid)

    def press(self, now: float, *, interval: float, limit: float | None) -> None:
        """Repeat the stop after ``interval`` seconds; kill after ``limit`` seconds."""
        if self.stopping_since is None:
            return
        over = limit is not None and now - self.stopping_since >= limit
        if over and not self.killed:
            self.kill()
        elif now - self.signalled_at < interval:
            return
        elif self.killed:
            self.kill()
        else:
            self.signalled_at = now
            send(self.pid, signal.SIGTERM)

    def listen(self, now: float, *, limit: float, frozen: bool) -> None:
        """Kill it after ``limit`` seconds without a heartbeat."""
        if drain(self.heartbeat_r) or frozen:
            self.seen_at = now
        if now - self.seen_at > limit and not self.killed:
            self.silence = now - self.seen_at
            self.kill()

    def reap(self) -> int | None:
        """
        Return its exit code, negative for a signal, once it is dead.

        Its descendants are killed before it is reaped: until then no other process can have
        its id.
        """
        if CAN_LOOK_FIRST:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            if ended.si_code != os.CLD_EXITED or ended.si_status != 0:
                send_to_group(self.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and not CAN_LOOK_FIRST:
            send_to_group(self.pid, signal.SIGKILL)
        return code


def fork(body: Body, heartbeat_r: int = -1) -> Child:
    """
    Run a function in a forked process; its result is the exit code.

    Signals stay blocked in the child until it installs its handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with held_back():
        pid = os.fork()
        if pid == 0:
            become(body)
    now = time.monotonic()
    return Child(pid, heartbeat_r, born=now, seen_at=now)


def become(body: Body) -> NoReturn:
    code = CRASHED
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        code = body()
    except BaseException:
        logger.critical("A process of the worker failed. pid=%s", os.getpid(), exc_info=True)
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        output.finish()
    finally:
        os._exit(code)


def next_fork(born: float, *, deaths: int, limit: float) -> float:
    """
    Return when the successor of a child may be forked.

    At once after a child that lived for ``limit`` seconds, and after the first early death.
    Further early deaths double the wait, so that crash loops do not use up the machine.
    """
    if deaths <= 1:
        return born
    return born + min(60.0, limit * 2.0 ** min(deaths - 2, 10))


# Process titles, as ps shows them.


BEFORE_THE_ENVIRONMENT = "SPT_NOENV"


def set_title(role: str) -> None:
    """Name this process by its role, where the package setproctitle is installed."""
    ours = BEFORE_THE_ENVIRONMENT not in os.environ
    # setproctitle would overwrite /proc/PID/environ, which a restart reads.
    os.environ.setdefault(BEFORE_THE_ENVIRONMENT, "1")
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    else:
        setproctitle(f"pq_worker: {role}")
    finally:
        if ours:
            del os.environ[BEFORE_THE_ENVIRONMENT]
