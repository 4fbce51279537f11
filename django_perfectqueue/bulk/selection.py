"""The tasks that a bulk operation is about, and what it would do to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any

from django.db.models import Case, Q, QuerySet, When

from django_perfectqueue import models, store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.durations import time_in
from django_perfectqueue.payload.codecs import JSON

# The type of tasks that do bulk operations.
TYPE = "perfectqueue.bulk"
COUNTED = 100_000
SAMPLE = 20
LOOKED = 200
# So many rows are looked at for a chunk by one statement, and by so many statements at most.
LOOKS = 50
USERS = 20
BY = ("status", "user")
DEAD_ONES = tuple(word.value for word in models.DEAD)
STILL = tuple(
    word.value for word in models.LIVE if word not in (models.Status.RUNNING, models.Status.STALLED)
)
IS_DEAD = Q(dead_letter__isnull=False)
HELD_BY_NOBODY = (
    IS_DEAD | Q(ticket__state__lt=models.State.RUNNING) | Q(ticket__state=models.State.BLOCKED)
)
# A task's id, queue and key.
Found = tuple[int, str, str]
# The statuses of the tasks to which a verb can be done.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "retry": DEAD_ONES,
    "cancel": tuple(word.value for word in models.LIVE),
    "delete": tuple(models.Outcome.values),
    "move": (*DEAD_ONES, *STILL),
    "edit": (*DEAD_ONES, *STILL),
}
# What a verb is about where no status is given; for deletion that is what failed.
ANY: Mapping[str, Q] = {
    "retry": IS_DEAD,
    "cancel": Q(ticket__isnull=False),
    "delete": IS_DEAD,
    "move": HELD_BY_NOBODY,
    "edit": HELD_BY_NOBODY,
}


def time_of(text: str) -> datetime:
    """
    Return a time: so long ago, such as *2h*; the last time that it was *10:00*; or ISO 8601.

    A time without an offset is in the current time zone. Raise InvalidTaskError for another text.
    """
    try:
        return time_in(text, -1)
    except (ValueError, OverflowError) as error:
        message = f"A time is such as 2h, 10:00 or 2026-11-24T10:00, not {text!r}."
        raise InvalidTaskError(message) from error


def in_time(since: str, until: str) -> Q:
    """Return the condition that a task ended then, or was created then and has not ended."""
    ended = within("ended_at", since, until)
    return ended and (ended | (Q(ended_at=None) & within("created_at", since, until)))


def within(column: str, since: str, until: str) -> Q:
    sides = {f"{column}__gte": since, f"{column}__lt": until}
    return Q(**{side: time_of(text) for side, text in sides.items() if text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """
    What tasks must have, all of it. An empty value, and None for a user, is any.

    A ``type`` may end with a star. ``group`` is the error or the reason of a dead letter,
    ``key`` a key or how it begins, ``batch`` the id of a batch, ``users`` to
    whose tasks the person is confined. ``since`` and ``until`` are of the end, and of the
    creation for what has not ended: texts as time_of() reads them, stored as ISO 8601.
    """

    queue: str = ""
    status: str = ""
    type: str = ""
    user: str | None = None
    group: str = ""
    key: str = ""
    tag: str = ""
    batch: str = ""
    since: str = ""
    until: str = ""
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Fix the times, which may be relative. Raise InvalidTaskError for what is no time."""
        for name in ("since", "until"):
            if text := getattr(self, name):
                at = time_of(text).astimezone(timezone.utc)
                object.__setattr__(self, name, at.isoformat())

    @classmethod
    def read(cls, values: JSON) -> Selection:
        """Return one from a payload; raise InvalidTaskError where it is none."""
        if not isinstance(values, dict):
            raise InvalidTaskError(f"The filter must be a JSON object, not {values!r}.")
        if unknown := values.keys() - {field.name for field in fields(cls)}:
            raise InvalidTaskError(f"A filter has no '{min(unknown)}'.")
        users = values.get("users")
        texts = [*(value for name, value in values.items() if name != "users"), *(users or ())]
        if any(value is not None and not isinstance(value, str) for value in texts):
            raise InvalidTaskError("The values of a filter must be texts.")
        return cls(**{**values, "users": None if users is None else tuple(users)})

    def check(self, verb: str) -> None:
        """Raise InvalidTaskError where a verb can't be done to tasks of this status."""
        if self.status and self.status not in ALLOWED.get(verb, ()):
            words = ", ".join(ALLOWED.get(verb, ("named",)))
            raise InvalidTaskError(f"'{verb}' is for tasks that are {words}, not '{self.status}'.")

    def stored(self) -> dict[str, object]:
        """
        Return what it says as JSON, without what read() sets by default.

        No ``users`` at all are kept: left out, they would be everyone.
        """
        defaults = asdict(Selection())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def page_by(self, verb: str) -> str:
        """Return the column of ids by which it is read: that of the smallest table."""
        statuses = {self.status} if self.status else {*ALLOWED[verb]}
        if self.group or statuses <= {*DEAD_ONES} or (verb == "delete" and not self.status):
            return "dead_letter__task_id"
        return "ticket__task_id" if statuses <= {*ALLOWED["cancel"]} else "id"

    def tasks(self, verb: str, *, using: str) -> models.TaskQuerySet:
        """Return the tasks that match, by their ids: every door to bulk work reads them here."""
        rows = models.TaskQuerySet(models.Task, using=using).with_status()
        return rows.filter(self.matches(verb)).order_by(self.page_by(verb))

    def matches(self, verb: str) -> Q:
        """Return the condition that holds for what matches."""
        found = models.condition(self.status) if self.status else ANY[verb]
        if verb == "retry":
            # Each does what needs a permission of its own.
            found &= ~Q(type=TYPE)
        return found & self.filters()

    def filters(self) -> Q:
        """Return the condition of all that it says but the status."""
        found = Q()
        if self.queue:
            # By the index of queues SQLite would read, and sort, the whole queue.
            found &= Q(queue__unindexed=self.queue)
        if self.type:
            found &= models.type_condition(self.type)
        if self.user is not None:
            found &= Q(user=self.user)
        if self.users is not None:
            found &= Q(user__in=self.users)
        if self.group:
            found &= Q(dead_letter__group=self.group)
        if self.tag:
            found &= Q(pk__in=models.Tag.objects.filter(tag=self.tag).values("task_id"))
        if self.batch:
            found &= Q(membership__batch_id=self.batch)
        if self.key:
            found &= models.begins("key", self.key)
        return found & in_time(self.since, self.until)

    def narrowest(self, verb: str) -> tuple[QuerySet[Any, Any], str]:
        """Return the fewest rows that an index finds, with one for each match; and its column."""
        if self.tag:
            return models.Tag.objects.filter(tag=self.tag), "task_id"
        if self.batch:
            return models.BatchMember.objects.filter(batch_id=self.batch), "task_id"
        if self.group:
            return models.DeadLetter.objects.filter(group=self.group), "task_id"
        if self.user:
            return models.TaskQuerySet(models.Task).filter(user=self.user), "id"
        page_by = self.page_by(verb)
        if page_by == "dead_letter__task_id":
            return models.DeadLetter.objects.all(), "task_id"
        if page_by == "ticket__task_id":
            return models.Ticket.objects.all(), "task_id"
        return models.TaskQuerySet(models.Task), "id"

    def chunk(self, verb: str, ids: range, size: int, *, using: str) -> tuple[list[Found], int]:
        """
        Return the first tasks that match and have one of these ids, and up to which id it looked.

        They may be fewer than ``size`` or none though others follow: it looks at LOOKED * LOOKS
        rows. It names the tasks by their ids, so no plan reads more, whatever the tables have.
        """
        rows, column = self.narrowest(verb)
        # No database looks in an index for what stands in a CASE: the ids are the way to the rows.
        # All that have the tag would still be read.
        is_match = Case(When(replace(self, tag="").matches(verb), then=1))
        tasks = models.TaskQuerySet(models.Task, using=using).annotate(is_match=is_match)
        found: list[Found] = []
        for _look in range(LOOKS):
            left = {f"{column}__gte": ids.start, f"{column}__lt": ids.stop}
            following = rows.using(using).filter(**left).order_by(column)
            looked = list(following.values_list(column, flat=True)[:LOOKED])
            named = tasks.filter(is_match=1, pk__in=looked).order_by("pk")
            found += named.values_list("pk", "queue", "key")[: size - len(found)]
            if len(found) == size:
                return found, found[-1][0]
            if len(looked) < LOOKED:
                return found, ids.stop - 1
            ids = range(looked[-1] + 1, ids.stop)
        return found, ids.start - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """
    What matches now: how many by status and by user, up to COUNTED, and the first of them.

    ``until`` is the newest task there is: what is submitted later is left alone.
    """

    total: int
    statuses: list[tuple[str, int]]
    users: list[tuple[str, int]]
    sample: list[models.Task]
    until: int

    @property
    def is_bounded(self) -> bool:
        """Whether there may be more."""
        return self.total >= COUNTED


def preview(verb: str, selection: Selection, *, until: int = 0, using: str) -> Preview:
    """
    Return what matches of the tasks up to the id ``until``, by default the newest.

    Raise InvalidTaskError where the verb is not for such a status.
    """
    if verb not in ALLOWED:
        raise InvalidTaskError(f"'{verb}' is for tasks that are named, not for all that match.")
    selection.check(verb)
    until = until or store.upkeep.newest_id(using=using)
    return seen(selection.tasks(verb, using=using).filter(pk__lte=until), until)


def seen(rows: QuerySet[models.Task], until: int = 0) -> Preview:
    """Return what these tasks are."""
    found: list[Any] = list(rows.values_list(*BY)[:COUNTED])
    return Preview(
        total=len(found),
        statuses=Counter(status for status, _user in found).most_common(),
        users=Counter(user for _status, user in found).most_common(USERS),
        sample=list(rows[:SAMPLE]),
        until=until,
    )
