"""Forget a user: delete what is stored of it, and take its name out of what stays."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.models import Change, Limit, Schedule, Status, Task, TaskQuerySet
from django_perfectqueue.payload.inputs import checked_user
from django_perfectqueue.queue.retention import warn

PAGE = 1000
RUNS = models.condition(Status.RUNNING)


def rows_of(user: str, *, using: str) -> dict[str, QuerySet[Any]]:
    """Return what is stored of a user, by the words that say so."""
    tasks = TaskQuerySet(Task, using=using).filter(user=user)
    same = Task.objects.filter(queue=OuterRef("queue"), key=OuterRef("name"), user=user)
    schedules = Schedule.objects.using(using).filter(user=user)
    trail = (
        Q(Exists(same.order_by()), kind=Change.Kind.TASK)
        | Q(kind=Change.Kind.SHARE, name=user)
        | Q(kind=Change.Kind.LIMIT, name=f"{Limit.Scope.USER}:{user}")
        | Q(kind=Change.Kind.SCHEDULE, name__in=list(schedules.values_list("name", flat=True)))
        | Q(kind=Change.Kind.SCHEDULE, before__user=user)
        | Q(kind=Change.Kind.SCHEDULE, after__user=user)
    )
    return {
        "tasks": tasks.exclude(RUNS),
        "running": tasks.filter(RUNS),
        "schedules": schedules.exclude(origin=Schedule.Origin.CODE),
        "batches": models.Batch.objects.using(using).filter(user=user),
        "shares": models.FairShare.objects.using(using).filter(user=user),
        "limits": Limit.objects.using(using).filter(scope=Limit.Scope.USER, name=user),
        "usage": models.Usage._default_manager.using(using).filter(user=user),
        "changes": Change.objects.using(using).filter(trail),
    }


def forget_user(user: str, *, using: str, dry_run: bool = False) -> dict[str, int]:
    """
    Forget a user; return how many rows of each kind that were, or with ``dry_run`` would be.

    Its tasks with their results, logs and attempts, its schedules, shares, limits, usage and
    the trail of all these are deleted; its batches stay without its name. Tasks that run are
    asked to stop and stay: where ``running`` is more than 0, call it again once they have
    ended. A schedule that code declares stays, too.

    It may be repeated. Raise InvalidTaskError for what is no name of one user.
    """
    if not checked_user(user):
        raise InvalidTaskError("Name the user to be forgotten.")
    rows = rows_of(user, using=using)
    if dry_run:
        return {name: found.order_by().count() for name, found in rows.items()}
    running = list(rows["running"].values_list("pk", flat=True))
    asked = store.cancel_each(running, using=using)
    # First, as they are found by the tasks; and last, as what is deleted here is written there.
    changes = delete(rows["changes"], using=using)
    # Before the tasks, which they submit.
    schedules = delete(rows["schedules"], using=using)
    tasks, kept_for = store.upkeep.clear(Q(user=user) & ~RUNS, using=using)
    warn(kept_for)
    done = {"tasks": tasks, "running": list(asked.values()).count(False), "schedules": schedules}
    rename = partial(rows["batches"].update, user="")
    done["batches"] = store.database.with_retries(rename, using=using)
    done |= {name: delete(rows[name], using=using) for name in ("shares", "limits", "usage")}
    delete(rows_of(user, using=using)["changes"], using=using)
    return {**done, "changes": changes}


def delete(rows: QuerySet[Any], *, using: str) -> int:
    """Delete rows a page at a time, by their ids, so that no others are locked; return how many."""
    count = 0
    named = rows.model._default_manager.using(using)
    while ids := list(rows.order_by().values_list("pk", flat=True)[:PAGE]):
        remove = partial(named.filter(pk__in=ids).delete)
        count += store.database.with_retries(remove, using=using)[0]
    return count
