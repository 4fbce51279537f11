"""An external program, from its start to its end."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO

from django_perfectqueue.lib.processes import (
    kill_marked,
    kill_tree,
    send,
    send_to_group,
    terminate_descendants,
)

from .output import Output

RUN = "PERFECTQUEUE_RUN"
CHUNK = 65_536
LAST_CHUNKS = 16
TICK = 0.05
FIRST_REST = 0.0005
CAN_LOOK_FIRST = hasattr(os, "waitid")  # not on macOS before Python 3.13

Turn = Callable[[IO[bytes]], bool]
"""Reads or writes a chunk; returns whether there may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """
    A program that has ended.

    ``code`` is its exit code, negative for the signal that ended it, and ``seconds`` how
    long it ran.
    """

    argv: Sequence[str]
    code: int
    stdout: Output
    stderr: Output
    seconds: float

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was ended by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was ended by signal {-self.code}"


class Program:
    """
    Runs a program in a session of its own.

    It is given its input while what it prints is read, so that neither ever waits for the
    other; of each of the two streams ``keep`` bytes are kept. Asked to stop, it gets ``TERM``
    with all that it has started, and ``grace`` seconds later ``KILL``. What a program that
    ended by itself has started goes on. Its end and a request to stop are seen within TICK.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        given: bytes = b"",
        environment: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        keep: int,
        grace: float,
    ) -> None:
        self.argv = argv
        self.given = memoryview(given)
        self.mark = secrets.token_hex(8)
        environment = os.environ if environment is None else environment
        self.environment = {**environment, RUN: self.mark}
        self.folder = folder
        self.grace = grace
        self.stdout = Output(keep)
        self.stderr = Output(keep)
        self.stop_sent = False
        """Whether it was asked to stop before it had ended."""
        self.stopping = False
        self.kill_at = float("inf")
        self.rest = FIRST_REST

    def stop(self) -> None:
        """Ask it to stop; may be called from any thread, at any time, any number of times."""
        self.stopping = True

    def run(self) -> Completed:
        """
        Run it to its end.

        Raise OSError when it can't be started.
        """
        began = time.monotonic()
        process = subprocess.Popen(  # noqa: S603
            self.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        try:
            with selectors.DefaultSelector() as self.selector:
                self.attend(process)
        finally:
            self.close(process)
        return Completed(
            argv=self.argv,
            code=process.returncode,
            stdout=self.stdout,
            stderr=self.stderr,
            seconds=time.monotonic() - began,
        )

    def attend(self, process: subprocess.Popen[bytes]) -> None:
        """Read and write until it has ended; end it when it must stop."""
        self.watch(process.stdout, selectors.EVENT_READ, partial(self.read, self.stdout))
        self.watch(process.stderr, selectors.EVENT_READ, partial(self.read, self.stderr))
        self.watch(process.stdin, selectors.EVENT_WRITE, self.write)
        while not has_ended(process):
            if self.stopping:
                self.press(process)
            for key, _events in self.wait():
                key.data(key.fileobj)
        # What is left in the pipes, up to a bound: what it has started may write for ever.
        for key in list(self.selector.get_map().values()):
            for _turn in range(LAST_CHUNKS):
                if not key.data(key.fileobj):
                    break
        if self.stop_sent:
            # What it has started and left behind is ended, too.
            send_to_group(process.pid, signal.SIGKILL)
            kill_marked(f"{RUN}={self.mark}")
        process.wait()

    def watch(self, stream: IO[bytes] | None, event: int, turn: Turn) -> None:
        assert stream is not None
        os.set_blocking(stream.fileno(), False)
        self.selector.register(stream, event, turn)

    def read(self, output: Output, stream: IO[bytes]) -> bool:
        """Read a chunk; return whether there may be more."""
        try:
            chunk = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return False
        output.add(chunk)
        if not chunk:
            self.selector.unregister(stream)
        return bool(chunk)

    def write(self, stream: IO[bytes]) -> bool:
        """Write the next chunk; the program need not read it."""
        try:
            self.given = self.given[os.write(stream.fileno(), self.given[:CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.given = self.given[:0]
        if not self.given:
            self.selector.unregister(stream)
            stream.close()
        return False

    def wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for its streams, at most TICK."""
        if self.selector.get_map():
            return self.selector.select(TICK)
        # Its streams are closed: mostly it ends at once, but it may go on without them.
        self.rest = min(TICK, 2 * self.rest)
        time.sleep(self.rest)
        return []

    def press(self, process: subprocess.Popen[bytes]) -> None:
        """Ask it to end; kill it after the grace period."""
        now = time.monotonic()
        if not self.stop_sent:
            self.stop_sent = True
            self.kill_at = now + self.grace
            terminate_descendants(process.pid)
            send(process.pid, signal.SIGTERM)
        elif now >= self.kill_at:
            self.kill_at = float("inf")
            self.kill(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End it, and all that it has started."""
        kill_tree(process.pid)
        kill_marked(f"{RUN}={self.mark}")

    def close(self, process: subprocess.Popen[bytes]) -> None:
        """Leave no process and no file behind, whatever has broken this off."""
        try:
            if process.returncode is None:
                self.kill(process)
                process.wait()
        finally:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """
    Return whether it has ended, without reaping it where the system supports that.

    So long no other process has its id, nor its group.
    """
    if not CAN_LOOK_FIRST:
        return process.poll() is not None
    with suppress(ChildProcessError):
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, ended) is not None
    return True
