"""The metrics over HTTP, for who has the token or the permission."""

from __future__ import annotations

import hmac

from django.http import HttpRequest, HttpResponse

from django_perfectqueue.conf import options
from django_perfectqueue.health.views import probe
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.queue import database

from .text import of_database

PERMISSION = "perfectqueue.view_overview"


@probe
def metrics(request: HttpRequest) -> HttpResponse:
    """
    Answer with the metrics; 401 without METRICS_TOKEN, or a login that may view them.

    A login that ADMIN_SCOPE narrows may not: metrics are of all users.
    """
    if not (has_token(request) or has_permission(request)):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    text, content_type = of_database(database(), request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def has_token(request: HttpRequest) -> bool:
    """Return whether the request has the token; never without a token in the settings."""
    token = options().METRICS_TOKEN
    scheme, _space, given = request.headers.get("Authorization", "").partition(" ")
    if not token or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode(), token.encode())


def has_permission(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.has_perm(PERMISSION):
        return False
    return may_see(request, None)
