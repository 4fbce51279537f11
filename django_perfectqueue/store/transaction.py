"""One verb, one transaction; and again when the database asks for it."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError, connections, transaction
from django.db.utils import DatabaseError

from .dialects import Dialect, dialect_of

P = ParamSpec("P")
R = TypeVar("R")

REPEATS = 10


@contextmanager
def unit(using: str, *, apart: bool = False) -> Iterator[tuple[Any, Dialect]]:
    """
    Open one transaction, or join the caller's; yield a cursor and the dialect.

    A verb refuses before it writes, so a refusal leaves the caller's transaction good.
    One that is to be undone by itself asks to be ``apart``: in a savepoint, that is.
    """
    if connections[using].in_atomic_block and not apart:
        with reading(using) as opened:
            yield opened
        return
    dialect = dialect_of(using)
    with (
        dialect.writing(connections[using]),
        transaction.atomic(using=using),
        reading(using) as opened,
    ):
        yield opened


@contextmanager
def reading(using: str) -> Iterator[tuple[Any, Dialect]]:
    """Yield a cursor and the dialect, with no transaction of its own."""
    with connections[using].cursor() as cursor:
        yield cursor, dialect_of(using)


def repeated(verb: Callable[P, R]) -> Callable[P, R]:
    """
    Repeat a verb whose transaction lost against another: a deadlock, a busy database.

    Inside a caller's transaction it is the caller's to repeat, and the error goes up.
    """

    @functools.wraps(verb)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        using = str(kwargs["using"])
        if connections[using].in_atomic_block:
            return verb(*args, **kwargs)
        for pause in pauses():
            try:
                return verb(*args, **kwargs)
            except (OperationalError, DatabaseError) as error:
                if not dialect_of(using).passes(error):
                    raise
            time.sleep(pause)
        return verb(*args, **kwargs)

    return patient


def pauses() -> Iterator[float]:
    """Yield what to wait before each repetition: ever longer, and never in step."""
    for repeat in range(REPEATS):
        yield random.uniform(0.5, 1.5) * min(0.5, 0.005 * 2**repeat)  # noqa: S311
