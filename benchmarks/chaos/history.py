"""What a run has left behind, as one plain value: see the checker for what is read from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.database import Link
from benchmarks.recorder import read_lines

from .graph import Callback, Node
from .operations import WEBS, Counted, Operations, counted

RUNNING, GONE = 2, -1


@dataclass(frozen=True)
class Row:
    """A task as it stood at the end."""

    id: int
    key: str
    type: str
    user: str = ""
    limits: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "finished"
    attempt: int = 1
    worker: str = ""
    result: Any = None
    errors: int = 0
    has_ticket: bool = False


@dataclass(frozen=True)
class Change:
    """A ticket that changed hands; times are the database's, in seconds since 1970."""

    id: int
    at: float
    task: int
    was: int
    state: int
    attempt: int
    holder: int | None = None
    alarm: float | None = None

    @property
    def is_acquire(self) -> bool:
        return self.state == RUNNING and self.was != RUNNING


@dataclass(frozen=True)
class Close:
    """A write of a task's outcome; an empty one is of a task that was put back."""

    at: float
    task: int
    outcome: str
    attempt: int


@dataclass(frozen=True)
class Run:
    """
    A handler at work. ``ended`` is None where it did not live to say so; ``rival`` is
    another process that ran the task, by its lock, when this one began.
    """

    task: int
    attempt: int
    holder: int
    pid: int
    host: str
    began: float
    ended: float | None = None
    how: str = ""
    rival: int | None = None


@dataclass(frozen=True)
class Verb:
    """What a handler asked of the store, and its answer: done, refused or broken."""

    task: int
    attempt: int
    pid: int
    verb: str
    asked: float
    answered: float
    answer: str


@dataclass(frozen=True)
class Interruption:
    """A handler that was interrupted, and why."""

    task: int
    attempt: int
    pid: int
    at: float
    reason: str


@dataclass(frozen=True)
class Strike:
    """
    One fault: what was struck, from when until when. ``host`` is empty for the database,
    ``crash`` is set if the server may have forgotten what it had not confirmed.
    """

    fault: str
    at: float
    restored: float
    host: str = ""
    pids: tuple[int, ...] = ()
    crash: bool = False
    freezes: bool = False


@dataclass(frozen=True)
class Ticks:
    """
    A schedule: its first tick, the first that did not come any more, the seconds in between,
    and how many it says that it has submitted.
    """

    first: datetime
    end: datetime
    every: int
    fired: int


@dataclass(frozen=True)
class History:
    """
    ``stored`` are the keys whose submit was confirmed, ``maybe_committed`` those whose submit got
    no answer. ``caps`` and ``limits`` are how many tasks of a user, and behind a limit, may
    run at once; ``drift`` is what the accounts say at the end beside what they should, and
    ``leftovers`` which workers did not end well when they were stopped.
    """

    rows: Sequence[Row] = ()
    changes: Sequence[Change] = ()
    closes: Sequence[Close] = ()
    runs: Sequence[Run] = ()
    verbs: Sequence[Verb] = ()
    reported: Sequence[Interruption] = ()
    strikes: Sequence[Strike] = ()
    stored: frozenset[str] = frozenset()
    maybe_committed: frozenset[str] = frozenset()
    effects: Sequence[str] = ()
    caps: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    drift: Sequence[str] = ()
    leftovers: Sequence[str] = ()
    ticks: Mapping[str, Ticks] = field(default_factory=dict)
    graph: tuple[Sequence[Node], Sequence[Callback]] = ((), ())
    operations: Operations = field(default_factory=Operations)

    @cached_property
    def changes_of(self) -> dict[int, list[Change]]:
        found = defaultdict(list)
        for change in sorted(self.changes, key=lambda change: change.id):
            found[change.task].append(change)
        return found

    @cached_property
    def closes_of(self) -> dict[int, list[Close]]:
        return grouped(self.closes)

    @cached_property
    def runs_of(self) -> dict[int, list[Run]]:
        return grouped(sorted(self.runs, key=lambda run: run.began))

    @cached_property
    def by_id(self) -> dict[int, Row]:
        return {row.id: row for row in self.rows}


