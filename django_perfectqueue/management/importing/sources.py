"""The tables of PerfectQueue for Ruby, django-tasks-db, django-q2 and django-celery-beat."""

from __future__ import annotations

import ast
import gzip
import io
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any, ClassVar

from django.db import models
from django.utils import timezone

from .move import Columns, Importable, Row, StaysError, Table, call

GZIP = b"\x1f\x8b"
LARGEST = 64 * 2**20
# From here on a time of django-tasks-db means none.
ANY_TIME = datetime(9998, 1, 1, tzinfo=zones.utc)
# Of the kinds of django-q2 that come on a day of the month: after how many months.
MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
# What a schedule's named arguments in django-q2 may have that its function is not given.
OPTIONS = (
    *("ack_failure", "broker", "cached", "chain", "cluster", "group", "hook", "iter_cached"),
    *("iter_count", "save", "sync", "task_name", "timeout"),
)
UNKNOWN = ("hook", "chain", "iter_count", "intended_date_kwarg")
CLEANUP = "celery.backend_cleanup"
CLOCKED = "django_celery_beat_clockedschedule"
CRON = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


class PerfectQueue(Table):
    """
    ``timeout`` is when a task is due, or when it comes back if a worker has it; where
    ``created_at`` is empty it has finished.
    """

    source = "perfectqueue"
    usual_name = "perfectqueue"
    key = models.CharField
    columns: ClassVar[Columns] = {
        models.IntegerField: "timeout created_at max_running?",
        models.BinaryField: "data",
        models.TextField: "resource?",
    }
    passed_over: ClassVar[Mapping[str, models.Q]] = {"finished": models.Q(created_at=None)}

    def open(self) -> None:
        super().open()
        self.caps: dict[str, int] = {}

    def found(self, row: Row) -> Importable:
        data = unpacked(row.data)
        due = datetime.fromtimestamp(row.timeout, tz=zones.utc)
        type_ = data.pop("type", None) or row.id.partition(".")[0]
        user = row.resource or ""
        if user and row.max_running is not None:
            self.caps[user] = row.max_running
        return Importable(row.id, str(type_), data, {"user": user, "run_at": due})

    def notes(self) -> list[str]:
        text = "Each task's max_running is not moved; here it is set for a user, by pq_user set: "
        caps = ", ".join(f"{user}={cap}" for user, cap in sorted(self.caps.items()))
        return [text + caps] if caps else []


def unpacked(stored: str | bytes | None) -> dict[str, object]:
    """
    Return the data of a task, the type among them.

    Raise ValueError, or what gzip raises, when they can't be read.
    """
    text = stored.encode() if isinstance(stored, str) else bytes(stored or b"")
    if text.startswith(GZIP):
        with gzip.open(io.BytesIO(text)) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"unpacked it has more than {LARGEST} bytes")
    data = json.loads(text) if text else {}
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data


class DjangoTasksDb(Table):
    """The database backend that django-tasks once had has the same table."""

    source = "django-tasks-db"
    usual_name = "django_tasks_database_dbtaskresult"
    # Where databases know no UUID its form differs; as text each is compared with its like.
    key = models.CharField
    # The data as text, so that one that is no JSON spoils no more than its row.
    columns: ClassVar[Columns] = {
        models.TextField: "status args_kwargs task_path queue_name",
        models.DateTimeField: "enqueued_at run_after",
        models.IntegerField: "priority",
    }
    passed_over: ClassVar[Mapping[str, models.Q]] = {
        "running, or left so by a worker that died": models.Q(status="RUNNING"),
        "ended": ~models.Q(status__in=("READY", "NEW", "RUNNING")),
    }

    def found(self, row: Row) -> Importable:
        key = str(uuid.UUID(str(row.id)))
        given = json.loads(row.args_kwargs)
        data: dict[str, Any] = call(given.get("args"), given.get("kwargs"))
        data["enqueued_at"] = row.enqueued_at.isoformat()
        due = row.run_after if row.run_after and row.run_after < ANY_TIME else None
        if due:
            data["using"] = {"run_after": {"at": due.isoformat()}}
        options = {"priority": row.priority, "run_at": due}
        return Importable(key, row.task_path, data, options, row.queue_name)


