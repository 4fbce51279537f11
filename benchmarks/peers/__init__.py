"""
Who is measured, by name. A peer's module is imported when the peer is asked for.

A peer is named with the class that drives it and what its variant is given.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.database import Target

from .base import Peer

OURS = "perfectqueue"

PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("perfectqueue.PerfectQueue", {}),
    "perfectqueue-each": ("perfectqueue.PerfectQueue", {"type": "each"}),
    "perfectqueue-users": ("perfectqueue.PerfectQueue", {"users": 1000}),
    "pgqueuer": ("others.PgQueuer", {}),
    "pgqueuer-100": ("others.PgQueuer", {"batch": 100}),
    "procrastinate": ("others.Procrastinate", {}),
    "django-tasks-db": ("django_tasks.DjangoTasksDb", {}),
    "django-ox": ("django_tasks.DjangoOx", {}),
    "dj-queue": ("django_tasks.DjQueue", {}),
    "django-q2": ("others.DjangoQ2", {}),
    "huey": ("others.Huey", {}),
    "raw-100": ("raw.Raw", {"batch": 100}),
    "raw-1": ("raw.Raw", {"batch": 1}),
}


def kind_of(name: str) -> type[Peer]:
    """Return the class that drives a peer."""
    module, _, wanted = PEERS[name][0].partition(".")
    found: type[Peer] = getattr(import_module(f"{__name__}.{module}"), wanted)
    return found


def make(name: str, target: Target) -> Peer:
    return kind_of(name)(target, **PEERS[name][1])


def missing(name: str) -> str:
    """Return what must be installed before the peer can run here, or nothing."""
    packages = [package for package in kind_of(name).packages if not installed(package)]
    return f"not installed: pip install {' '.join(packages)}" if packages else ""


def installed(package: str) -> str:
    """Return the version of a package, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
