"""Metrics as Prometheus and OpenMetrics read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

MISSING = "Metrics need prometheus_client: pip install 'django-perfectqueue[metrics]'."


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
    from .families import CachedCollector

    return encode(CachedCollector(using)), content_type


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
