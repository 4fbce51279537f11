"""
Reads a history and reports what must not have happened. It reads nothing else and writes nothing.

A lease is live from its acquire, and each renewal, until its alarm, by the database's
clock; or until its own handler has settled the task. That somebody else has taken it away
earlier ends it only for the database: to have it taken from a handler that runs on is what
is looked for here.

On PostgreSQL an acquire is committed without waiting for the disk, and may be forgotten
when the server crashes. What has begun on it is listed apart: see ``forgotten``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import combinations, pairwise

from benchmarks.audit import Checks, Violation

from . import operations, scenario
from .graph import mistakes
from .history import RUNNING, Change, Close, History, Run

TICK = 0.005
"""Seconds within which two times of the same clock, read by two processes, are one."""
GRACE = 1.0
"""Seconds that a process may be held up between its last look at its lease and its handler."""
FORGETFUL = 5.0
"""Seconds between a crash and the handlers of which the server may have forgotten."""


Finding = tuple[int | None, str]
CHECKS = Checks()
check = CHECKS.kind


def violations(history: History) -> list[Violation]:
    """Return all that a history has of what must not be."""
    return CHECKS.violations(history, name)


@check("lost")
def lost(history: History) -> Iterator[Finding]:
    """Nothing that was confirmed is missing, and nothing has come from nowhere."""
    there = {row.key for row in history.rows}
    for key in sorted(history.stored - there):
        yield None, f"{key} was submitted, and is not there"
    ticks = {key for key in there if key.partition("@")[0] in history.ticks}
    for key in sorted(there - history.stored - history.maybe_committed - ticks):
        yield None, f"{key} is there, and nobody has submitted it"
    for key, count in Counter(row.key for row in history.rows).items():
        if count > 1:
            yield None, f"{key} is there {count} times"


@check("ticks")
def ticks(history: History) -> Iterator[Finding]:
    """Each tick of a schedule has become one task, and nothing else has."""
    keys = Counter(row.key for row in history.rows)
    for name, noted in history.ticks.items():
        count = math.ceil((noted.end - noted.first).total_seconds() / noted.every)
        due = {
            tick_key(name, noted.first + number * timedelta(seconds=noted.every))
            for number in range(count)
        }
        there = {key for key in keys if key.startswith(f"{name}@")}
        yield from ((None, f"{key} was lost") for key in sorted(due - there))
        yield from ((None, f"{key} is no tick") for key in sorted(there - due))
        if noted.fired != count:
            yield None, f"{name} counts {noted.fired} tasks in place of {count}"


def tick_key(name: str, tick: datetime) -> str:
    return f"{name}@{tick.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}Z"


@check("half-stored")
def half_stored(history: History) -> Iterator[Finding]:
    """What a handler has submitted in a transaction is there with its other rows, or not."""
    written = Counter(history.effects)
    children = {row.key for row in history.rows if row.key.endswith("/child")}
    for key in sorted(children | set(written)):
        if written[key] != 1 or key not in children:
            tasks = int(key in children)
            yield None, f"{key}: {tasks} task and {written[key]} rows of its transaction"


@check("never ended")
def never_ended(history: History) -> Iterator[Finding]:
    # The last first: what is to end others comes after them.
    for row in reversed(history.rows):
        if not row.outcome:
            parents = [parent for child, parent in history.operations.edges if child == row.id]
            names = (history.by_id[p].key if p > 0 else f"batch {-p}" for p in sorted(parents))
            yield row.id, "has no end" + "".join(f", waits for {one}" for one in names)
        elif row.has_ticket:
            yield row.id, "has ended, and is in line all the same"


@check("ended wrongly")
def ended_wrongly(history: History) -> Iterator[Finding]:
    for row in history.rows:
        if row.outcome and row.outcome not in scenario.endings(row.type):
            yield row.id, f"has {row.outcome}"


@check("errors miscounted")
def miscounted(history: History) -> Iterator[Finding]:
    """Each error that a handler ended in is counted once, whatever died meanwhile."""
    retries = Counter(
        verb.task for verb in history.verbs if verb.verb == "retry" and verb.answer == "done"
    )
    for row in history.rows:
        due = scenario.errors(row.type, dict(row.data))
        if row.outcome not in ("finished", "failed") or due is None:
            continue
        # One that was broken off between noting that it retries and doing so does not.
        least = retries[row.id] if row.type == "settler" else due
        if not least <= row.errors <= due:
            yield row.id, f"has {row.errors} errors in place of {due}"


@check("out of order")
def out_of_order(history: History) -> Iterator[Finding]:
    """No task runs before those that it waits for, and what they came to decides its end."""
    ids = {row.key: row.id for row in history.rows}
    outcomes = {row.key: row.outcome for row in history.rows}
    begins, ends = {}, {}
    for key, task in ids.items():
        if runs := [run for run in history.runs_of.get(task, ()) if has_acquired(history, run)]:
            begins[key] = runs[0].began + TICK
        if closes := history.closes_of.get(task):
            ends[key] = closes[0].at
    for key, what in mistakes(history.graph, outcomes, begins, ends):
        yield ids.get(key), f"{key} {what}"
    yield from operations.too_early(history)
    yield from operations.callbacks(history)


@check("circle")
def circle(history: History) -> Iterator[Finding]:
    yield from operations.circles(history)


@check("batch")
def batch(history: History) -> Iterator[Finding]:
    yield from operations.batches(history)


@check("bulk")
def bulk(history: History) -> Iterator[Finding]:
    yield from operations.bulk(history)


@check("ended twice")
def ended_twice(history: History) -> Iterator[Finding]:
    for task, closes in history.closes_of.items():
        for first, second in pairwise(closes):
            # What has finished is never put back.
            if (first.outcome and second.outcome) or first.outcome == "finished":
                ends = (f"{one.outcome or 'back'} by attempt {one.attempt}" for one in closes)
                yield task, ", ".join(ends)
                break


@check("taken after its end")
def taken_after_end(history: History) -> Iterator[Finding]:
    for task in history.closes_of:
        for change in history.changes_of[task]:
            if change.is_acquire and has_ended(history, task, change.at):
                yield task, f"attempt {change.attempt} was acquired afterwards"


@check("taken twice")
def taken_twice(history: History) -> Iterator[Finding]:
    """Each acquire is an attempt of its own, and takes only what nobody holds."""
    for task, changes in history.changes_of.items():
        last = 0
        for change in changes:
            if not (change.is_acquire or change.attempt > last):
                continue
            if change.attempt != last + 1 or change.was == RUNNING:
                yield task, f"attempt {change.attempt} was acquired after {last}"
            last = change.attempt


@check("overlap")
def overlap(history: History) -> Iterator[Finding]:
    """No attempt begins while another runs whose lease is live."""
    for older, younger in overlaps(history):
        # One that has settled its task by itself returns a moment later.
        if older.how == "settled":
            continue
        if not is_forgotten(history, older, younger.began) and is_live(
            history, older, younger.began
        ):
            yield (
                older.task,
                f"attempt {younger.attempt} began on {younger.host} while attempt"
                f" {older.attempt} ran on {older.host} under its lease, at {younger.began:.3f}",
            )


@check("without a lease")
def without_a_lease(history: History) -> Iterator[Finding]:
    """No handler begins but under a live lease of its own, and so none after the task's end."""
    for run in history.runs:
        if is_forgotten(history, run, run.began):
            continue
        if not has_acquired(history, run):
            yield run.task, f"attempt {run.attempt} was never acquired"
        elif not is_own(history, run) and not was_held_up(history, run):
            yield run.task, f"attempt {run.attempt} began after it was over"


