"""Overview: whether all is well, in five seconds."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.health.queues import Overview as Figures
from django_perfectqueue.health.queues import overview
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Overview
from django_perfectqueue.queue import database
from django_perfectqueue.store.records.counts import LATEST

from ..parts.base import ReadOnlyAdmin, bounded, whole
from ..parts.cells import duration, short
from .period import chart, key_of, period_page
from .queues import queue_row

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
        "noun": "queue",
        "noun_shown": _("queue"),
        "rows": [queue_row(queue) for queue in found.queues],
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