class DjangoQ2(Table):
    """Its schedules; those of the kind ``O`` come once."""

    source = "django-q2"
    usual_name = "django_q_schedule"
    columns: ClassVar[Columns] = {
        models.TextField: "name func hook args kwargs schedule_type cluster? cron?"
        " intended_date_kwarg?",
        models.IntegerField: "repeats minutes?",
        models.DateTimeField: "next_run",
    }
    passed_over: ClassVar[Mapping[str, models.Q]] = {
        "schedules that are over": models.Q(repeats=0) | models.Q(next_run=None)
    }

    def label(self, row: Row) -> str:
        return f"{row.name or row.id}: {row.func}"

    def found(self, row: Row) -> Importable:
        once = row.schedule_type == "O"
        kwargs = named_arguments(row.kwargs)
        more = kwargs.pop("q_options", None) or {}
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs} | more
        options["hook"] = row.hook or options.get("hook")
        if dated := row.intended_date_kwarg:
            options["intended_date_kwarg"] = not once
            kwargs[dated] = row.next_run.isoformat()
        for name in UNKNOWN:
            if options.get(name):
                raise StaysError(f"with what a task here has not: {name}")
        data = call(arguments(row.args), kwargs)
        if not is_plain(data):
            raise StaysError("with arguments that JSON can't hold")
        key = f"django-q2-schedule-{row.id}"
        limit = {"time_limit": options.get("timeout") or None}
        if once:
            return Importable(key, row.func, data, {**limit, "run_at": row.next_run})
        repeats = row.repeats if row.repeats > 0 else None
        terms = {**self.timing(row), **limit, "remaining": repeats, "overlap": "allow"}
        return Importable(row.name or key, row.func, data, terms, recurs=True)

    def timing(self, row: Row) -> dict[str, object]:
        """
        Return when a schedule comes: by the clock of TIME_ZONE from a day on, else as an interval.

        Raise StaysError for what would come at other times here.
        """
        kind, local = row.schedule_type, timezone.localtime(row.next_run)
        if kind == "C":
            return {"cron": check_days(seconds_first(row.cron or ""), both=False)}
        spans = {"I": (row.minutes or 0) * 60, "H": 3_600, "BW": 14 * 86_400}
        if kind in spans:
            return {"every": spans[kind], "starts_at": row.next_run}
        clock = f"{local.second} {local.minute} {local.hour}"
        if kind in ("D", "W"):
            return {"cron": f"{clock} * * {'*' if kind == 'D' else local.isoweekday() % 7}"}
        step = MONTHS.get(kind)
        if step is None or local.day > 28:
            raise comes_otherwise(f"kind {kind} on day {local.day}")
        months = sorted((local.month - 1 + ahead) % 12 + 1 for ahead in range(0, 12, step))
        return {"cron": f"{clock} {local.day} {','.join(map(str, months)) if step > 1 else '*'} *"}


def seconds_first(cron: str) -> str:
    """Return an expression of croniter's, whose sixth field is that of the seconds."""
    fields = cron.split()
    return " ".join([fields[5], *fields[:5]]) if len(fields) == 6 else cron


def arguments(text: str | None) -> list[object]:
    """Return positional arguments that were written as ``1, 'two'``."""
    if not text:
        return []
    value = ast.literal_eval(text)
    return list(value) if isinstance(value, tuple) else [value]


def named_arguments(text: str | None) -> dict[str, Any]:
    """Return named arguments that were written as a dict, or as ``x=1, y='two'``."""
    if not text:
        return {}
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        node = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            raise TypeError("its named arguments have no names") from None
        value = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    if not isinstance(value, dict):
        raise TypeError("its named arguments are no dict")
    return value


