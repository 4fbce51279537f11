"""What a fault is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage

SERVERS = ("postgresql", "mariadb")
DATABASES = (*SERVERS, "sqlite")

Act = Callable[[Stage], Strike | None]


@dataclass(frozen=True)
class Fault:
    """
    ``act`` strikes, waits, and puts right what does not get right by itself; it returns
    what it has done, or None where there was nothing to strike.
    """

    name: str
    act: Act
    databases: tuple[str, ...]

    @property
    def about(self) -> str:
        return " ".join((self.act.__doc__ or "").split())


FAULTS: dict[str, Fault] = {}


def fault(name: str, *, databases: Iterable[str] = DATABASES) -> Callable[[Act], Act]:
    def put(act: Act) -> Act:
        FAULTS[name] = Fault(name, act, tuple(databases))
        return act

    return put


def for_database(database: str) -> list[str]:
    """Return the names of the faults that there are on a database."""
    return [name for name, one in FAULTS.items() if database in one.databases]
