"""The metrics for Prometheus and OpenMetrics, over HTTP, for those who may see them."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse

from django_perfectqueue.conf import options
from django_perfectqueue.health.views import probe
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.queue import database

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

PERMISSION = "perfectqueue.view_overview"
MISSING = "Metrics need prometheus_client: pip install 'django-perfectqueue[metrics]'."


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


def written(collector: Collector, accept: str) -> tuple[bytes, str]:
    """
    Return the metrics as text, and its content type: OpenMetrics where that is accepted.

    Raise ImproperlyConfigured without prometheus_client.
    """
    encode, content_type = encoder(accept)
    return encode(collector), content_type


def of_database(using: str, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of a database; the same for all that ask within five seconds."""
    encode, content_type = encoder(accept)
    from .families import DatabaseCollector

    return encode(DatabaseCollector(using)), content_type


def encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise ImproperlyConfigured(MISSING) from error
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # ``accept`` has a version that is no number.
        return choose_encoder("")