def is_plain(value: object) -> bool:
    """Return whether a value survives JSON unchanged, tuples aside."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and is_plain(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


class CeleryBeat(Table):
    """What comes again is a crontab, an interval or the sun; what comes once is clocked."""

    source = "celery-beat"
    usual_name = "django_celery_beat_periodictask"
    columns: ClassVar[Columns] = {
        models.TextField: "name task args kwargs queue headers?",
        models.DateTimeField: "expires start_time last_run_at?",
        models.BooleanField: "enabled one_off?",
        models.IntegerField: "priority total_run_count clocked_id crontab_id interval_id solar_id"
        " expire_seconds?",
    }
    passed_over: ClassVar[Mapping[str, models.Q]] = {"switched off": models.Q(enabled=False)}

    def open(self) -> None:
        super().open()
        self.clocked = self.others(CLOCKED, {models.DateTimeField: "clocked_time"})
        crontab: Columns = {models.TextField: " ".join([*CRON, "timezone"])}
        self.crontabs = self.others("django_celery_beat_crontabschedule", crontab)
        interval: Columns = {models.IntegerField: "every", models.TextField: "period"}
        self.intervals = self.others("django_celery_beat_intervalschedule", interval)

    def others(self, table: str, columns: Columns) -> dict[int, Row]:
        """Return the rows of a table that this one refers to, by their ids."""
        rows = self.model_of(table, columns)._default_manager.using(self.using)
        return dict(rows.in_bulk())

    def found(self, row: Row) -> Importable:
        if row.task == CLEANUP:
            raise StaysError("of Celery's own: RETENTION does it here", left_behind=False)
        if row.solar_id is not None:
            raise StaysError("solar schedules: not possible here", row.task)
        if row.total_run_count and (row.one_off or row.clocked_id is not None):
            raise StaysError("that have run", left_behind=False)
        data = call(json.loads(row.args or "[]"), json.loads(row.kwargs or "{}"))
        if json.loads(row.headers or "{}"):
            raise StaysError("with what a task here has not: headers")
        queue = row.queue or None
        if row.clocked_id is not None:
            return Importable(f"celery-beat-{row.id}", row.task, data, self.once(row), queue)
        terms = {
            **self.timing(row),
            "ends_at": row.expires,
            "expires_after": row.expire_seconds,
            **({} if row.priority is None else {"priority": row.priority}),
            "remaining": 1 if row.one_off else None,
            "overlap": "allow",
        }
        return Importable(row.name, row.task, data, terms, queue, recurs=True)

    def once(self, row: Row) -> dict[str, object]:
        """Return when a task of the clock is due, and until when it may start."""
        if row.clocked_id not in self.clocked:
            raise StaysError(f"with a time that is not in the table '{CLOCKED}'")
        due = max(filter(None, (self.clocked[row.clocked_id].clocked_time, row.start_time)))
        expires = row.expires
        if expires is None and row.expire_seconds:
            expires = due + timedelta(seconds=row.expire_seconds)
        return {"run_at": due, "expires_at": expires, "priority": row.priority or 0}

    def timing(self, row: Row) -> dict[str, object]:
        """Return when a schedule comes."""
        if (crontab := self.crontabs.get(row.crontab_id)) is not None:
            fields = ["".join(getattr(crontab, name).split()) for name in CRON]
            cron = check_days(" ".join(fields), both=True)
            return {"cron": cron, "timezone": crontab.timezone, "starts_at": row.start_time}
        if (interval := self.intervals.get(row.interval_id)) is not None:
            every = timedelta(**{interval.period: interval.every})
            starts_at = max(filter(None, (row.start_time, row.last_run_at)), default=None)
            return {"every": every, "starts_at": starts_at}
        raise StaysError("with a time that can't be found")


def check_days(cron: str, *, both: bool) -> str:
    """
    Return a cron expression whose days mean the same here; raise StaysError if not.

    Here, as in Debian's cron, a day of the month and one of the week must both match where one
    of them begins with ``*``, else one is enough. ``both`` says that there both always must.
    """
    fields = cron.split()
    if len(fields) not in (5, 6):
        return cron
    month, week = fields[-3], fields[-1]
    if "*" in (month, week) or (month.startswith("*") or week.startswith("*")) == both:
        return cron
    raise comes_otherwise(
        f"'{cron}' has a day of the month and one of the week, which are joined otherwise"
    )


def comes_otherwise(detail: str) -> StaysError:
    return StaysError("that would fire at other times here", detail)


SOURCES: dict[str, type[Table]] = {
    table.source: table for table in (PerfectQueue, DjangoTasksDb, DjangoQ2, CeleryBeat)
}