@check("delivered after its end")
def delivered_after_end(history: History) -> Iterator[Finding]:
    for run in history.runs:
        if not has_ended(history, run.task, run.began):
            continue
        if not was_held_up(history, run) and not is_forgotten(history, run, run.began):
            yield run.task, f"attempt {run.attempt} began afterwards"


@check("fence")
def fence(history: History) -> Iterator[Finding]:
    """What an attempt writes is refused once another has the task, or the task has ended."""
    for verb in history.verbs:
        if verb.answer != "done":
            continue
        for change in history.changes_of.get(verb.task, ()):
            if change.is_acquire and change.attempt > verb.attempt and change.at < verb.asked:
                yield (
                    verb.task,
                    f"{verb.verb} of attempt {verb.attempt} was done when attempt"
                    f" {change.attempt} had the task",
                )
                break


@check("ended by another")
def ended_by_another(history: History) -> Iterator[Finding]:
    """The end that is stored is that of the last attempt, and of one that came to its end."""
    # One that settles by itself may be killed before it can note what it was answered.
    came_to_its_end = {
        (run.task, run.attempt) for run in history.runs if run.how in ("returned", "settles")
    }
    came_to_its_end |= {
        (verb.task, verb.attempt)
        for verb in history.verbs
        if verb.verb == "finish" and verb.answer in ("done", "broken")
    }
    for row in history.rows:
        if row.outcome not in ("finished", "failed"):
            continue
        last = max((one.attempt for one in history.changes_of.get(row.id, ())), default=0)
        if row.attempt != last:
            yield row.id, f"was ended by attempt {row.attempt} of {last}"
        elif row.outcome == "finished" and (row.id, last) not in came_to_its_end:
            yield row.id, f"is finished, and attempt {last} never returned"
        elif isinstance(row.result, dict) and row.result.get("attempt") != last:
            yield row.id, f"has the result of attempt {row.result['attempt']}"


