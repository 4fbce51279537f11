"""The tables of django-q2: what its ORM broker holds, and its schedules."""

from __future__ import annotations

import ast
import datetime
import io
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from django.conf import settings
from django.core import signing
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from .recurring import OtherwiseReadError, check_days, seconds_first
from .source import Columns, Found, FoundSchedule, Left, Read, Row, Source, Table, call

Package = dict[str, Any]
"""A task as django-q2 passes it on: what is in it decides what may be done with it."""

ONCE = "O"
HOUR = 3_600
FORTNIGHT = 14 * 86_400
MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
"""Of the kinds that come on a day of the month: after how many months."""
HARMLESS = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        datetime.timezone,
    )
}
STRANGE = ("hook", "chain", "iter_count")
OPTIONS = (
    *("ack_failure", "broker", "cached", "chain", "cluster", "group", "hook", "iter_cached"),
    *("iter_count", "save", "sync", "task_name", "timeout"),
)
"""What a schedule's named arguments may have that its function is not given."""
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    signing.BadSignature,
)


class Packages(Table):
    """Tasks as signed pickles."""

    name = "django_q_ormq"

    columns: ClassVar[Columns] = {
        "id": models.IntegerField(primary_key=True),
        "key": models.CharField(max_length=100),
        "payload": models.TextField(),
        "lock": models.DateTimeField(null=True),
    }

    def wanted(self, rows: Row) -> Row:
        return rows.filter(key=self.terms.queue) if self.terms.queue else rows

    def read(self, row: Row) -> Found | Left:
        name = _("row %s") % row.id
        if row.lock and row.lock > timezone.now():
            why = _("held by a cluster: stop that, and come back when the lock is over")
            return Left(name, why, row.lock.isoformat())
        if not self.terms.trust_pickle:
            return Left(name, _("pickled: say --trust-pickle to have that read"))
        try:
            return found(row.id, opened(row.payload))
        except signing.BadSignature:
            why = _("signed otherwise: SECRET_KEY and Q_CLUSTER's name must be as they were")
            return Left(name, why)
        except UNREADABLE as error:
            return Left(name, _("with data that can't be read"), str(error))


class Schedules(Table):
    name = "django_q_schedule"

    columns: ClassVar[Columns] = {
        "id": models.IntegerField(primary_key=True),
        "name": models.CharField(max_length=100, null=True),
        "func": models.CharField(max_length=256),
        "hook": models.CharField(max_length=256, null=True),
        "args": models.TextField(null=True),
        "kwargs": models.TextField(null=True),
        "schedule_type": models.CharField(max_length=2),
        "repeats": models.IntegerField(),
        "next_run": models.DateTimeField(null=True),
    }

    more_columns: ClassVar[Columns] = {
        "cluster": models.CharField(max_length=100, null=True),
        "intended_date_kwarg": models.CharField(max_length=100, null=True),
        "minutes": models.PositiveSmallIntegerField(null=True),
        "cron": models.CharField(max_length=100, null=True),
    }

    def wanted(self, rows: Row) -> Row:
        queue = self.terms.queue
        rows = rows.filter(Q(cluster=queue)) if queue else rows
        return rows.exclude(repeats=0).exclude(next_run=None)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        over = self.rows.filter(Q(repeats=0) | Q(next_run=None))
        yield _("schedules that are over"), over.count()

    def read(self, row: Row) -> Read:
        name = f"{row.name or row.id}: {row.func}"
        try:
            package = package_of(row)
        except UNREADABLE as error:
            return Left(name, _("with data that can't be read"), str(error))
        read = found(row.id, package)
        if isinstance(read, Left):
            return replace(read, name=name)
        return read if row.schedule_type == ONCE else recurring(row, read.task)


def recurring(row: Row, task: Row) -> FoundSchedule | Left:
    """Return a schedule, of which this would be the next task."""
    if getattr(row, "intended_date_kwarg", None):
        why = _("with what a task here has not: %s") % "intended_date_kwarg"
        return Left(row.name or str(row.id), why)
    try:
        timing = timing_of(row)
    except OtherwiseReadError as error:
        return Left(row.name or str(row.id), _("that would come at other times here"), str(error))
    terms = {
        **timing,
        "time_limit": task["time_limit"],
        "remaining": row.repeats if row.repeats > 0 else None,
        "overlap": "allow",
    }
    name = row.name or f"django-q2-schedule-{row.id}"
    return FoundSchedule(row.id, name, task["type"], task["data"], terms)


