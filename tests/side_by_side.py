"""The tests of several databases at the same time, printed one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .databases import die_with_parent

GLANCE = 0.2
PATIENCE = 30.0


class Run:
    """One command, which prints to a file and leaves its outcome in another."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, variable: str) -> None:
        self.name = name
        self.printed = folder / f"{name}.log"
        self.outcome = folder / f"{name}.json"
        with open(self.printed, "wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, variable: str(self.outcome)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(15),
            )

    def follow(self) -> None:
        """Print what it prints, from its beginning to its end."""
        with open(self.printed, "rb") as output:
            ended = False
            while not ended:
                ended = self.process.poll() is not None
                copy(output.read())
                if not ended:
                    time.sleep(GLANCE)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def copy(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.flush()


@contextmanager
def started(commands: dict[str, list[str]], folder: Path, variable: str) -> Iterator[list[Run]]:
    """
    Start all commands; end those that are still running when this is left.

    Each finds the path for its outcome in the environment, under the name ``variable``.
    """
    with ExitStack() as stack:
        runs = []
        for name, command in commands.items():
            runs.append(Run(name, command, folder, variable))
            stack.callback(runs[-1].end)
        yield runs
