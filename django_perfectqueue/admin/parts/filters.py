"""What a list of tasks can be narrowed to, and the search by the beginning of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db.models import Count, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import models
from django_perfectqueue.bulk import in_time, within
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.inspection.scope import in_scope, scope_of
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import database
from django_perfectqueue.store.records.counts import names
from django_perfectqueue.templatetags import perfectqueue as cells

from .base import COUNTED

REACH = 100_000
# So many that have yet to end are found behind the newest.
LIVE_FOUND = 1_000
# So many are offered while one is typed in.
KNOWN = 10
ALL = "all"
GROUPS = 50
# Of the keys of one queue, and of the newest tasks of a scope.
FOUND = 1_000
KEPT = "_perfectqueue_queues"
COMPLETED = ("user", "type", "tag")
FEW_HAVE = ("tag", "watched")
FEW = (*models.DEAD, models.Status.RUNNING, models.Status.STALLED)


class ValueFilter(admin.SimpleListFilter):
    """
    Keeps the rows whose column, named like the parameter, has exactly the chosen value.

    Where dead letters are listed, one that is ``of_task`` is about the column of the task. One
    of the ``words`` holds where none is chosen if it is the ``default``.
    """

    of_task = False
    words: Mapping[str, object] = {}
    default = ""

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any) -> None:
        self.is_of_letters = model is models.DeadLetter
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(value, str(label)) for value, label in self.words.items()]

    def value(self) -> str | None:
        return super().value() or self.default or None

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        return islice(super().choices(changelist), bool(self.default), None)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        value = self.value()
        if not value:
            return queryset
        found = self.condition(value)
        if self.of_task and self.is_of_letters:
            found = Q(**{f"task__{name}": sought for name, sought in found.children})  # type: ignore[misc]
        return queryset.filter(found)

    def condition(self, value: str) -> Q:
        return Q(**{str(self.parameter_name): value})


class StatusFilter(ValueFilter):
    title = _("status")
    parameter_name = "status"
    words = dict(models.Status.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        value = self.value()
        try:
            return queryset.in_status(value) if value else queryset  # type: ignore[attr-defined]
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error


class EndingFilter(ValueFilter):
    """How it ended: failed unless another is chosen, since others were mostly meant to end so."""

    title = _("status")
    parameter_name = "status"
    words = {**{outcome.value: outcome.label for outcome in models.DEAD}, ALL: _("All")}
    default = models.Status.FAILED.value

    def condition(self, value: str) -> Q:
        return Q() if value == ALL else Q(status=value)


class QueueFilter(ValueFilter):
    title = _("queue")
    of_task = True
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(name, printable(name)) for name in queue_names(request)]

    def condition(self, value: str) -> Q:
        # Beside these SQLite would read the whole queue by its index.
        found = any(name in self.request.GET for name in FEW_HAVE)
        return Q(queue__unindexed=value) if found else Q(queue=value)


class BatchFilter(ValueFilter):
    """The batch whose page led here; there is no list of all to choose from."""

    title = _("batch")
    parameter_name = "batch"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        value = request.GET.get("batch", "")
        if not value:
            return []
        if not numbers([value]):
            raise IncorrectLookupParameters(value)
        batches = in_scope(models.Batch.objects.using(database()), request, "user")
        names = batches.filter(pk=value).values_list("name", flat=True)
        return [(value, printable(names.first() or value))]

    def condition(self, value: str) -> Q:
        return Q(membership__batch_id=value)


class GroupFilter(ValueFilter):
    """The groups of the COUNTED newest dead letters that fit all other filters, largest first."""

    title = _("group")
    parameter_name = "group"

    def has_output(self) -> bool:
        return bool(self.lookup_choices or self.value())

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = model_admin.get_queryset(request)
        for other in model_admin.list_filter:
            if other is not GroupFilter:
                given = dict(request.GET.lists())
                rows = other(request, given, models.DeadLetter, model_admin).queryset(request, rows)
        times = rows.order_by("-ended_at").values_list("ended_at", flat=True)
        for oldest in times[COUNTED - 1 : COUNTED]:
            rows = rows.filter(ended_at__gte=oldest)
        counted = rows.order_by().values_list("group").annotate(count=Count("pk"))
        return [
            (name, f"{printable(name)} ({cells.bounded(count, COUNTED)})")
            for name, count in counted.order_by("-count", "group")[:GROUPS]
            if name
        ]


class TextFilter(ValueFilter):
    """A value that is typed in, since there may be too many to choose from."""

    template = "admin/perfectqueue/text_filter.html"
    hint: object = ""
    spans: Mapping[str, object] = {}

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        kept = {
            name: value
            for name, value in changelist.params.items()
            if name not in (self.parameter_name, PAGE_VAR)
        }
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "kept": kept.items(),
            "hint": self.hint,
            "known": cells.page_url("known") if self.parameter_name in COMPLETED else "",
            "clear": changelist.get_query_string(remove=[str(self.parameter_name)]),
            "links": [
                (title, changelist.get_query_string({str(self.parameter_name): span}))
                for span, title in self.spans.items()
            ],
        }


class UserFilter(TextFilter):
    title = _("user")
    of_task = True
    parameter_name = "user"
    hint = _("exactly")


class TagFilter(TextFilter):
    title = _("tag")
    parameter_name = "tag"
    hint = _("exactly")

    def condition(self, value: str) -> Q:
        return Q(pk__in=models.Tag.objects.filter(tag=value).values("task_id"))


class WatchedFilter(ValueFilter):
    """Keeps the tasks that the person who looks watches."""

    title = _("watched")
    parameter_name = "watched"
    words = {"me": _("by me")}

    def condition(self, value: str) -> Q:
        return Q(pk__in=watched_by(self.request).values("task_id"))


def watched_by(request: HttpRequest) -> QuerySet[models.Watch]:
    """Return what the person of a request watches."""
    return models.Watch.objects.using(database()).filter(person=str(request.user.pk))


class SinceFilter(TextFilter):
    """Keeps what ended at or after a time, or was submitted then and has not ended."""

    title = _("since")
    parameter_name = "since"
    hint = _("15m, 10:00 or 2026-11-24T10:00")
    spans = {"15m": _("last 15 minutes"), "1h": _("last hour"), "1d": _("last day")}

    def condition(self, value: str) -> Q:
        since, until = ("", value) if self.parameter_name == "until" else (value, "")
        try:
            return within("ended_at", since, until) if self.is_of_letters else in_time(since, until)
        except InvalidTaskError as error:
            raise IncorrectLookupParameters(error) from error


class UntilFilter(SinceFilter):
    title = _("until")
    parameter_name = "until"
    spans = {}


class TypeFilter(TextFilter):
    title = _("type")
    of_task = True
    parameter_name = "type"
    hint = _("exactly, or report*")

    def condition(self, value: str) -> Q:
        return models.type_condition(value)


class ReachFilter(ValueFilter):
    """
    How far back to look where no index finds the rows: by default not through the whole table,
    but among the newest, and among those that have yet to end.

    It is shown only if such a filter is chosen, and never for statuses that few tasks have.
    """

    title = _("reach")
    parameter_name = "reach"
    words = {"newest": _("The newest 100,000 tasks"), ALL: _("All (may be slow)")}
    default = "newest"

    def has_output(self) -> bool:
        chosen = self.request.GET
        status = chosen.get("status")
        if any(chosen.get(name) for name in ("q", *FEW_HAVE)) or status in FEW:
            return False
        return any(chosen.get(name) for name in ("status", "queue", "type", "since", "until"))

    @property
    def is_bounding(self) -> bool:
        """Whether it leaves out what is too far back."""
        return self.has_output() and self.value() != ALL

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        if self.value() == ALL:
            return queryset
        status = request.GET.get("status")
        if status in models.LIVE:
            return self.newest_live(queryset)
        floor = self.floor(request.GET.get("user", ""))
        newest = Q(pk__gt=floor)
        if not status and floor > 0:
            # By their ids: no index serves two tables in one condition.
            live = self.newest_live(queryset.filter(pk__lte=floor)).order_by("-pk")
            newest |= Q(pk__in=list(live.values_list("pk", flat=True)[:LIVE_FOUND]))
        return queryset.filter(newest)

    def newest_live(self, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Look among those that have yet to end, however many that are younger have ended."""
        live = models.Ticket.objects.using(database()).order_by("-pk").values_list("pk", flat=True)
        floor = next(iter(live[REACH : REACH + 1]), 0)
        return queryset.filter(pk__gt=floor, ticket__task_id__gt=floor)

    def floor(self, user: str) -> int:
        """Return the id above which to look."""
        rows = plain().order_by("-pk").values_list("pk", flat=True)
        if not user:
            return int(rows.first() or 0) - REACH
        beyond = rows.filter(user=user)[REACH : REACH + 1]
        return int(next(iter(beyond), 0))


