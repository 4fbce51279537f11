"""Queues: what each has, its weight and its pause, and who serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness import edit
from django_perfectqueue.health.queues import QueueFigures, named_queues, overview, served
from django_perfectqueue.inspection.why_waiting import workers_serving
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Limit, QueueShare, Task
from django_perfectqueue.queue import QUEUE_LENGTH, database
from django_perfectqueue.store.records.counts import COUNTED

from ..parts.base import AtLeast, bounded, whole
from ..parts.cells import NOTHING, duration, figures_link, list_link, paused_mark, with_sign
from ..parts.rules import NamedRows

# The note of a pause begins so where all queues were paused at once.
MAINTENANCE = "Maintenance"


@admin.register(QueueShare)
class QueueAdmin(NamedRows):
    owner = ("queue",)
    named_by = "queue"
    longest = QUEUE_LENGTH
    editable = ("weight",)
    help = _(
        "How workers that serve several queues divide their time: by weight. They follow a change"
        " within seconds. A paused queue starts no task; tasks that run are not disturbed."
    )
    fields = ["queue", "weight"]

    def may_pause(self, request: HttpRequest) -> bool:
        """What pauses a queue is a limit."""
        return self.is_open(request) and request.user.has_perm("perfectqueue.change_limit")

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        found = overview(using=database(), queue=name)
        queues = [queue.name for queue in found.queues]
        rules = self.rules(request, queues)
        paused = Limit.objects.using(database()).filter(
            scope=Limit.Scope.QUEUE, name__in=queues, paused=True
        )
        pauses = {limit.name: paused_mark(limit) for limit in paused}
        serving = [worker for worker in found.workers if name in worker.queues]
        return {
            "rows": [
                queue_row(one)
                | self.in_place(request, number, one.name, rules[one.name])
                | {"pause": pauses.get(one.name, "")}
                for number, one in enumerate(found.queues)
            ],
            "is_maintained": any(limit.note.startswith(MAINTENANCE) for limit in paused),
            "workers": [printable(f"{worker} ({worker.processors})") for worker in serving],
            **({} if name is None else self.about(name)),
        }

    def about(self, queue: str) -> dict[str, object]:
        """Return what the page of one queue has: its trail, and where there is more of it."""
        of_share = Q(kind=Change.Kind.QUEUE, name="", queue=queue)
        of_limit = Q(kind=Change.Kind.LIMIT, name=f"queue:{queue}")
        return {
            "changes": self.trail(Change.objects.using(database()).filter(of_share | of_limit)),
            "links": [
                list_link("task", _("Tasks"), queue=queue),
                list_link("deadletter", _("Failed tasks"), queue=queue),
                list_link("fairshare", _("Users"), queue=queue),
                list_link("limit", _("Limits"), q=queue),
                figures_link(_("Figures"), queue=queue),
            ],
        }

    def carry_out(self, request: HttpRequest) -> None:
        """Pause all queues for a maintenance, and end it: what was paused before it stays so."""
        if not {"pause_all", "unpause_all"} & set(request.POST):
            super().carry_out(request)
            return
        if not self.may_pause(request):
            raise PermissionDenied
        limits = Limit.objects.using(database()).filter(scope=Limit.Scope.QUEUE, paused=True)
        names = limits.values_list("name", flat=True)
        if "unpause_all" in request.POST:
            self.pause_each(request, names.filter(note__startswith=MAINTENANCE))
        elif terms := self.pause_terms(request):
            note = ": ".join(filter(None, [MAINTENANCE, str(terms["note"])]))
            others = sorted({*every_queue(database())} - {*names})
            self.pause_each(request, others, {**terms, "note": note[:255]})

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, QueueShare]:
        rows = QueueShare.objects.using(database()).filter(queue__in=names)
        found = {row.queue: row for row in rows}
        return {name: found.get(name) or QueueShare(queue=name) for name in names}

    def change(self, name: str, rule: Any, given: Mapping[str, object], by: str) -> QueueShare:
        return edit.change(QueueShare, {"queue": name}, given, using=database(), by=by)

    def set_paused(self, name: str, terms: Mapping[str, Any] | None, by: str) -> bool:
        if terms is None:
            paused = {"scope": Limit.Scope.QUEUE, "name": name, "paused": True}
            return edit.end_pause(Limit, paused, using=database(), by=by)
        edit.change(Limit, {"scope": "queue", "name": name}, terms, using=database(), by=by)
        return True


def every_queue(using: str) -> list[str]:
    """Return the queues that have tasks, workers or a name in the settings."""
    stored = distinct(Task.objects.using(using), "queue", limit=None)
    return [*named_queues(using), *served(workers_serving(using=using)), *stored]


def queue_row(queue: QueueFigures) -> dict[str, object]:
    """Return a queue as the tables show it."""
    names = ("running", "stalled", "scheduled", "retrying", "blocked")
    counts = {name: counted(queue, getattr(queue, name)) for name in names}
    growth = None if queue.growth_a_minute is None else round(queue.growth_a_minute)
    return {
        "figures": queue,
        "name": queue.name,
        "label": printable(queue.name),
        "query": urlencode({"queue": queue.name}),
        "counts": {
            **counts,
            "waiting": bounded(queue.waiting, COUNTED),
            "failed": whole(queue.failed_last_hour),
        },
        "oldest": duration(queue.oldest),
        "drained_in": duration(queue.drained_in) if queue.drained_in else NOTHING,
        "growth": NOTHING
        if growth is None
        else with_sign(round(growth), whole(round(abs(growth)))),
        "rate": number_format(queue.finished_a_minute, 1),
        "unknown_types": [printable(type_) for type_ in queue.unknown_types],
    }


def counted(queue: QueueFigures, count: int) -> object:
    """Return a count; where not all were counted, of none it is not known if there are any."""
    if not queue.is_bounded:
        return bounded(count, COUNTED)
    return AtLeast(count) if count else NOTHING
