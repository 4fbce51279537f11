"""The table of django-tasks-db, and of the database backend that django-tasks once had."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext as _

from .source import Columns, Found, Left, Row, Source, Table, call

WAITING = ("READY", "NEW")
RUNNING = "RUNNING"
ANY_TIME = datetime(9998, 1, 1, tzinfo=timezone.utc)


class Results(Table):
    name = "django_tasks_database_dbtaskresult"

    # Where databases know no UUID its form differs; as text each is compared with its like.
    columns: ClassVar[Columns] = {
        "id": models.CharField(max_length=36, primary_key=True),
        "status": models.CharField(max_length=10),
        "enqueued_at": models.DateTimeField(),
        # As text, so that one that is no JSON spoils no more than its row.
        "args_kwargs": models.TextField(),
        "priority": models.IntegerField(),
        "task_path": models.TextField(),
        "queue_name": models.TextField(),
        "run_after": models.DateTimeField(null=True),
    }

    def of_queue(self) -> Row:
        queue = self.terms.queue
        return self.rows.filter(queue_name=queue) if queue else self.rows

    def wanted(self, rows: Row) -> Row:
        return self.of_queue().filter(status__in=WAITING)

    def passed_over(self) -> Iterator[tuple[str, int]]:
        rows = self.of_queue()
        running = rows.filter(status=RUNNING)
        yield _("running, or left so by a worker that died"), running.count()
        yield _("ended"), rows.exclude(status__in=(*WAITING, RUNNING)).count()

    def read(self, row: Row) -> Found | Left:
        try:
            key = str(uuid.UUID(str(row.id)))
            given = json.loads(row.args_kwargs)
            data = call(given["args"], given["kwargs"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            return Left(str(row.id), _("with data that can't be read"), repr(error))
        data["enqueued_at"] = row.enqueued_at.isoformat()
        due = row.run_after if row.run_after and row.run_after < ANY_TIME else None
        if due:
            data["using"] = {"run_after": {"at": due.isoformat()}}
        task = {
            "key": key,
            "type": row.task_path,
            "data": data,
            "priority": row.priority,
            "run_at": due,
        }
        return Found(row.id, task, row.queue_name)


class DjangoTasksDb(Source):
    name = "django-tasks-db"
    kinds = (Results,)
    takes = frozenset({"queue"})
