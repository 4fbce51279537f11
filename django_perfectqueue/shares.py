"""Let an edited fair share hold at once, for tasks that wait already too."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction
from django.db.models.signals import post_delete, post_save, pre_save

from . import store
from .models import FairShare


def follow_changes() -> None:
    pre_save.connect(remember_user, sender=FairShare, dispatch_uid="perfectqueue_remember")
    post_save.connect(apply, sender=FairShare, dispatch_uid="perfectqueue_apply")
    post_delete.connect(apply, sender=FairShare, dispatch_uid="perfectqueue_apply")


def remember_user(*, instance: FairShare, using: str, **kwargs: Any) -> None:
    """Keep whose share it was: one that passes to another user is taken from the first."""
    known = FairShare.objects.using(using).filter(pk=instance.pk)
    instance._former_users = set(known.values_list("user", flat=True))  # type: ignore[attr-defined]


def apply(*, instance: FairShare, using: str, **kwargs: Any) -> None:
    for user in sorted({instance.user, *getattr(instance, "_former_users", ())}):
        transaction.on_commit(partial(store.apply_shares, user, using=using), using=using)
