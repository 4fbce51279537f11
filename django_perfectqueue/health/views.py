"""The checks over HTTP: 200 when all is well, else 503; never cached, and without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.payload.inputs import QUEUE_LENGTH, checked
from django_perfectqueue.queue import database

from .checks import Finding, database_findings, findings, seconds

MOST_QUEUES = 20

View = Callable[[HttpRequest], HttpResponse]


def probe(view: View) -> View:
    """Exempt a view from login, and from ATOMIC_REQUESTS of whatever database."""
    open_view: View = login_not_required(require_safe(never_cache(view)))
    for alias in connections:
        open_view = transaction.non_atomic_requests(alias)(open_view)
    return open_view


@probe
def live(request: HttpRequest) -> HttpResponse:
    """Answer that this process runs; the database may be away."""
    return JsonResponse({"ok": True})


@probe
def ready(request: HttpRequest) -> HttpResponse:
    """Answer whether tasks can be submitted."""
    return answer(database_findings(database()))


@probe
def queues(request: HttpRequest) -> HttpResponse:
    """
    Answer whether tasks are run, and none has waited ``oldest`` seconds.

    It is about each ``queue`` that is named, or else about all.
    """
    try:
        names = [checked("queue", name, QUEUE_LENGTH) for name in request.GET.getlist("queue")]
        if len(names) > MOST_QUEUES:
            raise ValueError(f"At most {MOST_QUEUES} queues at once.")
        given = request.GET.get("oldest")
        oldest = None if given is None else seconds(given)
    except (ValueError, InvalidTaskError) as error:
        return JsonResponse({"ok": False, "error": str(error)}, status=400)
    return answer(findings(names, using=database(), oldest=oldest))


def answer(found: Iterable[Finding]) -> JsonResponse:
    checked = list(found)
    well = all(finding.ok for finding in checked)
    facts = {"ok": well, "checks": [finding.facts() for finding in checked]}
    return JsonResponse(facts, status=200 if well else 503)
