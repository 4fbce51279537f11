"""What is wrong with the schedules that code declares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.core.checks import CheckMessage
from django.utils import timezone

from django_perfectqueue.application import autodiscover
from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.models import Schedule
from django_perfectqueue.schedules.declared import declarations
from django_perfectqueue.schedules.schedules import whole
from django_perfectqueue.schedules.terms import apply, checked_payload

from .messages import check, error


@check()
def check_schedules(alias: str) -> Iterator[CheckMessage]:
    """
    Check that declared schedules can be stored: their data, zones, cron expressions and terms.

    It imports the modules of tasks; so it has no tag of this package. One that can't be
    imported is reported by pq_worker.
    """
    with contextlib.suppress(Exception):
        autodiscover()
    for declaration in declarations.values():
        row = Schedule(name=declaration.name)
        try:
            checked_payload(declaration.payload, declaration.type)
            apply(row, {**whole(), **declaration.terms}, timezone.now())
        except PerfectQueueError as problem:
            yield error(
                50,
                f"The schedule '{declaration.name}' can't be stored: {problem}",
                f"Correct the @scheduled over the handler of '{declaration.type}'.",
            )
