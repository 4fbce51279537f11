"""Workers: who is there, what they serve, and who has gone without a word."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fields import ServerNow
from django_perfectqueue.models import Worker

from .base import ReadOnlyAdmin
from .cells import short


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ["host", "pid", "standing", "since", "serves", "processors", "version", "seen"]
    list_display_links = None
    list_per_page = 50
    ordering = ["-seen_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        workers: QuerySet[Any] = super().get_queryset(request).annotate(clock=ServerNow())
        return workers

    @admin.display(description=_("standing"))
    def standing(self, worker: Any) -> SafeString:
        gone = worker.is_gone(worker.clock)
        kind, word = ("failed", gettext("gone")) if gone else ("running", gettext("there"))
        return format_html('<span class="pq-status pq-{}">{}</span>', kind, word)

    @admin.display(description=_("since"))
    def since(self, worker: Worker) -> str:
        return short(worker.started_at)

    @admin.display(description=_("queues"))
    def serves(self, worker: Worker) -> str:
        return ", ".join(worker.queues)

    @admin.display(description=_("seen"))
    def seen(self, worker: Worker) -> str:
        return short(worker.seen_at)
