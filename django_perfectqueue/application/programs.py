"""Handlers that are external programs, from start to end, and what these print."""

from __future__ import annotations

import errno
import json
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, ClassVar

from django_perfectqueue import exceptions, store
from django_perfectqueue.conf import options
from django_perfectqueue.lib import processes
from django_perfectqueue.lib.checks import choice
from django_perfectqueue.payload.codecs import to_json
from django_perfectqueue.queue import AcquiredTask

from .base import Application, time_limits
from .error_policy import Decider

RUN = "PERFECTQUEUE_RUN"
CHUNK = 65_536
LAST_CHUNKS = 16
TICK = 0.05

# Reads or writes a chunk; returns whether there may be more.
Turn = Callable[[IO[bytes]], bool]


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
        return processes.how_it_ended(self.code)


@dataclass(kw_only=True)
class Program:
    """
    Runs a program in a session of its own.

    It is given its input while what it prints is read, so that neither ever waits for the
    other; of each of the two streams ``keep`` bytes are kept. Asked to stop, it gets ``TERM``
    with all that it has started, and ``grace`` seconds later ``KILL``. What a program that
    ended by itself has started goes on. Its end and a request to stop are seen within TICK.
    """

    argv: Sequence[str]
    given: bytes
    environment: Mapping[str, str]
    folder: str | os.PathLike[str] | None
    keep: int
    grace: float
    stopping: bool = False
    """Set by any thread, at any time, to ask it to stop."""
    stop_sent: bool = False
    """Whether it was asked to stop before it had ended."""
    kill_at: float = float("inf")

    def run(self) -> Completed:
        """
        Run it to its end.

        Raise OSError when it can't be started.
        """
        began = time.monotonic()
        token = secrets.token_hex(8)
        self.mark = f"{RUN}={token}"
        self.rest = memoryview(self.given)
        stdout, stderr = Output(self.keep), Output(self.keep)
        with (
            selectors.DefaultSelector() as self.selector,
            subprocess.Popen(  # noqa: S603
                self.argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.folder,
                env={**self.environment, RUN: token},
                start_new_session=True,
            ) as process,
        ):
            self.watch(process.stdout, selectors.EVENT_READ, partial(self.read, stdout))
            self.watch(process.stderr, selectors.EVENT_READ, partial(self.read, stderr))
            self.watch(process.stdin, selectors.EVENT_WRITE, self.write)
            try:
                self.attend(process)
            finally:
                # No process is left behind, whatever has broken this off.
                if process.poll() is None:
                    self.kill(process)
        seconds = time.monotonic() - began
        return Completed(
            argv=self.argv, code=process.returncode, stdout=stdout, stderr=stderr, seconds=seconds
        )

    def attend(self, process: subprocess.Popen[bytes]) -> None:
        """Read and write until it has ended; end it when it must stop."""
        while process.poll() is None:
            if self.stopping:
                self.press(process)
            if self.selector.get_map():
                for key, _events in self.selector.select(TICK):
                    key.data(key.fileobj)
            else:
                # Its streams are closed: mostly it ends at once, but it may go on without them.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK)
        # What is left in the pipes, up to a bound: what it has started may write for ever.
        for key in list(self.selector.get_map().values()):
            for _turn in range(LAST_CHUNKS):
                if not key.data(key.fileobj):
                    break
        if self.stop_sent:
            # What it has started and left behind is ended, too. Its group keeps the id of the
            # process while it has a member.
            processes.send_to_group(process.pid, signal.SIGKILL)
            processes.kill_marked(self.mark)

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
            self.rest = self.rest[os.write(stream.fileno(), self.rest[:CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.rest = self.rest[:0]
        if not self.rest:
            self.selector.unregister(stream)
            stream.close()
        return False

    def press(self, process: subprocess.Popen[bytes]) -> None:
        """Ask it to end; kill it after the grace period."""
        now = time.monotonic()
        if not self.stop_sent:
            self.stop_sent = True
            self.kill_at = now + self.grace
            processes.terminate_descendants(process.pid)
            processes.send(process.pid, signal.SIGTERM)
        elif now >= self.kill_at:
            self.kill_at = float("inf")
            self.kill(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End it, and all that it has started."""
        processes.kill_tree(process.pid)
        processes.kill_marked(self.mark)


# Handlers that are external programs.


VERDICTS = ("finish", "retry", "release", "fail")
USUAL = {0: "finish", os.EX_TEMPFAIL: "release", 126: "fail", 127: "fail"}
TAIL = 2000
OF_GRACE = 0.9
NOT_THERE = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR)


class CommandDecider(Decider):
    """Does what the exit code of a program says."""

    def unexpected_error_raised(self, error: BaseException) -> None:
        """Fail or release the task where ``exit_codes`` says so; else follow the usual rule."""
        verdict = "retry"
        if isinstance(error, exceptions.CommandNotFoundError):
            verdict = "fail"
        elif isinstance(error, exceptions.CommandFailedError) and isinstance(
            self.handler, CommandHandler
        ):
            verdict = self.handler.verdict(error.code)
        if verdict == "fail":
            self.task.fail(why=store.Failure.of(error))
        elif verdict == "release":
            given = self.handler.retry_wait
            self.task.release(options().RETRY_WAIT if given is None else given)
        else:
            super().unexpected_error_raised(error)


class CommandHandler(Application):
    """
    Runs an external program for each attempt.

    It gets the data of the task as JSON on its standard input, and the key as its last
    argument. Its exit code decides what becomes of the task, and what it prints is the
    result: the value where that is JSON, else the text.
    """

    decider: ClassVar[type[Decider]] = CommandDecider
    #: The program and its arguments without the key.
    command: ClassVar[Sequence[str]] = ()
    #: What an exit code (negative: a signal) means: ``finish``, ``retry``, ``release`` or
    #: ``fail``. For those that
    #: are not in it 0 is ``finish``, 75 ``release``, 126 and 127 ``fail``, all else ``retry``.
    exit_codes: ClassVar[Mapping[int, str]] = {}
    #: How many bytes are kept of each of its streams, half from its end.
    max_output: ClassVar[int] = 65_536
    #: The working folder; None is the worker's.
    folder: ClassVar[str | os.PathLike[str] | None] = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.command, str):
            raise exceptions.ConfigError(
                f"{cls.__qualname__}.command must be a list of words, such as ['convert', '-v']."
            )
        for code, verdict in cls.exit_codes.items():
            choice(*VERDICTS).require(
                f"{cls.__qualname__}.exit_codes[{code!r}]", verdict, exceptions.ConfigError
            )

    def __init__(self, task: AcquiredTask) -> None:
        super().__init__(task)
        self._program: Program | None = None
        self._reason: BaseException | None = None
        self._telling = threading.Lock()

    def argv(self) -> list[str]:
        """Return the program and its arguments."""
        if not self.command:
            raise exceptions.CommandNotFoundError(f"{type(self).__qualname__} names no command.")
        return [*self.command, self.task.key]

    def stdin(self) -> bytes:
        """Return what it is given on its standard input: the data as one line of JSON."""
        return json.dumps(self.task.data).encode() + b"\n"

    def environment(self) -> dict[str, str]:
        """Return its environment: the worker's, and what the task is, but not its data."""
        return {
            **os.environ,
            "PERFECTQUEUE_QUEUE": self.task.lease.queue,
            "PERFECTQUEUE_KEY": self.task.key,
            "PERFECTQUEUE_TYPE": self.task.type,
            "PERFECTQUEUE_USER": self.task.user,
            "PERFECTQUEUE_ATTEMPT": str(self.task.attempt),
            "PERFECTQUEUE_CREATED_AT": self.task.created_at.isoformat(),
        }

    def result(self, completed: Completed) -> object:
        """Return the result of the task: what was printed, as JSON if it is that, else as text."""
        text = str(completed.stdout)
        if completed.stdout.is_whole:
            try:
                value = json.loads(text)
                # NaN and numbers too large for a float can't be stored as JSON.
                to_json(value)
                return value
            except (ValueError, RecursionError):
                pass
        return text.rstrip("\n") or None

    def verdict(self, code: int) -> str:
        """Return what an exit code means."""
        return self.exit_codes.get(code, USUAL.get(code, "retry"))

    def perform(self) -> object:
        """Run the program, and return the result if its exit code says that the task is done."""
        completed = self.completed()
        if self.verdict(completed.code) == "finish":
            return self.result(completed)
        raise exceptions.CommandFailedError(message_of(completed), completed.code)

    def completed(self) -> Completed:
        """
        Run the program to its end.

        Raise CommandNotFoundError when it can't be started, and the reason when it was
        ended for one.
        """
        program = self.program()
        with self._telling:
            self._program = program
        try:
            completed = program.run()
        except OSError as error:
            raise not_started(program, error) from error
        finally:
            with self._telling:
                self._program = None
        if program.stop_sent and self._reason is not None:
            raise self._reason
        return completed

    def program(self) -> Program:
        """Return what is to be run; override this to run it in another way."""
        wait = time_limits(type(self), None, options()).kill_wait
        environment = self.environment()
        if processes.MARK in os.environ:
            environment[processes.MARK] = os.environ[processes.MARK]
        return Program(
            argv=self.argv(),
            given=self.stdin(),
            environment=environment,
            folder=self.folder,
            keep=self.max_output,
            grace=wait * OF_GRACE,
        )

    def kill(self, reason: BaseException) -> None:
        """
        End the program: by ``TERM``, and by ``KILL`` shortly before ``kill_wait`` is over.

        On a graceful stop it may end in its own time.
        """
        with self._telling:
            if self._program is None:
                super().kill(reason)
            elif not isinstance(reason, exceptions.GracefulProcessStopError):
                self._reason = self._reason or reason
                self._program.stopping = True


def not_started(program: Program, error: OSError) -> Exception:
    """Return what it means that a program could not be started: for good, or just now."""
    if error.errno not in NOT_THERE:
        return error
    name = error.filename or program.argv[0]
    return exceptions.CommandNotFoundError(
        f"The program '{program.argv[0]}' can't be started: {name}: {error.strerror}."
    )


def message_of(completed: Completed) -> str:
    """Return how a program has ended, and the last that it has said on standard error."""
    said = completed.stderr.last(TAIL)
    return f"'{completed.argv[0]}' {completed.how}" + (f": {said}" if said else ".")


# What an external program prints, as much of it as is kept.


class Output:
    """
    The beginning and the end of a stream: of ``limit`` bytes half is kept of each.

    ``size`` is how many bytes there were.
    """

    def __init__(self, limit: int) -> None:
        self.for_tail = limit // 2
        self.for_head = limit - self.for_tail
        self.head = bytearray()
        self.tail = bytearray()
        self.size = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes>"

    def __str__(self) -> str:
        """Return it as text, with a line that says how much is left out in the middle."""
        if self.is_whole:
            return as_text(self.head + self.tail)
        gap = f"\n[... {self.left_out} bytes left out ...]\n"
        return as_text(self.head) + gap + as_text(self.tail)

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        room = self.for_head - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[: max(0, len(self.tail) - self.for_tail)]

    @property
    def left_out(self) -> int:
        """How many bytes are not kept."""
        return self.size - len(self.head) - len(self.tail)

    @property
    def is_whole(self) -> bool:
        return self.left_out == 0

    def last(self, limit: int) -> str:
        """Return the end of it as text, without white space around it."""
        kept = bytes(self.head + self.tail if self.is_whole else self.tail)
        text = as_text(kept[-limit:]).strip()
        return f"... {text}" if self.size > limit and text else text


def as_text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")
