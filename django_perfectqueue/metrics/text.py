"""Metrics as Prometheus and OpenMetrics read them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector, CollectorRegistry

KEPT_FOR = 5.0
MISSING = "Metrics need prometheus_client: pip install 'django-perfectqueue[metrics]'."

kept: dict[tuple[str, str], tuple[float, bytes]] = {}
"""The last texts of this process by database and content type, and when they were made."""


def written(collector: Collector, accept: str) -> tuple[bytes, str]:
    """
    Return the metrics as text, and its content type: OpenMetrics where that is accepted.

    Raise ImproperlyConfigured without prometheus_client.
    """
    content_type, encode = encoder(accept)
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(collector)
    return encode(registry), content_type


def encoder(accept: str) -> tuple[str, Callable[[CollectorRegistry], bytes]]:
    try:
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise ImproperlyConfigured(MISSING) from error
    encode, content_type = choose_encoder(accept)
    return content_type, encode


def of_database(using: str, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of a database; the same text for all that ask within five seconds."""
    content_type, _encode = encoder(accept)
    from .families import DatabaseCollector

    made, text = kept.get((using, content_type), (-KEPT_FOR, b""))
    if time.monotonic() - made >= KEPT_FOR or not text:
        text, _type = written(DatabaseCollector(using), accept)
        kept[using, content_type] = time.monotonic(), text
    return text, content_type
