"""Statements that go to the server together: one round trip for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper as Cursor

Statement = tuple[str, Any]


class Packet:
    """
    Statements whose answers nobody needs, kept until the next one of the connection is sent.

    They go with that in one packet, or before it where the driver does not take ``several``, or
    the parameters are of another kind. ``skip`` is how many results of each the driver has before
    those of the next one.
    """

    rowcount = 0  # nobody asks for that of what waits

    def __init__(
        self, connection: BaseDatabaseWrapper, starts: Iterable[str], *, several: bool, skip: int
    ) -> None:
        self.db = connection
        self.starts: list[Statement] = [(start, None) for start in starts]
        self.waiting = list(self.starts)
        self.several = several
        self.skip = skip
        self.end: Sequence[str] = ()

    def execute(self, sql: str, parameters: Any = None) -> None:
        """Keep a statement, given as to a cursor."""
        self.waiting.append((sql, parameters))

    def take(self) -> list[Statement]:
        """Return what waits, and keep it no more; nothing where all of it is what comes first."""
        waiting, self.waiting = self.waiting, []
        return [] if waiting == self.starts else waiting

    def __call__(self, execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        """Send a statement, as an execute wrapper of the connection."""
        if isinstance(sql, str) and sql.startswith("ROLLBACK TO"):
            # What waits came after the savepoint; where it has failed, it would fail again.
            self.waiting = []
        if not self.waiting:
            return execute(sql, parameters, many, context)
        plain = not [given for _sql, given in self.waiting if given]
        if many or not self.several or not (plain or isinstance(parameters, dict)):
            self.flush()
            return execute(sql, parameters, many, context)
        if plain:
            sql = "; ".join([*[one for one, _given in self.waiting], sql])
        else:
            sql, parameters = joined([*self.waiting, (sql, parameters)])
        # If this fails nothing may have begun: then the next one takes them along, too.
        done = execute(sql, parameters, many, context)
        before, self.waiting = len(self.waiting), []
        for _ in range(before * self.skip):
            context["cursor"].nextset()
        return done

    def flush(self) -> None:
        """Send what waits."""
        waiting, self.waiting = self.waiting, []
        try:
            # By another cursor: that of a statement of many would take it for one of them.
            with self.db.cursor() as cursor:
                for sql, given in [joined(waiting)] if self.several else waiting:
                    cursor.execute(sql, given)
                for _ in waiting[1:] if self.several and self.skip else ():
                    cursor.nextset()
        except BaseException:
            self.waiting = waiting
            raise


# By connection the packet that is filled on it.
packets: WeakKeyDictionary[BaseDatabaseWrapper, Packet] = WeakKeyDictionary()


@contextmanager
def filled(
    connection: BaseDatabaseWrapper, starts: Iterable[str], *, several: bool, skip: int
) -> Iterator[Packet]:
    """
    Send ``starts`` with the first statement of a block, and what unanswered() has taken with the
    next one, or at its end.

    The connection is in no transaction, or in one that ends with the block; a SAVEPOINT that comes
    first is a statement like others.
    """
    packet = packets[connection] = Packet(connection, starts, several=several, skip=skip)
    try:
        with connection.execute_wrapper(packet):
            yield packet
            if not connection.needs_rollback and packet.waiting not in ([], packet.starts):
                packet.flush()
    finally:
        del packets[connection]


def unanswered(cursor: Cursor) -> Cursor:
    """Return what takes statements whose answers nobody needs: a packet, or else the cursor."""
    packet = packets.get(cursor.db)
    return cursor if packet is None or not packet.several else cast("Cursor", packet)


def joined(statements: Sequence[Statement]) -> Statement:
    """Return statements as one, with the parameters of all of them."""
    texts: list[str] = []
    values: dict[str, object] = {}
    for number, (sql, given) in enumerate(statements):
        texts.append(sql.replace("%(", f"%({number}_") if given else sql)
        values |= {f"{number}_{name}": value for name, value in (given or {}).items()}
    return "; ".join(texts), values or None
