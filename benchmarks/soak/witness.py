"""What processors were born for and what they began, in a file that outlives them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from benchmarks import probe

BORN = "born"


def path() -> Path:
    return Path(f"{os.environ[probe.VARIABLE]}-deaths")


def note(word: str) -> None:
    """Add one line, in one piece, so that processes don't mix theirs."""
    file = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{word}\n".encode())
    os.close(file)


class Reader:
    """Counts the lines, going on from where it left off."""

    def __init__(self) -> None:
        path().touch()
        self.counts: Counter[str] = Counter()
        self.at = 0

    def read(self) -> Counter[str]:
        with path().open("rb") as file:
            file.seek(self.at)
            data = file.read()
        self.at += len(data)
        self.counts.update(data.decode().split())
        return self.counts
