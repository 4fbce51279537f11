"""What is wrong with backends of tasks, foreign keys to tasks, and declared schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage
from django.utils import timezone

from django_perfectqueue import compat
from django_perfectqueue.application import autodiscover
from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.models import Batch, Schedule, Task, Worker
from django_perfectqueue.schedules.declared import declarations
from django_perfectqueue.schedules.schedules import whole
from django_perfectqueue.schedules.terms import apply, checked_payload

from .messages import TAG, check, error, warning

DELETED = (Task, Batch, Schedule, Worker)


@check(TAG)
def check_backends(alias: str) -> Iterator[CheckMessage]:
    """Check the backends of this package in TASKS; Django 6 itself asks no backend."""
    if not compat.HAS_TASKS:
        return
    from django_perfectqueue.backend.base import configured, problems

    for name in compat.task_backends:
        try:
            compat.task_backends[name]
        except compat.InvalidTaskBackend as trouble:
            yield error(
                35,
                f"TASKS['{name}'] can't be used: {trouble}",
                "Set its BACKEND to 'django_perfectqueue.backend.PerfectQueueBackend', or to the"
                " path of another backend.",
            )
    for backend in configured():
        yield from problems(backend)


@check("models")
def check_references(alias: str) -> Iterator[CheckMessage]:
    """Check that no foreign key keeps workers from deleting what is over."""
    for model in apps.get_models():
        for field in model._meta.local_fields:
            if getattr(field, "db_constraint", False) and field.related_model in DELETED:
                yield warning(
                    22,
                    f"{field} is a foreign key with a constraint to rows that workers delete:"
                    " those that it refers to stay for ever.",
                    "Give it db_constraint=False and on_delete=DO_NOTHING, or delete or clear its"
                    " rows before RETENTION deletes them.",
                )


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
