"""Tasks as JSON lines: one object a line, with the arguments of Queue.submit()."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from typing import IO

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import ARGUMENTS, TIMES

from .terminal import point

NEEDED = ("key", "type")
CHUNK = 1000
CHUNK_BYTES = 8_000_000
EXCERPT = 40


class TasksFile:
    """
    A source of tasks that is read as they are asked for.

    ``line`` is the number of the one that was read last, ``bytes`` how far that is.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self.source = source
        self.line = 0
        self.bytes = 0
        self.ended = False

    @property
    def size(self) -> int | None:
        """The bytes of a regular file; None of a pipe."""
        try:
            status = os.fstat(self.source.fileno())
        except (OSError, AttributeError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def chunk(self) -> Iterator[dict[str, object]]:
        """
        Yield the next tasks, in batches that fit one transaction.

        Raise InvalidTaskError when a line is no task.
        """
        count, start = 0, self.bytes
        while count < CHUNK and self.bytes - start < CHUNK_BYTES:
            if not (text := self.source.readline()):
                self.ended = True
                return
            self.line += 1
            self.bytes += len(text)
            if text.strip():
                count += 1
                yield task_of(text)


def task_of(text: bytes) -> dict[str, object]:
    """
    Return the arguments of Queue.submit() that a line gives.

    Raise InvalidTaskError when it is no JSON object with these.
    """
    task = parsed(text)
    if not isinstance(task, dict):
        raise InvalidTaskError(f"A task must be a JSON object, not {excerpt(text)}.")
    for name in task:
        if name not in ARGUMENTS:
            raise InvalidTaskError(f"A task has no '{printable(name)}'.{nearest(name, ARGUMENTS)}")
    for name in NEEDED:
        if name not in task:
            raise InvalidTaskError(f"The task has no '{name}'.")
    for name in TIMES:
        if name in task:
            task[name] = point(name, task[name])
    return task


def parsed(text: bytes | str) -> object:
    """
    Return what a JSON text says.

    Raise InvalidTaskError when it is malformed.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidTaskError(f"This is nested too deeply: {excerpt(text)}.") from error
    except UnicodeDecodeError as error:
        raise InvalidTaskError(f"This is not UTF-8: {excerpt(text)}.") from error
    except json.JSONDecodeError as error:
        if not text.strip():
            raise InvalidTaskError("This is empty, and not JSON.") from error
        raise InvalidTaskError(
            f"This is not JSON: {excerpt(text)} ({error.msg} at column {error.colno})."
        ) from error
    except ValueError as error:  # A number of too many digits.
        raise InvalidTaskError(f"This can't be read as JSON: {error}.") from error


def excerpt(text: bytes | str) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    shown = printable(shown.strip())
    return shown if len(shown) <= EXCERPT else shown[:EXCERPT] + "…"
