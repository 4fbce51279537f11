"""Overview: whether all is well, in five seconds; and what a queue, a type or a user did lately."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils.formats import date_format
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.fairness.limits import in_force
from django_perfectqueue.health.queues import held_by_one, overview
from django_perfectqueue.inspection import statistics
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.inspection.statistics import WINDOWS, Statistics
from django_perfectqueue.lib import durations
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Overview, Worker
from django_perfectqueue.payload.inputs import KEY_LENGTH, QUEUE_LENGTH, checked
from django_perfectqueue.queue import database
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.counts import LATEST
from django_perfectqueue.store.records.usage import key_for
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts.actions import RETRY, may
from ..parts.base import Extra, ReadOnlyAdmin
from .names import queue_row

GROUPS = 5
PAUSES = ("perfectqueue.add_limit", "perfectqueue.change_limit")
KINDS = {"finished": _("finished"), "retried": _("retried"), "failed": _("failed")}
WIDTH, HEIGHT = 600.0, 120.0
GAP = 0.15
NAMED = 3

OVER = {"hour": _("Last hour"), "day": _("Last day"), "month": _("Last 30 days")}
FORMS = {"hour": "H:i", "day": "H:i", "month": "Y-m-d"}
ORDERS: dict[str, tuple[object, Callable[[Statistics], Any]]] = {
    "": (_("by type"), lambda one: (one.type, one.queue)),
    "time": (_("by time"), lambda one: -total(one)),
    "failed": (_("by failures"), lambda one: -one.failed - one.lost),
    "p95": (_("by p95"), lambda one: -(one.run.p95 or 0)),
}


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A page in place of the list."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.view_path("", self.changelist_view, "overview_changelist"),
            self.view_path("figures/", self.figures_view, "figures"),
            self.view_path("release/", self.release_view, "release"),
        ]

    def figures_view(self, request: HttpRequest) -> HttpResponse:
        """Show what a queue, a type or a user did in the last hour, day or month."""
        asked, over = request.GET, request.GET.get("over", "hour")
        over = over if over in WINDOWS else "hour"
        names = {name: asked.get(name, "") for name in ("queue", "type", "user") if name in asked}
        key = key_of(names)
        whose = None if key.type else key.user
        if not request.user.has_perm("perfectqueue.view_overview") or not may_see(request, whose):
            raise PermissionDenied
        found = statistics.period(key, over, using=database())
        named = [cells.user_name(name) if of == "user" else name for of, name in names.items()]
        subject = ", ".join(map(printable, filter(None, named)))
        context: dict[str, object] = {
            "title": _("Figures"),
            "subtitle": subject,
            "original": subject,
            "names": names,
            "query": urlencode(names),
            "is_user": bool(key.user),
            "windows": cells.tabs(OVER, over, names, "over"),
            "chart": chart(found.points, FORMS[over]),
            **type_table(found.types, asked, {**names, "over": over}, [found.total]),
            "lengths": lengths(found.total),
        }
        if key.type:
            limits = in_force([f"type:{key.type}"], using=database()).values()
            context["pause"] = next(map(cells.paused_mark, limits), "")
            context["is_pausable"] = may_see(request, None) and request.user.has_perms(PAUSES)
        return self.page(request, "overview/period", context)

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Show the page, which refreshes itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = overview(using=database())
        failed = sorted(found.failed.items(), key=lambda group: group[1][1], reverse=True)
        hour = statistics.within(found.now - timedelta(hours=1), found.now)
        names = [queue.name for queue in found.queues]
        types = statistics.types_of(names, hour, using=database()).values()
        context = {
            "title": _("Overview"),
            "original": _("All queues"),
            "found": found,
            "unwell": ", ".join(map(printable, found.unwell)),
            "noun": "queue",
            "noun_shown": _("queue"),
            "rows": [queue_row(queue) for queue in found.queues],
            "chart": chart(found.minutes, workers=found.workers),
            "groups": shown_groups(dict(failed[:GROUPS])),
            "received": found.received,
            "release": next(iter(statistics.releases(using=database())), None),
            "held": held_by_one(found, using=database()),
            **type_table(types, request.GET, {}, order="time"),
            **(extra_context or {}),
        }
        return self.page(request, "overview/overview", context)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Show what the newest release broke, or one before it, with links to retry it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        known = {str(one.id): one for one in statistics.releases(using=database())}
        context: dict[str, object] = {"title": _("Since the deploy"), "original": _("Release")}
        if known:
            release = known.get(request.GET.get("of", ""), next(iter(known.values())))
            found = statistics.since_release(release, using=database())
            context["tabs"] = cells.tabs(known, str(release.id), {}, "of")
            context |= release_page(release, found, may(request, RETRY))
        return self.page(request, "overview/release", context)


def shown_groups(groups: statistics.Groups) -> list[tuple[str, str, datetime]]:
    return [(name, cells.bounded(count, LATEST), at) for name, (count, at) in groups.items()]


def release_page(
    release: statistics.Release, found: statistics.SinceRelease, may_retry: bool
) -> dict[str, object]:
    """Return what the template shows; the links lead to the failures in its time, or retry them."""
    url = cells.page_url("deadletter_bulk" if may_retry else "deadletter_changelist")
    times = {"since": release.began, "until": release.until}
    query = {name: at.isoformat() for name, at in times.items() if at < durations.LATEST}
    query |= {"verb": "retry"} if may_retry else {}
    return {
        "original": printable(release.name),
        "release": release,
        "may_retry": may_retry,
        "url": f"{url}?{urlencode(query)}",
        "groups": shown_groups(found.groups),
        "changes": found.types,
    }


def type_table(
    types: Iterable[Statistics],
    asked: QueryDict,
    kept: Mapping[str, str],
    above: Sequence[Statistics] = (),
    order: str = "",
) -> dict[str, object]:
    """Return types in the order that is asked for, below the sum of all."""
    by = asked.get("by", order)
    by = by if by in ORDERS else order
    labels = {word: label for word, (label, _rank) in ORDERS.items()}
    return {
        "orders": cells.tabs(labels, by, kept, "by"),
        "over": kept.get("over", "hour"),
        "has_sum": bool(above),
        "types": [(one, total(one)) for one in (*above, *sorted(types, key=ORDERS[by][1]))],
    }


def total(one: Statistics) -> float:
    """Return the seconds that attempts took together."""
    return one.run.count * (one.run.mean or 0.0)


def key_of(names: Mapping[str, str]) -> UsageKey:
    """
    Return whose figures are asked for: a type's, a user's, or those of the whole queue.

    Raise Http404 where no queue can have that name.
    """
    try:
        queue = checked("queue", names.get("queue", ""), QUEUE_LENGTH)
        for name in ("type", "user"):
            if names.get(name):
                checked(name, names[name], KEY_LENGTH)
    except InvalidTaskError as error:
        raise Http404 from error
    return key_for(queue, names.get("type") or None, names.get("user"))


def lengths(found: Statistics) -> list[tuple[str, int, int]]:
    """Return the buckets that have something, with how many ran and waited so long."""
    pairs = zip(found.run.histogram, found.wait.histogram, strict=True)
    return [
        ("\N{INFINITY}" if math.isinf(bound) else cells.duration(bound), ran, waited)
        for (bound, ran), (_bound, waited) in pairs
        if ran or waited
    ]


def chart(
    points: Sequence[tuple[datetime, Tally]], form: str = "H:i", workers: Sequence[Worker] = ()
) -> dict[str, object]:
    """
    Return the bars of how attempts ended, one for each point, the oldest first, as high as the
    ``largest``; ``form`` is that of the times. The ``rows`` are the bars that have something.

    Marks show where the ``workers`` started: a release, or a new generation after a reload.
    """
    stacks = [[getattr(tally, kind) for kind in KINDS] for _start, tally in points]
    largest = max(map(sum, stacks), default=0)
    step = WIDTH / max(1, len(points))
    bars: list[dict[str, Any]] = []
    for number, ((start, _tally), counts) in enumerate(zip(points, stacks, strict=True)):
        parts, below = [], 0
        for kind, count in zip(KINDS, counts, strict=True):
            if count:
                below += count
                place = step * (number + GAP / 2), HEIGHT * (1 - below / largest)
                size = step * (1 - GAP), HEIGHT * count / largest
                names = ("x", "y", "width", "height")
                lengths = [f"{length:.2f}" for length in (*place, *size)]
                parts.append({"kind": kind, **dict(zip(names, lengths, strict=True))})
        when = date_format(template_localtime(start), form)
        bars.append({"when": when, "counts": counts, "parts": parts})
    return {
        "bars": bars,
        "rows": [bar for bar in reversed(bars) if any(bar["counts"])],
        "labels": list(KINDS.items()),
        "largest": largest,
        "marks": marks([start for start, _tally in points], workers),
        "width": WIDTH,
        "height": HEIGHT,
    }


def marks(starts: Sequence[datetime], workers: Sequence[Worker]) -> list[dict[str, str]]:
    """
    Return a mark for each bar in whose time workers started, which names up to NAMED of them: by
    the release of the site where that is known.
    """
    started: dict[int, set[str]] = {}
    for worker in workers:
        if starts and worker.started_at >= starts[0]:
            words = {"worker": str(worker), "generation": worker.generation}
            place = bisect_right(starts, worker.started_at) - 1
            label = gettext("%(worker)s, generation %(generation)d") % words
            if worker.release:
                label = gettext("release %s") % worker.release
            started.setdefault(place, set()).add(label)
    found = []
    for place, labels in sorted(started.items()):
        when = date_format(template_localtime(starts[place]), "H:i")
        more = [f"+{len(labels) - NAMED}"] if len(labels) > NAMED else []
        label = f"{when}: {'; '.join([*sorted(labels)[:NAMED], *more])}"
        x = f"{WIDTH / len(starts) * place:.2f}"
        found.append({"x": x, "label": printable(label)})
    return found
