"""Forget a user: delete what is stored of it, and take its name out of what stays."""

from __future__ import annotations

import json
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
    submits = models.DebouncedSubmit.objects.using(using)
    own_key = f"{Limit.Scope.USER}:{user}"
    schedules = Schedule.objects.using(using).filter(user=user)
    trail = (
        Q(Exists(same.order_by()), kind=Change.Kind.TASK)
        | Q(kind=Change.Kind.SHARE, name=user)
        | Q(kind=Change.Kind.LIMIT, name=own_key)
        | Q(kind=Change.Kind.SCHEDULE, name__in=list(schedules.values_list("name", flat=True)))
        | Q(pk__in=changes_of_schedules(user, using=using))
    )
    return {
        "tasks": tasks.exclude(RUNS),
        "running": tasks.filter(RUNS),
        "submits": submits.filter(pk__in=debounced_submits(user, using=using)),
        "schedules": schedules.exclude(origin=Schedule.Origin.CODE),
        "batches": models.Batch.objects.using(using).filter(user=user),
        "shares": models.FairShare.objects.using(using).filter(user=user),
        "limits": Limit.objects.using(using).filter(scope=Limit.Scope.USER, name=user),
        "meters": models.Meter.objects.using(using).filter(key=own_key, running=0),
        "usage": models.Usage._default_manager.using(using).filter(user=user),
        "changes": Change.objects.using(using).filter(trail),
    }


def changes_of_schedules(user: str, *, using: str) -> list[int]:
    """Return the changes of schedules that were or became a user's."""
    changes = Change.objects.using(using).filter(kind=Change.Kind.SCHEDULE)
    # MariaDB compares a text within JSON without its trailing blanks.
    found = changes.filter(Q(before__user=user) | Q(after__user=user))
    return [
        one.pk
        for one in found.only("before", "after")
        if user in ((one.before or {}).get("user"), (one.after or {}).get("user"))
    ]


def debounced_submits(user: str, *, using: str) -> list[int]:
    """Return the submits of a user that have yet to be merged into a task."""
    submits = models.DebouncedSubmit.objects.using(using).filter(terms__contains=json.dumps(user))
    found = submits.values_list("pk", "terms")
    return [pk for pk, terms in found if json.loads(terms).get("user") == user]


def forget_user(user: str, *, using: str, dry_run: bool = False) -> dict[str, int]:
    """
    Forget a user; return how many rows of each kind that were, or with ``dry_run`` would be.

    Its tasks with their results, logs and attempts, the submits that would become tasks, its
    schedules, shares, limits, usage and the trail of all these are deleted; its batches stay
    without its name. Tasks that run are asked to stop and stay: where ``running`` is more than
    0, call it again once they have ended. A schedule that code declares stays, too; and until
    workers delete them, so do the counters of a user whose line a worker has yet to find empty, or
    who is ahead of others.

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
    # Before the tasks, which they submit or would become.
    schedules = delete(rows["schedules"], using=using)
    submits = delete(rows["submits"], using=using)
    tasks, kept_for = store.upkeep.clear(Q(user=user) & ~RUNS, using=using)
    warn(kept_for)
    done = {"tasks": tasks, "running": list(asked.values()).count(False)}
    done |= {"submits": submits, "schedules": schedules}
    rename = partial(rows["batches"].update, user="")
    done["batches"] = store.database.with_retries(rename, using=using)
    done |= {one: delete(rows[one], using=using) for one in ("shares", "limits", "meters", "usage")}
    delete(rows_of(user, using=using)["changes"], using=using)
    forget_places(user, using=using)
    return {**done, "changes": changes}


def forget_places(user: str, *, using: str) -> None:
    """Delete what counts a user's tasks in the fair order, where it is idle."""
    owned = models.Account.objects.using(using).filter(user=user)
    lanes = models.Lane.objects.using(using).filter(account__in=owned.values("pk"))
    # An account stays while it has lanes.
    for rows in (lanes, owned):
        store.upkeep.forget_idle(list(rows.values_list("pk", flat=True)), using=using, idle=0.0)


def delete(rows: QuerySet[Any], *, using: str) -> int:
    """Delete rows a page at a time, by their ids, so that no others are locked; return how many."""
    count = 0
    while ids := list(rows.order_by().values_list("pk", flat=True)[:PAGE]):
        remove = rows.filter(pk__in=ids).order_by().delete
        count += store.database.with_retries(remove, using=using)[0]
    return count
