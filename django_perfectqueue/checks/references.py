"""What is wrong with the keys by which a project's own rows refer to tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage

from django_perfectqueue.models import Batch, Schedule, Task, Worker

from .messages import check, warning

DELETED = (Task, Batch, Schedule, Worker)


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
                    " rows before RETENTION_TIME has passed.",
                )
