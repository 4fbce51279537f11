"""Queues: what each has, its weight and its pause, and who serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness import edit
from django_perfectqueue.health.queues import overview
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Limit, QueueShare
from django_perfectqueue.queue import QUEUE_LENGTH, database

from ..parts.cells import figures_link, list_link, paused_mark
from ..parts.named_rows import NamedRows
from ..parts.queue_rows import queue_row


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
    fieldsets = [(None, {"fields": ["queue", "weight"]})]

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

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, QueueShare]:
        rows = QueueShare.objects.using(database()).filter(queue__in=names)
        found = {row.queue: row for row in rows}
        return {name: found.get(name) or QueueShare(queue=name) for name in names}

    def change(self, name: str, rule: Any, given: Mapping[str, object], by: str) -> QueueShare:
        return edit.change_weight(name, given["weight"], using=database(), by=by)

    def set_paused_name(self, name: str, terms: Mapping[str, Any] | None, by: str) -> bool:
        if terms is None:
            paused = {"scope": Limit.Scope.QUEUE, "name": name, "paused": True}
            return edit.end_pause(Limit, paused, using=database(), by=by)
        edit.change_limit("queue", name, terms, using=database(), by=by)
        return True
