"""PostgreSQL: packets of statements that a connection prepares when it sends them again."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple
from weakref import WeakKeyDictionary

NAMED = re.compile(r"%\((\w+)\)s")


class Use(IntEnum):
    FIRST = 0
    SECOND = 1
    LATER = 2


class Packet(NamedTuple):
    """
    One text of several statements, by how often its connection has sent it.

    Planning costs the server more than the rest, and preparing as much as planning once. So a
    connection that sends it once prepares nothing.
    """

    plain: str
    preparing: str
    executing: str


uses: WeakKeyDictionary[object, dict[Packet, Use] | None] = WeakKeyDictionary()
"""By connection; None where a prepared statement was missing: a pooler shares the server's."""


def text_of(packet: Packet, wire: object) -> str:
    """Return what to send now, which may prepare the statements or rely on that."""
    known = uses.setdefault(wire, {})
    if known is None:
        return packet.plain
    use = known.get(packet, Use.FIRST)
    known[packet] = Use(min(use + 1, Use.LATER))
    return packet[use]


def prepare_no_more(wire: object) -> None:
    """Send a connection's packets as they are."""
    uses[wire] = None


@functools.cache
def prepared(statement: str, kinds: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """
    Return what prepares a statement, and what executes it.

    ``kinds`` are the types of the parameters that it may name. The name is a hash of the text,
    so equal names are equal statements.
    """
    names = list(dict.fromkeys(NAMED.findall(statement)))
    types: Mapping[str, str] = dict(kinds)
    sql = NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", statement)
    name = f"perfectqueue_{hashlib.blake2b(sql.encode(), digest_size=8).hexdigest()}"
    return (
        f"PREPARE {name} ({', '.join(types[each] for each in names)}) AS {sql}",
        f"EXECUTE {name} ({', '.join(f'%({each})s' for each in names)})",
    )