def story(history: History, task: int) -> list[str]:
    """Return all that was seen of a task, in the order of time."""
    seen: list[tuple[float, Any]] = [(one.at, one) for one in history.changes_of.get(task, ())]
    seen += [(one.at, one) for one in history.closes_of.get(task, ())]
    seen += [(one.began, one) for one in history.runs_of.get(task, ())]
    seen += [(one.asked, one) for one in history.verbs if one.task == task]
    seen += [(one.at, one) for one in history.reported if one.task == task]
    if seen:
        first, last = min(at for at, _ in seen), max(at for at, _ in seen)
        strikes = (one for one in history.strikes if first - 10 < one.restored < last + 10)
        seen += [(one.at, one) for one in strikes]
    return [f"{at:.4f} {one}" for at, one in sorted(seen, key=lambda pair: pair[0])]


def grouped(things: Iterable[Any]) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for thing in things:
        found[thing.task].append(thing)
    return found


@dataclass(frozen=True)
class Events:
    """What the handlers have written, with times of the database's clock."""

    runs: list[Run]
    verbs: list[Verb]
    reported: list[Interruption]
    submitted: list[str]
    refused: list[str]


def read_events(file: Path, offset: float) -> Events:
    """Read it all; ``offset`` is what the database's clock says more than the handlers'."""
    begun: dict[tuple[int, int, int], dict[str, Any]] = {}
    ended: dict[tuple[int, int, int], tuple[float, str]] = {}
    found = Events([], [], [], [], [])
    for line in read_lines(file):
        at, name = line["at"] + offset, (line["task"], line["attempt"], line["pid"])
        if line["event"] == "began":
            begun[name] = {**line, "at": at}
        elif line["event"] == "ended":
            ended.setdefault(name, (at, line["how"]))
        elif line["event"] == "reported":
            found.reported.append(Interruption(*name, at, line["reason"]))
        elif line["event"] == "verb":
            asked = line["asked"] + offset
            found.verbs.append(Verb(*name, line["verb"], asked, at, line["answer"]))
        elif line["event"] == "submitted":
            found.submitted.append(line["key"])
        elif line["event"] == "refused":
            found.refused.append(line["key"])
    found.verbs[:] = [broken_off(verb, found.reported) for verb in found.verbs]
    for name, line in begun.items():
        end, how = ended.get(name, (None, ""))
        known = {field: line[field] for field in ("task", "attempt", "holder", "pid", "host")}
        run = Run(**known, began=line["at"], ended=end, how=how, rival=line["rival"])
        found.runs.append(run)
    return found


def broken_off(verb: Verb, reported: Sequence[Interruption]) -> Verb:
    """
    Return a call as it is known: one in the middle of which the handler was interrupted
    may have been done, though it has raised what the store raises when it refuses.
    """
    if verb.answer != "refused":
        return verb
    name = (verb.task, verb.attempt, verb.pid)
    meanwhile = any(
        (one.task, one.attempt, one.pid) == name and verb.asked <= one.at <= verb.answered
        for one in reported
    )
    return replace(verb, answer="broken") if meanwhile else verb


def read_changes(link: Link) -> list[Change]:
    columns = "id, at, task, was, state, attempt, holder, alarm"
    return [Change(*row) for row in link.run(f"SELECT {columns} FROM chaos_ticket ORDER BY id")]


def read_closes(link: Link) -> list[Close]:
    columns = "at, task, outcome, attempt"
    return [Close(*row) for row in link.run(f"SELECT {columns} FROM chaos_close ORDER BY id")]


def read_effects(link: Link) -> list[str]:
    return [child for (child,) in link.run("SELECT child FROM chaos_effect")]