def timing_of(row: Row) -> dict[str, object]:
    """
    Return when a schedule comes: by the clock of TIME_ZONE from a day on, else as an interval.

    Raise OtherwiseReadError for what would come at other times here.
    """
    kind, local = row.schedule_type, timezone.localtime(row.next_run)
    if kind == "C":
        return {"cron": check_days(seconds_first(row.cron or ""), both=False)}
    spans = {"I": (row.minutes or 0) * 60, "H": HOUR, "BW": FORTNIGHT}
    if kind in spans:
        return {"every": spans[kind], "starts_at": row.next_run}
    clock = f"{local.second} {local.minute} {local.hour}"
    if kind in ("D", "W"):
        return {"cron": f"{clock} * * {'*' if kind == 'D' else local.isoweekday() % 7}"}
    step = MONTHS.get(kind)
    if step is None or local.day > 28:
        raise OtherwiseReadError(
            _("kind %(kind)s on day %(day)s") % {"kind": kind, "day": local.day}
        )
    months = sorted((local.month - 1 + ahead) % 12 + 1 for ahead in range(0, 12, step))
    return {"cron": f"{clock} {local.day} {','.join(map(str, months)) if step > 1 else '*'} *"}


class DjangoQ2(Source):
    name = "django-q2"
    kinds = (Packages, Schedules)
    takes = frozenset({"queue", "trust_pickle"})


class Reference:
    """Something that a pickle names: never imported, and of no use but for its ``path``."""

    path: ClassVar[str]

    def __new__(cls, *args: object) -> Reference:
        raise pickle.UnpicklingError(_("it holds %s") % cls.path)


class Unpickler(pickle.Unpickler):
    """
    Makes plain values and points in time, and imports nothing.

    See "Restricting Globals" in the documentation of pickle.
    """

    def find_class(self, module: str, name: str) -> object:
        path = f"{module}.{name}"
        return HARMLESS.get((module, name)) or type("Reference", (Reference,), {"path": path})


class Serializer:
    def loads(self, data: bytes) -> object:
        return Unpickler(io.BytesIO(data)).load()


def opened(payload: str) -> Package:
    """
    Return the package of a task.

    Raise BadSignature, or whatever a broken pickle raises.
    """
    salt = getattr(settings, "Q_CLUSTER", {}).get("name", "default")
    package = signing.loads(payload, salt=salt, serializer=Serializer)  # type: ignore[arg-type]
    if not isinstance(package, dict):
        raise TypeError(_("it is no task"))
    return package


def found(row: int, package: Package) -> Found | Left:
    key, func = package["id"], package["func"]
    if more := [name for name in STRANGE if package.get(name)]:
        return Left(key, _("with what a task here has not: %s") % more[0])
    args, kwargs = package["args"], package["kwargs"]
    if not is_plain([args, kwargs]):
        return Left(key, _("with arguments that JSON can't hold"))
    task = {
        "key": key,
        "type": getattr(func, "path", func),
        "data": call(args, kwargs),
        "time_limit": package.get("timeout") or None,
        "run_at": package.get("next_run"),
    }
    return Found(row, task)


def package_of(schedule: Row) -> Package:
    """Return the package of a task that a schedule would make."""
    kwargs = named_arguments(schedule.kwargs)
    options = kwargs.pop("q_options", None) or {}
    given = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    if dated := getattr(schedule, "intended_date_kwarg", None):
        kwargs[dated] = schedule.next_run.isoformat()
    return {
        **given,
        **options,
        **({"hook": schedule.hook} if schedule.hook else {}),
        "id": f"django-q2-schedule-{schedule.id}",
        "func": schedule.func,
        "args": arguments(schedule.args),
        "kwargs": kwargs,
        "next_run": schedule.next_run,
    }


def arguments(text: str | None) -> list[object]:
    """Return positional arguments that were written as ``1, 'two'``."""
    if not text:
        return []
    value = ast.literal_eval(text)
    return list(value) if isinstance(value, tuple) else [value]


def named_arguments(text: str | None) -> Package:
    """Return named arguments that were written as a dict, or as ``x=1, y='two'``."""
    if not text:
        return {}
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        node = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            raise TypeError(_("its named arguments have no names")) from None
        value = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    if not isinstance(value, dict):
        raise TypeError(_("its named arguments are no dict"))
    return value


def is_plain(value: object) -> bool:
    """Return whether a value survives JSON unchanged, tuples aside."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and is_plain(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)
