"""Schedules that tick while all goes wrong: see the checker for what must not become of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from . import scenario
from .history import Ticks
from .terms import Terms


def put_schedules(terms: Terms) -> dict[str, datetime]:
    """
    Store the schedules; return the first tick of each.

    On SQLite the clock is that of a host: where it jumps by a day, so would all its ticks come.
    """
    from django_perfectqueue.schedules import Schedules

    if terms.database == "sqlite" and "clock" in terms.faults:
        return {}
    first = {}
    for name, seconds in scenario.SCHEDULES.items():
        user = scenario.USERS[seconds % 3]
        data = {"seconds": 0.0}
        made = Schedules().put(
            name, "steady", data, every=seconds, user=user, overlap="allow", catch_up=None
        )
        first[name] = made.row().next_at
    return first


def end_schedules(first: Mapping[str, datetime]) -> dict[str, Ticks]:
    """Let no more ticks come; return of each schedule from when to when they came."""
    from django.db import connection, transaction

    from django_perfectqueue.models import Schedule
    from django_perfectqueue.schedules import Schedules

    connection.close()  # It may not have outlived the server.
    found = {}
    for name, tick in first.items():
        with transaction.atomic():
            row = Schedule.objects.select_for_update().get(name=name)
            assert row.next_at is not None
            Schedules()[name].pause("The run is over.")
        found[name] = Ticks(tick, row.next_at, scenario.SCHEDULES[name], row.fired)
    return found
