"""For every backend of Django's own tasks."""

from __future__ import annotations

from django.tasks import task

from benchmarks.probe import note


@task()
def noop(i: int) -> None:
    note(i)
