"""Send what begins a transaction in one packet with its first statement: a round trip less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def sent_with_first(
    connection: BaseDatabaseWrapper, starts: Sequence[str], *, several: bool, skip: int
) -> Iterator[None]:
    """
    Send ``starts`` with the first statement of this block, or before it where the driver does
    not take ``several``.

    ``skip`` is how many results the driver has before that of the statement. The connection is
    in no transaction; a SAVEPOINT that comes first is a statement like others. COMMIT is not
    sent with the last one: most answers are needed before.
    """
    sent = False

    def send(
        execute: Callable[..., Any], sql: Any, parameters: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        nonlocal sent
        if sent:
            return execute(sql, parameters, many, context)
        if many or not several:
            # By another cursor: ``execute`` would take a statement of many for one of none.
            with connection.cursor() as cursor:
                sent = True
                try:
                    for start in starts:
                        cursor.execute(start)
                except BaseException:
                    sent = False
                    raise
            return execute(sql, parameters, many, context)
        # If this fails nothing may have begun: then the next one is sent with it, too.
        done = execute("; ".join([*starts, sql]), parameters, many, context)
        sent = True
        for _ in range(skip):
            context["cursor"].nextset()
        return done

    with connection.execute_wrapper(send):
        yield
