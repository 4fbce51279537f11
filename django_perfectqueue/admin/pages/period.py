"""What a queue, a type or a user did over time, as the overview leads to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, QueryDict
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.inspection.statistics import WINDOWS, Statistics, period
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import KEY_LENGTH, QUEUE_LENGTH, checked
from django_perfectqueue.store import UsageKey
from django_perfectqueue.store.records.usage import all_types_key, type_key

from ..parts.base import whole
from ..parts.cells import NOTHING, duration, tabs
from ..parts.chart import chart

OVER = {"hour": _("Last hour"), "day": _("Last day"), "month": _("Last 30 days")}
FORMS = {"hour": "H:i", "day": "H:i", "month": "Y-m-d"}
ORDERS: dict[str, tuple[object, Callable[[Statistics], Any]]] = {
    "": (_("by type"), lambda one: one.type),
    "failed": (_("by failures"), lambda one: -one.failed - one.lost),
    "time": (_("by time"), lambda one: -one.run.count * (one.run.mean or 0)),
}
TITLES = (
    _("finished"),
    _("retried"),
    _("failed"),
    _("cancelled"),
    _("lost"),
    _("run, mean"),
    _("deviation"),
    _("run p95"),
    _("wait, mean"),
    _("wait p95"),
)


def period_page(key: UsageKey, asked: QueryDict, *, using: str) -> dict[str, object]:
    """Return what the template shows of the figures that a key stands for."""
    over = asked.get("over", "hour")
    over = over if over in WINDOWS else "hour"
    names = names_in(asked)
    found = period(key, over, using=using)
    subject = ", ".join(map(printable, names.values()))
    rows = [shown(found.total, gettext("all"), "")]
    orders, by = {word: label for word, (label, _rank) in ORDERS.items()}, asked.get("by", "")
    rank = ORDERS[by][1] if by in ORDERS else ORDERS[""][1]
    for one in sorted(found.types, key=rank):
        query = urlencode({"queue": one.queue, "type": one.type, "over": over})
        rows.append(shown(one, printable(one.type), query))
    return {
        "title": _("Figures"),
        "subtitle": subject,
        "original": subject,
        "query": urlencode(names),
        "is_user": bool(key.user),
        "windows": tabs(OVER, over, names, "over"),
        "orders": tabs(orders, by, names | {"over": over}, "by"),
        "chart": chart(found.points, FORMS[over]),
        "titles": TITLES,
        "rows": rows,
        "lengths": lengths(found.total),
    }


def names_in(asked: QueryDict) -> dict[str, str]:
    return {name: asked.get(name, "") for name in ("queue", "type", "user") if name in asked}


def key_of(asked: QueryDict) -> UsageKey:
    """
    Return whose figures are asked for: a type's, a user's, or those of the whole queue.

    Raise Http404 where no queue can have that name.
    """
    names = names_in(asked)
    try:
        queue = checked("queue", names.get("queue", ""), QUEUE_LENGTH)
        for name in ("type", "user"):
            if names.get(name):
                checked(name, names[name], KEY_LENGTH)
    except InvalidTaskError as error:
        raise Http404 from error
    if names.get("type"):
        return type_key(queue, names["type"])
    if "user" in names:
        return UsageKey(queue, others=False, user=names["user"])
    return all_types_key(queue)


def shown(found: Statistics, name: str, query: str) -> dict[str, object]:
    counts = (found.finished, found.retried, found.failed, found.cancelled, found.lost)
    run, wait = found.run, found.wait
    times = (run.mean, run.deviation, run.p95, wait.mean, wait.p95)
    cells = [*map(whole, counts)]
    cells += [NOTHING if time is None else duration(time) for time in times]
    return {"name": name, "query": query, "cells": cells}


def lengths(found: Statistics) -> list[tuple[str, int, int]]:
    """Return the buckets that have something, with how many ran and waited so long."""
    pairs = zip(found.run.histogram, found.wait.histogram, strict=True)
    return [
        ("\N{INFINITY}" if math.isinf(bound) else duration(bound), ran, waited)
        for (bound, ran), (_bound, waited) in pairs
        if ran or waited
    ]
