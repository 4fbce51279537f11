"""The lines that a worker prints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from django.core.management.color import Style

from django_perfectqueue.lib.printable import printable

from .attempt.surroundings import AttemptEnd
from .shared.status import COUNTED

SILENT, USUAL, FULL = 0, 1, 2

Write = Callable[[str], object]


class Reporter:
    """
    Prints lines, those of a batch of tasks in one write.

    ``verbosity`` 0 prints nothing, 1 a line for every task, 2 also when and where it ran.
    """

    def __init__(self, write: Write, style: Style, verbosity: int = USUAL) -> None:
        self.write = write
        self.verbosity = verbosity
        paint = {"finished": style.SUCCESS, "failed": style.ERROR, "crashed": style.ERROR}
        self.words = {word: paint.get(word, style.WARNING)(f"{word:<9}") for word in COUNTED}
        self.bold = style.MIGRATE_HEADING

    def say(self, line: str) -> None:
        if self.verbosity >= USUAL:
            try:
                self.write(line)
            except (OSError, ValueError):
                self.verbosity = SILENT

    def head(self, line: str) -> None:
        self.say(self.bold(line))

    def print_tasks(self, endings: Sequence[AttemptEnd]) -> None:
        """Print a line for each task."""
        if self.verbosity >= USUAL and endings:
            self.say("\n".join(map(self.line, endings)))

    def line(self, ending: AttemptEnd) -> str:
        lease = ending.task.lease
        user = f" user={lease.user}" if lease.user else ""
        names = f"{lease.key} type={lease.type}{user}"
        if not names.isprintable():
            names = printable(names)
        error = f" error={type(ending.error).__name__}" if ending.error is not None else ""
        attempt = lease.errors + lease.crashes + 1
        text = f"{self.words[ending.word]} {names} attempt={attempt} {ending.seconds:.3f}s{error}"
        if self.verbosity >= FULL:
            text = (
                f"{time.strftime('%H:%M:%S')} {os.getpid()} {text} queue={printable(lease.queue)}"
            )
        return text

    def summary(self, counts: Mapping[str, int], seconds: float) -> None:
        """Print how many tasks ended in which way, and how fast."""
        always = ("finished", "retried", "failed")
        others = (word for word in COUNTED if word not in always and counts[word])
        parts = [f"{counts[word]} {word}" for word in (*always, *others)]
        line = f"{', '.join(parts)} in {seconds:.1f} s"
        if seconds >= 1.0:
            line += f" ({counts['finished'] / seconds:.1f} finished a second)"
        self.head(line)
