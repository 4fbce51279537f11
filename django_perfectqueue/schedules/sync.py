"""Bring the rows of schedules in line with what code declares."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import IntegrityError

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidScheduleError, PerfectQueueError
from django_perfectqueue.models import Schedule, Worker

from .declared import Declaration, declarations
from .schedules import edited, whole
from .terms import apply, checked_payload

logger = logging.getLogger("django_perfectqueue.schedules")

DECLARED = (Schedule.Origin.CODE, Schedule.Origin.GONE)


def declared_for(using: str) -> dict[str, Declaration]:
    """Return what this process declares for a database, by name."""
    return {name: one for name, one in declarations.items() if one.using == using}


def sync(own: Mapping[str, Declaration], *, using: str, worker: int, first: bool) -> bool:
    """
    Store declarations, when a worker begins, and retire those that no live worker has.

    A person's pause, and a person's change, stand until the declaration itself changes. Where
    a younger worker declares the same name, as during a release, its word is the one that
    counts. Return whether there are declared rows, which have to be looked at again.
    """
    rows = {row.name: row for row in Schedule.objects.using(using).filter(origin__in=DECLARED)}
    if not (own or rows):
        return False
    workers = list(Worker.objects.using(using).seen(store.records.clock(using=using)))
    for name, declaration in own.items():
        row = rows.get(name)
        # Another worker may have retired it while this one was not seen for a while.
        differs = is_gone(row) or (first and (row is None or row.declared_in != declaration.digest))
        if differs and not is_decided_by_younger(name, worker, workers):
            store_declaration(declaration, using=using)
    live = set(own).union(*(other.schedules for other in workers))
    retire((row for name, row in rows.items() if name not in live), using=using)
    return True


def is_gone(row: Schedule | None) -> bool:
    return row is not None and row.origin == Schedule.Origin.GONE


def is_decided_by_younger(name: str, worker: int, workers: Iterable[Worker]) -> bool:
    born = {other.pk: other.started_at for other in workers}
    return worker in born and any(
        other.started_at > born[worker] for other in workers if name in other.schedules
    )


def store_declaration(declaration: Declaration, *, using: str) -> None:
    """Store one; log why where that fails, so that it holds up no other."""
    try:
        with edited(declaration.name, None, using=using) as (row, moment):
            set_declared(row, declaration, moment)
    except IntegrityError:
        return  # Another worker has just stored it.
    except PerfectQueueError as error:
        logger.error("A schedule is not stored. schedule=%s error=%s", declaration.name, error)


def set_declared(row: Schedule, declaration: Declaration, now: datetime) -> None:
    """Make a row what is declared; raise InvalidScheduleError."""
    if row.pk is not None and row.origin == Schedule.Origin.ROW:
        raise InvalidScheduleError("A person has stored one of this name: that one stays.")
    row.origin = Schedule.Origin.CODE
    if row.declared_in != declaration.digest:
        row.type = declaration.type
        row.payload = checked_payload(declaration.payload, declaration.type)
        apply(row, {**whole(), "context": {}, **declaration.terms}, now)
        row.declared_in = declaration.digest


def retire(rows: Iterable[Schedule], *, using: str) -> None:
    for row in rows:
        if row.origin == Schedule.Origin.CODE:
            Schedule.objects.using(using).filter(pk=row.pk, declared_in=row.declared_in).update(
                origin=Schedule.Origin.GONE, next_at=None, due_at=None
            )
            logger.info("No worker declares this schedule any more. schedule=%s", row.name)