@check("cap exceeded")
def cap_exceeded(history: History) -> Iterator[Finding]:
    """Never do more tasks of a user, or behind a limit, hold a lease than may run."""
    running: dict[str, set[int]] = defaultdict(set)
    reported: set[str] = set()
    for change in sorted(history.changes, key=lambda change: change.id):
        for who, cap in caps_of(history, change.task):
            if change.state != RUNNING:
                running[who].discard(change.task)
                continue
            running[who].add(change.task)
            if len(running[who]) > cap and who not in reported:
                reported.add(who)
                yield (
                    None,
                    f"{who}: {len(running[who])} at once where {cap} may run, at {change.at:.3f}",
                )


@check("drift")
def drift(history: History) -> Iterator[Finding]:
    yield from ((None, text) for text in history.drift)


@check("did not stop")
def did_not_stop(history: History) -> Iterator[Finding]:
    yield from ((None, text) for text in history.leftovers)


KINDS = tuple(CHECKS)


def name(history: History, task: int) -> str:
    row = history.by_id.get(task)
    return f"task {task}" if row is None else f"{row.key} ({task})"


def caps_of(history: History, task: int) -> Iterable[tuple[str, int]]:
    row = history.by_id.get(task)
    if row is None:
        return
    if row.user in history.caps:
        yield f"user {row.user}", history.caps[row.user]
    for limit in row.limits:
        if limit in history.limits:
            yield f"limit {limit}", history.limits[limit]


def overlaps(history: History) -> Iterator[tuple[Run, Run]]:
    """Yield what ran at once: the older attempt, and the younger that began meanwhile."""
    for runs in history.runs_of.values():
        if len(runs) < 2:
            continue
        for first, second in combinations(runs, 2):
            if first.attempt <= second.attempt and were_at_once(first, second):
                yield first, second


def were_at_once(first: Run, second: Run) -> bool:
    """
    Return whether one ran when the other began.

    Two that lived to their end are compared by their times, others by the lock.
    """
    if first.ended is None:
        return second.rival == first.pid
    return second.began < first.ended


def acquires(history: History, run: Run) -> list[Change]:
    """Return what the database says of this attempt while it was held."""
    return [
        change
        for change in history.changes_of.get(run.task, ())
        if change.state == RUNNING and (change.attempt, change.holder) == (run.attempt, run.holder)
    ]


def has_ended(history: History, task: int, at: float) -> bool:
    """Return whether a task was over at a moment, and nobody had put it back."""
    last: Close | None = None
    for close in history.closes_of.get(task, ()):
        if close.at < at - TICK or (close.at <= at + TICK and not close.outcome):
            last = close
    return last is not None and bool(last.outcome)


def has_acquired(history: History, run: Run) -> bool:
    return bool(acquires(history, run))


def lease_end(history: History, run: Run, at: float) -> float:
    """Return until when the lease was to hold, as it was known at a moment."""
    alarms = [change.alarm or 0.0 for change in acquires(history, run) if change.at <= at + TICK]
    return max(alarms, default=0.0)


def is_live(history: History, run: Run, at: float) -> bool:
    return lease_end(history, run, at) > at + TICK


def is_own(history: History, run: Run) -> bool:
    """Return whether an attempt had the task, and a live lease, when it began."""
    own = [change for change in acquires(history, run) if change.at <= run.began + TICK]
    if not own or not is_live(history, run, run.began):
        return False
    return not any(
        change.id > own[-1].id and change.at < run.began - TICK
        for change in history.changes_of[run.task]
    )


def was_held_up(history: History, run: Run) -> bool:
    """
    Return whether its process was held up between its last look at its lease and its handler:
    it was frozen, or the lease has run out only just before.
    """
    thawed = (
        run.pid in strike.pids and run.began - GRACE <= strike.restored <= run.began + TICK
        for strike in history.strikes
        if strike.freezes
    )
    end = lease_end(history, run, run.began)
    return any(thawed) or 0.0 <= run.began - end <= GRACE


def is_forgotten(history: History, run: Run, until: float) -> bool:
    """
    Return whether the server has forgotten in a crash that it gave this attempt the task.

    The task then waits again, and its holder is interrupted. So what counts is whether the
    database knew at that moment.
    """
    if any(change.at <= until + TICK for change in acquires(history, run)):
        return False
    return any(
        strike.crash
        and strike.restored >= run.began - FORGETFUL
        and strike.at <= run.began + FORGETFUL
        for strike in history.strikes
    )


def forgotten(history: History) -> list[Run]:
    """Return the attempts that began on an acquire which a crashed server did not keep."""
    return [run for run in history.runs if is_forgotten(history, run, run.began)]


def acquired_ahead(history: History) -> int:
    """Count the attempts whose acquire was committed while their process ran another."""
    runs_of: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(history.runs, key=lambda run: run.began):
        runs_of[run.pid].append(run)
    count = 0
    for runs in runs_of.values():
        begins = [run.began for run in runs]
        for run in runs:
            for change in acquires(history, run)[:1]:
                before = bisect_right(begins, change.at) - 1
                count += before >= 0 and change.at < (runs[before].ended or 0.0)
    return count
