"""Handlers that are external programs."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    CommandFailedError,
    CommandNotFoundError,
    ConfigError,
    GracefulProcessStopError,
)
from django_perfectqueue.lib.processes import MARK
from django_perfectqueue.payload.codecs import to_json
from django_perfectqueue.queue import AcquiredTask

from ..decider import Decider
from ..handler import Application
from ..time_limits import time_limits
from .program import Completed, Program

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
        if isinstance(error, CommandNotFoundError):
            verdict = "fail"
        elif isinstance(error, CommandFailedError) and isinstance(self.handler, CommandHandler):
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
    command: ClassVar[Sequence[str]] = ()
    """The program and its arguments, the key not among them."""
    exit_codes: ClassVar[Mapping[int, str]] = {}
    """
    What an exit code means: ``finish``, ``retry``, ``release`` or ``fail``. For those that
    are not in it 0 is ``finish``, 75 ``release``, 126 and 127 ``fail``, and all else ``retry``.
    """
    max_output: ClassVar[int] = 65_536
    """How many bytes are kept of each of its streams, from the beginning and from the end."""
    folder: ClassVar[str | os.PathLike[str] | None] = None
    """Where it is run; None is where the worker is."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_command(cls)

    def __init__(self, task: AcquiredTask) -> None:
        super().__init__(task)
        self._program: Program | None = None
        self._reason: BaseException | None = None
        self._telling = threading.Lock()

    def argv(self) -> list[str]:
        """Return the program and its arguments."""
        if not self.command:
            raise CommandNotFoundError(f"{type(self).__qualname__} names no command.")
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
        completed = self.completed()
        if self.verdict(completed.code) == "finish":
            return self.result(completed)
        raise CommandFailedError(message_of(completed), completed.code)

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
        wait = time_limits(type(self), None, options()).kill_wait
        environment = self.environment()
        if MARK in os.environ:
            environment[MARK] = os.environ[MARK]
        return Program(
            self.argv(),
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
            elif not isinstance(reason, GracefulProcessStopError):
                self._reason = self._reason or reason
                self._program.stop()


def check_command(kind: type[CommandHandler]) -> None:
    """Raise ConfigError when what a handler says of its program can't be meant."""
    if isinstance(kind.command, str):
        raise ConfigError(
            f"{kind.__qualname__}.command must be a list of words, such as ['convert', '-v']."
        )
    for code, verdict in kind.exit_codes.items():
        if verdict not in VERDICTS:
            raise ConfigError(
                f"{kind.__qualname__}.exit_codes[{code!r}] must be one of"
                f" {', '.join(map(repr, VERDICTS))}, not {verdict!r}."
            )


def not_started(program: Program, error: OSError) -> Exception:
    """Return what it means that a program could not be started: for good, or just now."""
    if error.errno not in NOT_THERE:
        return error
    name = error.filename or program.argv[0]
    return CommandNotFoundError(
        f"The program '{program.argv[0]}' can't be started: {name}: {error.strerror}."
    )


def message_of(completed: Completed) -> str:
    """Return how a program has ended, and the last that it has said on standard error."""
    said = completed.stderr.last(TAIL)
    return f"'{completed.argv[0]}' {completed.how}" + (f": {said}" if said else ".")