def read_rows() -> list[Row]:
    """Return the tasks, by Django's connection."""
    from django.db.models import Count, Q

    from django_perfectqueue.models import Attempt, Task

    errors = dict(
        Attempt.objects.filter(ending__in=["retried", "failed"])
        .order_by()
        .values_list("task_id")
        .annotate(Count("pk"))
    )
    live = set(Task.objects.filter(~Q(ticket=None)).values_list("pk", flat=True))
    return [
        Row(
            id=task.pk,
            key=task.key,
            type=task.type,
            user=task.user,
            limits=tuple(filter(None, task.limits.split(","))),
            data=task.data,
            outcome=task.outcome,
            attempt=task.attempt,
            worker=task.worker,
            result=task.result,
            errors=errors.get(task.pk, 0),
            has_ticket=task.pk in live,
        )
        for task in Task.objects.order_by("pk").iterator()
    ]


def read_drift() -> list[str]:
    """Return where the accounts differ from the tickets that there are."""
    from django.db.models import Count

    from django_perfectqueue.models import Account, Lane, Meter, State, Ticket

    held = dict(
        Ticket.objects.filter(state=State.RUNNING)
        .order_by()
        .values_list("lane")
        .annotate(Count("pk"))
    )
    accounts = dict(Lane.objects.values_list("pk", "account"))
    running: dict[int, int] = defaultdict(int)
    for lane, count in held.items():
        running[accounts.get(lane, lane)] += count
    found = [
        f"account {own.pk} of {own.user!r} counts {own.running} that run;"
        f" there are {running[own.pk]}"
        for own in Account.objects.all()
        if own.running != running[own.pk]
    ]
    if not held:
        meters = still_running(Meter)
        found += [f"limit {meter} counts {meter.running} that run" for meter in meters]
    waiting = set(Ticket.objects.filter(state=State.WAITING, timer_at=None).values_list("lane"))
    asleep = {
        row
        for model in (Account, Lane)
        for row in model.objects.filter(has_waiting=False).values_list("pk")
    }
    found += [f"lane {lane} sleeps with work in it" for (lane,) in waiting & asleep]
    unknown = Account.objects.filter(
        has_open=False, pk__in=Lane.objects.filter(has_waiting=True, held_by=0).values("account")
    )
    found += [f"account {own.pk} knows nothing of an open lane" for own in unknown]
    return found


def still_running(meters: Any) -> Iterable[Any]:
    return meters.objects.exclude(running=0)


def read_edges(link: Link) -> list[tuple[int, int]]:
    """
    Return the tasks that still wait, with what each waits for; a batch is minus its id, and
    waits for its tasks and for the batches in it.
    """
    live = "(SELECT id FROM perfectqueue_task WHERE outcome = '')"
    found = (
        "SELECT child_id, parent_id FROM perfectqueue_dependency"
        f" WHERE state < 3 AND child_id IN {live}",
        f"SELECT -batch_id, task_id FROM perfectqueue_batchmember WHERE task_id IN {live}",
        "SELECT -parent_id, -id FROM perfectqueue_batch WHERE parent_id IS NOT NULL",
    )
    return [(child, parent) for statement in found for child, parent in link.run(statement)]


def read_batches() -> dict[str, tuple[Counted, Counted]]:
    """Return what each batch that is operated on says, and what its tasks and those in it are."""
    from django_perfectqueue.models import Batch, Task
    from django_perfectqueue.queue import Queue

    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    members = Task.objects.filter(queue=WEBS, membership__isnull=False)
    for batch, outcome in members.values_list("membership__batch_id", "outcome"):
        outcomes[batch][outcome] += 1
    found = {}
    # Those within others first.
    for row in Batch.objects.filter(queue=WEBS).order_by("-pk"):
        said = Queue(WEBS).batch_named(row.name).progress()
        found[row.name] = (Counted(said.total, said.finished, said.dead), counted(outcomes[row.pk]))
        if row.parent_id is not None:
            end = "" if not said.ended else "failed" if said.dead else "finished"
            outcomes[row.parent_id][end] += 1
    return found