class DeadReachFilter(ReachFilter):
    """The same for dead letters, of which no index finds those of a type, a user or a queue."""

    def has_output(self) -> bool:
        return any(self.request.GET.get(name) for name in ("type", "user", "queue"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        if self.value() == ALL or not self.has_output():
            return queryset
        times = models.DeadLetter.objects.using(database()).order_by("-ended_at")
        for oldest in times.values_list("ended_at", flat=True)[REACH : REACH + 1]:
            return queryset.filter(ended_at__gt=oldest)
        return queryset


def queue_names(request: HttpRequest) -> list[str]:
    """
    Return the first queues that have tasks; for staff with a scope those of their newest tasks.

    They are read once for each request.
    """
    if not hasattr(request, KEPT):
        if scope_of(request) is None:
            found = names(using=database()).queues
        else:
            rows = in_scope(plain(), request, "user").order_by("-pk")
            found = sorted(set(rows.values_list("queue", flat=True)[:FOUND]))
        setattr(request, KEPT, found)
    return cast("list[str]", getattr(request, KEPT))


def known(name: str, start: str, request: HttpRequest) -> list[str]:
    """
    Return the first users, types or tags that begin so and that a person may see: those of all
    tasks where an index has them in order, or else of the newest tasks.
    """
    in_order = {"user": plain().exclude(user=""), "tag": models.Tag.objects.using(database())}
    if scope_of(request) is None and name in in_order:
        return distinct(in_order[name].filter(models.begins(name, start)), name, limit=KNOWN)
    rows: QuerySet[Any] = in_scope(plain(), request, "user").order_by("-pk")[:FOUND]
    if name == "tag":
        rows = in_order["tag"].filter(task_id__in=[*rows.values_list("pk", flat=True)])
    values = set(rows.values_list(name, flat=True)) - {""}
    return sorted(value for value in values if value.startswith(start))[:KNOWN]


def one_queue(request: HttpRequest) -> bool:
    """Return whether a list shows a single queue: it was chosen, or is the only one."""
    return "queue" in request.GET or len(queue_names(request)) < 2


def ids_by_key(start: str, request: HttpRequest) -> list[int]:
    """
    Return the tasks whose key is this or begins so: the first FOUND of each queue, by key.

    They are of the queue that was chosen, or else of all.
    """
    queue = request.GET.get("queue")
    queues = [queue] if queue else queue_names(request)
    found = plain().filter(models.begins("key", start))
    rows = in_scope(found, request, "user").order_by("key")
    return [
        task_id
        for queue in queues
        for task_id in rows.filter(queue=queue).values_list("pk", flat=True)[:FOUND]
    ]


def plain() -> models.TaskQuerySet:
    """Return tasks without their status, and so without a join."""
    return models.TaskQuerySet(models.Task, using=database())


def numbers(words: Sequence[str]) -> list[int]:
    """Return the words that are ids, each once."""
    found = (int(word) for word in words if word.isdecimal() and len(word) < 20)
    return list(dict.fromkeys(number for number in found if number < 2**63))
