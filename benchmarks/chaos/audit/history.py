"""What a run has left behind, as one plain value: see the checker for what is read from it."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.database import Link

from ..calls import BROKEN, Call, Ref, refs
from ..recorder import read_lines
from ..scenario import WEBS, Rate
from ..workload.webs import Web

T = TypeVar("T")
RUNNING, GONE = 2, -1
task_of = attrgetter("task")
SLACK = 0.05
"""Seconds by which the clocks of server and clients may differ in a run."""
ENDINGS = ("finish", "acquire", "retry", "release", "fail", "cancel", "snooze")
"""The verbs by which a holder lets its leases go."""


@dataclass(frozen=True)
class Counted:
    """What a batch says at the end, and what its tasks and the batches in it are."""

    total: int
    finished: int
    dead: int


@dataclass(frozen=True)
class Row:
    """A task as it stood at the end."""

    id: int
    key: str
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "finished"
    attempt: int = 1
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
class Born:
    """A task that was stored; ``life`` is the name of this submission of its key."""

    at: float
    task: int
    queue: str
    key: str
    type: str
    user: str
    limits: tuple[str, ...]
    life: str

    def holders(self) -> list[str]:
        """Return by which names it is known what holds the task back."""
        names = (f"name:{limit}" for limit in self.limits)
        user = f"user:{self.user}"
        return [user, f"{user} in {self.queue}", f"type:{self.type}", *names]


@dataclass(frozen=True)
class OfLease:
    """What was seen of who holds a lease."""

    task: int
    attempt: int
    holder: int

    @property
    def ref(self) -> Ref:
        return (self.task, self.attempt, self.holder)


@dataclass(frozen=True)
class Run(OfLease):
    """
    A handler at work, or a client that holds a task. ``ended`` is None where a handler did not
    live to say so; ``rival`` is another process that ran the task, by its lock, when this one
    began. ``asked`` is when a client asked for it; ``edit`` the last edit that it saw.
    """

    pid: int
    host: str
    began: float
    ended: float | None = None
    how: str = ""
    rival: int | None = None
    edit: str | None = None
    asked: float = -math.inf


@dataclass(frozen=True)
class Note(OfLease):
    """What a handler has done, or has been given: a step that it runs, and what is kept of it."""

    at: float
    what: str
    name: str
    value: Any


@dataclass(frozen=True)
class Step:
    """A step that was kept, with its result as it is stored; the time is the database's."""

    at: float
    task: int
    name: str
    value: str


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
    ``caps`` are how many tasks may run at once, ``rates`` how many may start, by what holds them
    back; ``pauses`` what is paused now and then. ``drift`` is what the accounts say at the end
    beside what they should, and ``leftovers`` who did not end well when asked to. ``edges`` are
    the tasks that still wait, with what they wait for; ``batches`` what each batch says of
    itself, and what its tasks are.
    """

    rows: Sequence[Row] = ()
    born: Sequence[Born] = ()
    gone: Mapping[int, float] = field(default_factory=dict)
    changes: Sequence[Change] = ()
    closes: Sequence[Close] = ()
    begun: Sequence[Run] = ()
    notes: Sequence[Note] = ()
    steps: Sequence[Step] = ()
    calls: Sequence[Call] = ()
    reported: Sequence[Interruption] = ()
    strikes: Sequence[Strike] = ()
    effects: Sequence[str] = ()
    caps: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    pauses: Sequence[str] = ()
    drift: Sequence[str] = ()
    leftovers: Sequence[str] = ()
    ticks: Mapping[str, Ticks] = field(default_factory=dict)
    webs: Sequence[Web] = ()
    edges: Sequence[tuple[int, int]] = ()
    batches: Mapping[str, tuple[Counted, Counted]] = field(default_factory=dict)
    alive_time: float = 3.0

    def by_verb(self, *verbs: str) -> list[Call]:
        """Return the calls that may have done something."""
        return [call for verb in verbs for call in self.verbs[verb]]

    @cached_property
    def verbs(self) -> dict[str, list[Call]]:
        may_hold = [call for call in self.calls if call.may_hold]
        return grouped(may_hold, lambda call: call.verb)

    @cached_property
    def by_second(self) -> dict[int, list[Call]]:
        """Return the calls by each second in which they were under way, or nearly."""
        found = defaultdict(list)
        last = max((call.asked for call in self.calls), default=0.0) + 1.0
        for call in self.calls:
            # SQLite's clock may name the end of a second where the next has begun.
            end = min(call.answered, last) + SLACK
            for second in range(int(call.asked - SLACK), int(end) + 1):
                found[second].append(call)
        return found

    @cached_property
    def runs(self) -> list[Run]:
        return [*self.begun, *self.taken()]

    def taken(self) -> Iterator[Run]:
        """Yield what clients hold: from its acquire until they ask for its end."""
        for call in self.calls:
            for one in call.reported.get("taken", ()):
                [ref] = refs([one["ref"]])
                began, _ended = self.tenures.get(ref, (call.answered, 0.0))
                end = min((one.asked for one in self.endings_of[ref]), default=math.inf)
                who = (call.pid, call.by)
                yield Run(*ref, *who, began, end, "taken", edit=one["edit"], asked=call.asked)

    @cached_property
    def endings_of(self) -> dict[Ref, list[Call]]:
        """Return the calls by which holders may have let each lease go."""
        found = defaultdict(list)
        for call in self.by_verb(*ENDINGS):
            for ref in call.refs:
                found[ref].append(call)
        return found

    @cached_property
    def promised(self) -> dict[Ref, list[tuple[float, float]]]:
        """Return when each lease was said to hold, and until when, to who took or renewed it."""
        found = defaultdict(list)
        for call in self.calls:
            taken = [one["ref"] for one in call.reported.get("taken", ())]
            renewed = call.refs if call.is_done and call.verb in ("heartbeat", "update") else []
            for ref in (*refs(taken), *renewed):
                found[ref].append((call.answered, call.asked + self.alive_time - SLACK))
        return found

    @cached_property
    def tenures(self) -> dict[Ref, tuple[float, float]]:
        """Return of each lease from when to when the database kept it."""
        found: dict[Ref, tuple[float, float]] = {}
        for task, changes in self.changes_of.items():
            for change, later in zip_longest(changes, changes[1:]):
                if change.state == RUNNING:
                    ref = (task, change.attempt, change.holder or 0)
                    begin, _end = found.get(ref, (change.at, 0.0))
                    found[ref] = (begin, later.at if later else math.inf)
        return found

    @cached_property
    def acquires_of(self) -> dict[Ref, list[Change]]:
        """Return what the database says of each lease while it was held."""
        running = [change for change in self.changes if change.state == RUNNING]
        return grouped(running, lambda one: (one.task, one.attempt, one.holder or 0))

    @cached_property
    def held_by(self) -> dict[int, list[Ref]]:
        """Return the leases of each holder."""
        return grouped(self.tenures, lambda ref: ref[2])

    @cached_property
    def born_of(self) -> dict[int, Born]:
        return {one.task: one for one in self.born}

    @cached_property
    def by_key(self) -> dict[tuple[str, str], list[int]]:
        """Return the tasks that had a key in a queue, one after another."""
        found = defaultdict(list)
        for one in self.born:
            found[one.queue, one.key].append(one.task)
        return found

    @cached_property
    def submitted(self) -> dict[str, tuple[Call, dict[str, Any]]]:
        """Return by its life how a task was submitted, where that is known."""
        return {
            task["life"]: (call, task)
            for call in self.calls
            for task in call.given.get("tasks", ())
        }

    @cached_property
    def changes_of(self) -> dict[int, list[Change]]:
        return grouped(sorted(self.changes, key=lambda change: change.id), task_of)

    @cached_property
    def closes_of(self) -> dict[int, list[Close]]:
        return grouped(self.closes, task_of)

    @cached_property
    def notes_of(self) -> dict[int, list[Note]]:
        return grouped(sorted(self.notes, key=lambda note: note.at), task_of)

    @cached_property
    def runs_of(self) -> dict[int, list[Run]]:
        return grouped(sorted(self.runs, key=lambda run: run.began), task_of)

    @cached_property
    def begun_by(self) -> dict[int, list[Run]]:
        """Return by process the handlers that it ran, one after the other."""
        return grouped(sorted(self.begun, key=lambda run: run.began), lambda run: run.pid)

    @cached_property
    def by_id(self) -> dict[int, Row]:
        return {row.id: row for row in self.rows}


def story(history: History, task: int | None) -> list[str]:
    """Return all that was seen of a task, in the order of time."""
    born = history.born_of.get(task or 0)
    seen: list[tuple[float, Any]] = [(born.at, born)] if born else []
    seen += [(one.at, one) for one in history.changes_of.get(task or 0, ())]
    seen += [(one.at, one) for one in history.closes_of.get(task or 0, ())]
    seen += [(one.began, one) for one in history.runs_of.get(task or 0, ())]
    seen += [(one.at, one) for one in history.notes_of.get(task or 0, ())]
    seen += [(one.at, one) for one in history.steps if one.task == task]
    seen += [(one.at, one) for one in history.reported if one.task == task]
    for call in history.calls:
        is_named = task in {ref[0] for ref in refs(call.given.get("leases", ()))}
        if is_named or (born and (call.key == born.key or born.life in call.submitted)):
            seen.append((call.asked, brief(call)))
    if seen:
        first, last = min(at for at, _ in seen), max(at for at, _ in seen)
        strikes = (one for one in history.strikes if first - 10 < one.restored < last + 10)
        seen += [(one.at, one) for one in strikes]
    return [f"{at:.4f} {one}" for at, one in sorted(seen, key=lambda pair: pair[0])]


def brief(call: Call) -> str:
    what = f"{call.by} {call.verb} {call.answer} {call.given} {call.reported}"
    return f"-> {call.answered:.4f} {what[:500]}"


def grouped(things: Iterable[T], by: Callable[[T], Any]) -> dict[Any, list[T]]:
    found = defaultdict(list)
    for thing in things:
        found[by(thing)].append(thing)
    return found


def read_events(file: Path, offset: float) -> dict[str, list[Any]]:
    """
    Return what handlers, clients and operators have written, with the database's times.

    ``offset`` is what the database's clock says more than that of the file.
    """
    begun: dict[tuple[int, int, int], Run] = {}
    asked: dict[tuple[int, int], Call] = {}
    notes: list[Note] = []
    reported: list[Interruption] = []
    for line in read_lines(file):
        at, pid = line["at"] + offset, line["pid"]
        if "verb" in line:
            by = f"{line['host']}.{pid}"
            asked[pid, line["number"]] = Call(by, line["verb"], at, given=line["given"], pid=pid)
            continue
        if "answer" in line:
            answer = {"answer": line["answer"], "reported": line["reported"]}
            asked[pid, line["number"]] = replace(asked[pid, line["number"]], answered=at, **answer)
            continue
        name = (line["task"], line["attempt"], pid)
        if line["event"] == "began":
            names = ("task", "attempt", "holder", "pid", "host", "rival", "edit")
            begun[name] = Run(**{field: line[field] for field in names}, began=at)
        elif line["event"] == "ended":
            # One that was interrupted before it could say that it begins has not begun.
            if name in begun and begun[name].ended is None:
                begun[name] = replace(begun[name], ended=at, how=line["how"])
        elif line["event"] == "note":
            known = {field: line[field] for field in ("task", "attempt", "holder", "what", "name")}
            notes.append(Note(**known, at=at, value=line["value"]))
        else:
            reported.append(Interruption(*name, at, line["reason"]))
    calls = [broken_off(call, reported) for call in asked.values()]
    return {"begun": [*begun.values()], "calls": calls, "reported": reported, "notes": notes}


def broken_off(call: Call, reported: Sequence[Interruption]) -> Call:
    """
    Return a call as it is known: one in the middle of which the handler was interrupted
    may have been done, though it has raised what the store raises when it refuses.
    """
    if call.error != "PreemptedError":
        return call
    meanwhile = any(
        one.pid == call.pid and call.asked <= one.at <= call.answered for one in reported
    )
    return replace(call, answer=BROKEN) if meanwhile else call


def read_tasks(link: Link) -> tuple[list[Born], dict[int, float]]:
    """Return the tasks that were stored, and when those were deleted that are not there."""
    columns = "at, task, queue, name, kind, owner, limits, payload"
    born, gone = [], {}
    for at, task, *rest in link.run(f"SELECT {columns} FROM chaos_task ORDER BY id"):
        if rest[0] is None:
            gone[task] = at
            continue
        queue, key, kind, user, limits, payload = rest
        names = tuple(filter(None, limits.split(",")))
        life = json.loads(payload).get("life", key)
        born.append(Born(at, task, queue, key, kind, user, names, life))
    return born, gone


def read_all(link: Link, kind: Any, table: str) -> list[Any]:
    columns = ", ".join(field.name for field in fields(kind))
    return [kind(*row) for row in link.run(f"SELECT {columns} FROM {table} ORDER BY id")]


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
    names = ("id", "key", "type", "data", "outcome", "attempt", "result")
    return [
        Row(*map(partial(getattr, task), names), errors.get(task.pk, 0), task.pk in live)
        for task in Task.objects.order_by("pk").iterator()
    ]


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


def counted(outcomes: Counter[str]) -> Counted:
    """Return what a batch should say whose tasks have these outcomes."""
    total, finished = sum(outcomes.values()), outcomes["finished"]
    return Counted(total, finished, total - finished - outcomes[""])
