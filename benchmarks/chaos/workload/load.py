"""What is to be done in a run: tasks, what operators change, and schedules that tick."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from django_perfectqueue import store
from django_perfectqueue.bulk import Selection
from django_perfectqueue.models import Schedule, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules

from .. import scenario
from ..audit.history import Ticks
from ..calls import BROKEN, ask, noted, seen
from ..faults.stage import Stage, make_rules
from ..scenario import BULK, PLAYS, POND, WEBS
from ..terms import Terms
from . import storm
from .client import Client
from .player import send_signal
from .threads import AT_ONCE, LATER, OPERATORS, POOL, Feeder, Notes, Operator, Working

CHANGED = (WEBS, PLAYS)


class Load:
    """
    Tasks for workers, of which those of webs are changed meanwhile; what players submit comes
    beside them. Nothing but bulk work may change the tasks of the pond.
    """

    def __init__(self, terms: Terms) -> None:
        most = {f"name:{scenario.NARROW}": scenario.WIDTH, "name:each:*": scenario.EACH}
        make_rules(scenario.SHARES, {name: {"max_running": cap} for name, cap in most.items()})
        self.terms = terms
        self.feeder, self.notes = Feeder(terms), Notes([], itertools.count(1))
        names = [f"operator-{number}" for number in range(OPERATORS)]
        self.operators = [Operator(terms, name, self.notes) for name in names]
        works = [*(operator.use_verbs for operator in self.operators), self.feeder.feed]
        self.threads = list(map(Working, works))
        self.ticks: dict[str, Ticks] = {}
        # On SQLite the clock is that of a host: where it jumps by a day, so would all its ticks.
        is_ticking = terms.database != "sqlite" or "clock" not in terms.faults
        self.first_ticks = put_schedules() if is_ticking else {}
        task = {"type": "strand", "data": {}, "run_at": LATER}
        with noted("submit", keys=POOL):
            Queue(POND).submit_many({**task, "key": key} for key in POOL)

    @contextlib.contextmanager
    def settling(self, stage: Stage) -> Iterator[None]:
        """Empty the pond, and put back what has died of batches until all of them have finished."""
        connection.close()  # It may not have outlived the server.
        self.ticks = ended(self.first_ticks)
        until = time.monotonic() + self.terms.drain
        while time.monotonic() < until:
            if self.operators[0].bulk("cancel", Selection(queue=POND), POND, often=0.0):
                break
        sent: set[tuple[str, str]] = set()
        while time.monotonic() < until and (back := put_back_some()) is not None:
            if back:
                until = time.monotonic() + self.terms.drain
            send_signals(sent)
            stage.wait(0.2)
        yield

    def facts(self) -> dict[str, Any]:
        capped = {user: cap for user, (_, cap) in scenario.SHARES.items() if cap is not None}
        caps = {f"user:{user} in default": cap for user, cap in capped.items()}
        each = dict.fromkeys((f"name:each:{name}" for name in scenario.FAMILIES), scenario.EACH)
        return {
            "caps": {**caps, **each, f"name:{scenario.NARROW}": scenario.WIDTH},
            "ticks": self.ticks,
            "webs": [*self.feeder.webs, *self.notes.webs],
        }


class Storm:
    """Clients that use every verb at random, also those of a holder."""

    threads = ()

    def __init__(self, terms: Terms) -> None:
        make_rules(storm.SHARES, storm.TERMS)
        self.terms = terms

    @contextlib.contextmanager
    def settling(self, stage: Stage) -> Iterator[None]:
        """Lift all pauses, and work beside the workers until nothing is left."""
        until = time.monotonic() + self.terms.drain

        def drain(is_over: Callable[[], bool]) -> None:
            client = Client(self.terms, "drain")
            client.drain(lambda: is_over() or time.monotonic() > until)

        helping = Working(drain)
        helping.start()
        yield
        helping.stop()

    def facts(self) -> dict[str, Any]:
        return {"caps": storm.CAPS, "rates": storm.RATES, "pauses": storm.PAUSES}


def put_schedules() -> dict[str, datetime]:
    """Store the schedules; return the first tick of each."""
    first = {}
    for name, seconds in scenario.SCHEDULES.items():
        terms: dict[str, Any] = {"every": seconds, "user": scenario.USERS[seconds % 3]}
        terms |= {"overlap": "allow", "catch_up": None}
        made = Schedules().put(name, "steady", {"seconds": 0.0}, **terms)
        first[name] = made.row().next_at
    return first


def ended(first: Mapping[str, datetime]) -> dict[str, Ticks]:
    """Let no more ticks of the schedules come; return from when to when they came."""
    # All are locked at once: each lock is waited for while a worker submits many ticks.
    with transaction.atomic():
        rows = {row.name: row for row in Schedule.objects.select_for_update().order_by("pk")}
        for name in first:
            Schedules()[name].pause("The run is over.")
    found = {}
    for name, tick in first.items():
        end = rows[name].next_at
        assert end is not None
        found[name] = Ticks(tick, end, scenario.SCHEDULES[name], rows[name].fired)
    return found


def put_back_some() -> int | None:
    """Put back what has died; return how much, or None where nothing is left to do."""
    # One at a time on SQLite would take longer than all of them take to run.
    dead = Task.objects.filter(queue__in=CHANGED, dead_letter__isnull=False).exclude(type=BULK)
    # A callback for failures was not needed where all have finished by now.
    ids = dead.exclude(key__endswith="!failed").values_list("pk", flat=True)[:AT_ONCE]

    def look() -> int | None:
        back = store.retry(some, using="default") if (some := list(ids)) else set()
        is_open = bool(back) or Ticket.objects.filter(task__queue__in=CHANGED).exists()
        return len(back) if is_open else None

    return seen(look, 0)


def send_signals(sent: set[tuple[str, str]]) -> None:
    """Send to each workflow that has not ended the signals that nobody may have sent."""
    live = Task.objects.filter(queue=PLAYS, type=scenario.WORKFLOW, outcome="")
    keys: list[str] = seen(lambda: list(live.values_list("key", flat=True)), [])
    for one in set(itertools.product(keys, scenario.SIGNALS)) - sent:
        if send_signal(ask, *one, f"last-{one[0]}").answer != BROKEN:
            sent.add(one)
