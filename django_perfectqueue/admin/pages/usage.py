"""Shares received: what each user was entitled to, and what it got."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.conf import options
from django_perfectqueue.fairness.report import COUNTED, WINDOWS, UserShare, balance
from django_perfectqueue.health.queues import named_queues
from django_perfectqueue.inspection.why_waiting import workers_serving
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Usage
from django_perfectqueue.queue import QUEUE_LENGTH, database
from django_perfectqueue.store import oldest_due

from ..parts.base import ReadOnlyAdmin, bounded, whole
from ..parts.cells import NOTHING, duration
from ..parts.search import queue_names

TOP = 50
OVER = {"minute": _("Last minute"), "hour": _("Last hour"), "day": _("Last day")}
HELD = {"paused": _("paused"), "capped": _("at its limit"), "limited": _("behind a limit")}


@admin.register(Usage)
class UsageAdmin(ReadOnlyAdmin):
    """A page in place of the list: single rows mean little."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", view, name=name)]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        queues = [*named_queues(database()), *queue_names(request)]
        queue = chosen_queue(request, queues)
        over = request.GET.get("over", "hour")
        over = over if over in WINDOWS else "hour"
        user = request.GET.get("user") or None
        found = balance(queue, over=over, using=database(), top=TOP, user=user)
        context = {
            "title": _("Shares received"),
            "subtitle": printable(queue),
            "original": OVER[over],
            "queue": queue,
            "queue_name": printable(queue),
            "over": over,
            "user_asked": user or "",
            "windows": [
                (label, f"?{query(queue, word, user)}", word == over)
                for word, label in OVER.items()
            ],
            "queues": [
                (printable(name), f"?{query(name, over, user)}", name == queue)
                for name in sorted({queue, *queues})
            ],
            "clear": f"?{query(queue, over, None)}",
            "rows": rows(found.shares, queue),
            "total": rows([found.total], queue)[0],
            "kept": options().USAGE_TIME != 0,
            "unserved": unserved(queue),
            **(extra_context or {}),
        }
        return self.page(request, "usage/shares", context)


def unserved(queue: str) -> str:
    """Return for how long a task has been due in a queue that no worker serves, or nothing."""
    if any(queue in worker.queues for worker in workers_serving(using=database())):
        return ""
    wait = oldest_due([queue], using=database())[queue]
    return "" if wait is None else duration(wait)


def chosen_queue(request: HttpRequest, queues: list[str]) -> str:
    """Return the queue that was asked for, or else the default one, or the first."""
    asked = request.GET.get("queue", "")
    if asked and len(asked) <= QUEUE_LENGTH and "\x00" not in asked:
        return asked
    default = options().DEFAULT_QUEUE
    return default if default in queues or not queues else queues[0]


def query(queue: str, over: str, user: str | None) -> str:
    asked = {"queue": queue, "over": over}
    return urlencode(asked | {"user": user} if user else asked)


def rows(shares: list[UserShare], queue: str) -> list[dict[str, object]]:
    """Return the lines of the page; the bars are from 0 to 100."""
    largest = max((max(one.entitled, one.received) for one in shares), default=0.0) or 1.0
    return [
        {
            "share": share,
            "user": printable(share.user),
            "tasks_query": urlencode({"user": share.user, "queue": queue}),
            "entitled_bar": f"{share.entitled / largest * 100:.2f}",
            "received_bar": f"{share.received / largest * 100:.2f}",
            "entitled": percent(share.entitled),
            "received": percent(share.received),
            "difference": signed(share.difference),
            "kind": kind(share.difference),
            "waiting": bounded(share.waiting, COUNTED),
            "tasks": whole(share.tasks),
            "seconds": duration(share.seconds),
            "p50": NOTHING if share.p50 is None else duration(share.p50),
            "p95": NOTHING if share.p95 is None else duration(share.p95),
            "held": HELD.get(share.held, ""),
        }
        for share in shares
    ]


def percent(part: float) -> str:
    return gettext("%(number)s%%") % {"number": number_format(round(part * 100, 1), 1)}


def signed(part: float) -> str:
    """Return a difference with its sign, or none where it is too small to be seen."""
    rounded = round(part * 100, 1)
    sign = "+" if rounded > 0 else "\N{MINUS SIGN}" if rounded < 0 else ""
    return sign + percent(abs(rounded) / 100)


def kind(difference: float) -> str:
    """Return whether it received noticeably more or less than it was entitled to."""
    if abs(difference) < 0.02:
        return "even"
    return "above" if difference > 0 else "below"
