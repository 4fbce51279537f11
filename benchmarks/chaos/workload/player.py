"""A client that submits workflows, sequences and what is once, and sends signals to workflows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from django_perfectqueue.models import Task, Ticket
from django_perfectqueue.queue import Queue

from ..calls import ask, seen, within
from ..process import Acting
from ..scenario import FAMILIES, MERGED, ONCE, PLAYS, SHARES, SIGNALS, WORKFLOW
from ..terms import Terms

RECENT = 20
OPEN = 60
"""No workflow is added while so many wait or run, and no member of a sequence likewise."""
SEQUENCES = 6
NAMES = 8
"""How many names of tasks that are unique there are."""
HOWS = ("", "", "transaction", "rolled back")


class Player(Acting):
    """Each workflow gets its signals from any player: before, while and after it waits."""

    PAUSE = 0.08

    def __init__(self, terms: Terms, name: str) -> None:
        super().__init__(terms, name)
        self.queue = Queue(PLAYS)
        self.numbers = itertools.count(1)
        self.recent: list[str] = []

    def verbs(self) -> dict[Callable[[], None], int]:
        return {
            self.submit_workflow: 8,
            self.send_signal: 40,
            self.submit_members: 8,
            self.put_back: 4,
            self.debounce: 16,
            self.submit_once: 8,
        }

    def ask(self, verb: str, act: Callable[[], Any], **given: Any) -> bool:
        """Do it at once, or in a transaction of its own, which may be rolled back."""
        how = self.drawn.choice(HOWS)

        def acted() -> None:
            with within(how, self.drawn):
                act()

        return ask(verb, acted, how=how, **given).is_done

    def is_full(self, type_: str) -> bool:
        of_type = Ticket.objects.filter(task__queue=PLAYS, task__type=type_)
        return seen(of_type.count, OPEN) >= OPEN

    def new_key(self, kind: str) -> str:
        return f"{kind}-{self.name}-{next(self.numbers)}"

    # Workflows

    def submit_workflow(self) -> None:
        if self.is_full(WORKFLOW):
            return
        key, drawn = self.new_key("flow"), self.drawn
        data = {
            "family": drawn.choice(FAMILIES),
            "seconds": round(drawn.uniform(0.0, 1.5), 3),
            "errors": drawn.choice((0, 0, 1, 2)),
            "timeout": drawn.choice((None, None, 3.0)),
        }
        user = drawn.choice([*SHARES])
        self.recent = [*self.recent, key][-RECENT:]
        self.ask("submit", lambda: self.queue.submit(key, WORKFLOW, data, user=user), keys=[key])

    def send_signal(self) -> None:
        """Send one to a workflow that has not ended, or to one that may have, or is not there."""
        live = Task.objects.filter(queue=PLAYS, type=WORKFLOW, outcome="")
        keys = self.recent
        if self.drawn.random() < 0.7:
            keys = seen(lambda: list(live.values_list("key", flat=True)[:OPEN]), [])
        if keys:
            key, name = self.drawn.choice(keys), self.drawn.choice(SIGNALS)
            send_signal(self.ask, key, name, self.new_key("signal"))

    # Sequences, of which some members fail until they are put back

    def submit_members(self) -> None:
        if self.is_full("strand"):
            return
        sequence = f"line-{self.drawn.randrange(SEQUENCES)}"
        tasks = []
        for _member in range(self.drawn.randint(1, 4)):
            deaths = self.drawn.choices((0, 1, 2), (8, 2, 1))[0]
            data = {"seconds": round(self.drawn.uniform(0.0, 0.05), 3), "deaths": deaths}
            key = self.new_key(sequence)
            tasks.append({"key": key, "type": "strand", "data": data, "sequence": sequence})
        keys = [task["key"] for task in tasks]
        self.ask("submit", lambda: self.queue.submit_many(tasks), keys=keys)

    def put_back(self) -> None:
        dead = Task.objects.filter(queue=PLAYS, dead_letter__isnull=False)
        keys = seen(lambda: list(dead.values_list("key", flat=True)[:RECENT]), [])
        for key in keys:
            ask("put back", self.queue[key].retry, key=key)

    # What is merged, and what is there once

    def debounce(self) -> None:
        """Submit to a key of one's own, of which it is known what comes last."""
        number = self.drawn.randrange(3)
        name, life = f"merged-{self.name}-{number}", self.new_key("life")
        terms: dict[str, Any] = ({}, {"at_most": 2.0}, {"leading": True})[number]
        options = {"debounce": 0.6, "user": "ann", **terms}

        def act() -> None:
            self.queue.submit(name, MERGED, {"life": life}, **options)

        more = {"on_conflict": "ignore", "tasks": [{"life": life, "queue": PLAYS, "key": name}]}
        self.ask("debounce", act, key=name, life=life, terms=options, **more)

    def submit_once(self) -> None:
        """Submit under a name that others use, too, or one that is made of the data."""
        number, life = self.drawn.randrange(NAMES), self.new_key("life")
        data = {"number": number, "life": life, "seconds": round(self.drawn.uniform(0.0, 0.5), 3)}
        by = number % 2 == 0
        key = None if by else f"once-{number}"
        options: Any = {"unique": "live", "unique_by": ["number"] if by else None}

        def act() -> None:
            self.queue.submit(key, ONCE, data, on_conflict="ignore", user="bob", **options)

        tasks = [{"life": life, "queue": PLAYS, "key": life}]
        self.ask("once", act, number=number, tasks=tasks, on_conflict="ignore")


def send_signal(through: Callable[..., Any], key: str, name: str, value: str) -> Any:
    handle = Queue(PLAYS)[key]
    return through("signal", lambda: handle.signal(name, value), key=key, name=name, value=value)
