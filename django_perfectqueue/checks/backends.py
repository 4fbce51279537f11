"""What is wrong with TASKS, where Django or the backport has tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage

from django_perfectqueue import compat

from .messages import TAG, check, error


@check(TAG)
def check_backends(alias: str) -> Iterator[CheckMessage]:
    """Check the backends of this package in TASKS; Django 6 itself asks no backend."""
    if compat.HAS_TASKS:
        yield from unusable_backends()
        yield from backend_problems()


def backend_problems() -> Iterator[CheckMessage]:
    from django_perfectqueue.backend.base import configured
    from django_perfectqueue.backend.checks import problems

    for backend in configured():
        yield from problems(backend)


def unusable_backends() -> Iterator[CheckMessage]:
    for alias in compat.task_backends:
        try:
            compat.task_backends[alias]
        except compat.InvalidTaskBackend as trouble:
            yield error(
                35,
                f"TASKS['{alias}'] can't be used: {trouble}",
                "Set its BACKEND to 'django_perfectqueue.backend.PerfectQueueBackend', or to the"
                " path of another backend.",
            )
