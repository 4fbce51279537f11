"""Overview: whether all is well, in five seconds."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.health.queues import Overview as Figures
from django_perfectqueue.health.queues import QueueFigures, overview
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Overview
from django_perfectqueue.queue import database
from django_perfectqueue.store.records.counts import COUNTED, LATEST

from ..parts.base import AtLeast, ReadOnlyAdmin, bounded, whole
from ..parts.cells import NOTHING, duration, short
from ..parts.chart import chart
from .period import key_of, period_page

GROUPS = 5
PERMISSION = "perfectqueue.view_overview"


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A page in place of the list."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        figures = self.admin_site.admin_view(self.figures_view)
        return [
            path("", view, name=name),
            path("figures/", figures, name=f"{self.opts.app_label}_figures"),
        ]

    def figures_view(self, request: HttpRequest) -> HttpResponse:
        """Show what a queue, a type or a user did in the last hour, day or month."""
        key = key_of(request.GET)
        whose = None if key.type else key.user
        if not request.user.has_perm(PERMISSION) or not may_see(request, whose):
            raise PermissionDenied
        context = period_page(key, request.GET, using=database())
        return self.page(request, "overview/period", context)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Show the page, which refreshes itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            "title": _("Overview"),
            "original": _("All queues"),
            **page(overview(using=database())),
            **(extra_context or {}),
        }
        return self.page(request, "overview/overview", context)


def page(found: Figures) -> dict[str, object]:
    """Return what the template shows."""
    failed = sorted(found.failed.items(), key=lambda group: group[1][1], reverse=True)
    return {
        "found": found,
        "unwell": ", ".join(map(printable, found.unwell)),
        "rows": [row(queue) for queue in found.queues],
        "chart": chart(found.minutes, workers=found.workers),
        "groups": [
            {
                "name": printable(name),
                "query": urlencode({"group": name}),
                "count": bounded(count, LATEST - 1),
                "latest": short(at),
            }
            for name, (count, at) in failed[:GROUPS]
        ],
        "received": [
            {
                "user": printable(user),
                "queue": printable(queue),
                "query": urlencode({"queue": queue, "user": user}),
                "seconds": duration(seconds),
                "ended": whole(ended),
            }
            for (queue, user), (ended, seconds) in found.received.items()
        ],
    }


def row(queue: QueueFigures) -> dict[str, object]:
    """Return one queue as the page shows it, with the queries of the lists that it links to."""
    names = ("running", "stalled", "scheduled", "retrying", "blocked")
    counted = {name: getattr(queue, name) for name in names}
    counts = {
        name: at_least(count) if queue.is_bounded else bounded(count, COUNTED)
        for name, count in counted.items()
    }
    counts["waiting"] = bounded(queue.waiting, COUNTED)
    counts["failed"] = whole(queue.failed_last_hour)
    return {
        "figures": queue,
        "name": printable(queue.name),
        "query": urlencode({"queue": queue.name}),
        "waiting_query": urlencode({"queue": queue.name, "status": "waiting"}),
        "counts": counts,
        "oldest": duration(queue.oldest),
        "drained_in": duration(queue.drained_in) if queue.drained_in else NOTHING,
        "growth": signed(queue.growth_a_minute),
        "rate": number_format(queue.finished_a_minute, 1),
        "unknown_types": [printable(type_) for type_ in queue.unknown_types],
    }


def at_least(count: int) -> object:
    """Return that there may be more; of none it is not known whether there are any."""
    return AtLeast(count) if count else NOTHING


def signed(count: float | None) -> str:
    if count is None:
        return NOTHING
    count = round(count)
    sign = "+" if count > 0 else "\N{MINUS SIGN}" if count < 0 else ""
    return sign + whole(abs(count))
