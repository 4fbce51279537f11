from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue.fields import ServerNow
from django_perfectqueue.models import Worker

from ..base import QueueCommand
from ..table import GAP, Column, lines, terminal_width
from ..words import readable

MOST = 1000


class Command(QueueCommand):
    summary = gettext_lazy(
        "Lists the workers of all hosts: since when they are there, what they serve, and when"
        " they were last seen."
    )
    queue_help: str | Promise = gettext_lazy("Only those that serve this queue (default: all).")

    def add_options(self, parser: CommandParser) -> None:
        """It has none of its own."""

    def act(self, **options: Any) -> None:
        rows: Any = Worker.objects.using(self.queue.using).annotate(clock=ServerNow())
        found = [
            worker
            for worker in rows.order_by("-seen_at")[:MOST]
            if options["queue"] in (None, *worker.queues)
        ]
        if self.as_json:
            for worker in found:
                self.print_json(facts(worker))
            return
        if found:
            self.print_table(found)
        self.say(counted(sum(not worker.is_gone(worker.clock) for worker in found)))

    def print_table(self, workers: list[Any]) -> None:
        columns = [
            Column(_("host"), elastic=True),
            Column(_("pid"), right=True),
            Column(_("since")),
            Column(_("queues"), elastic=True),
            Column(_("processors"), right=True),
            Column(_("seen")),
            Column(""),
        ]
        table = lines(columns, cells(workers), width=terminal_width(self.stdout))
        self.stdout.write(self.style.MIGRATE_HEADING(GAP.join(next(table)).rstrip()))
        for row in table:
            self.stdout.write(GAP.join(row).rstrip())


def cells(workers: list[Any]) -> Iterator[list[str]]:
    for worker in workers:
        yield [
            worker.host,
            str(worker.pid),
            ago(worker.started_at, worker.clock),
            ", ".join(worker.queues),
            str(worker.processors),
            ago(worker.seen_at, worker.clock),
            _("gone") if worker.is_gone(worker.clock) else "",
        ]


def ago(moment: datetime, now: datetime) -> str:
    return _("%s ago") % readable((now - moment).total_seconds())


def counted(living: int) -> str:
    if not living:
        return _("No worker is there. Start one: manage.py pq_worker")
    return ngettext("%s worker is there.", "%s workers are there.", living) % living


def facts(worker: Any) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "started_at": worker.started_at.isoformat(),
        "seen_at": worker.seen_at.isoformat(),
        "gone": worker.is_gone(worker.clock),
        "queues": worker.queues,
        "processors": worker.processors,
        **(worker.routes or {"types": None, "patterns": None}),
    }
