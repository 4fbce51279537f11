"""
What must not have happened to attempts: what the database says of leases, and handlers of runs.

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
from collections.abc import Iterator
from itertools import combinations, pairwise

from .. import scenario
from ..calls import Call, Ref
from . import operations
from .history import RUNNING, SLACK, Close, History, Run
from .operations import TICK, Finding

GRACE = 1.0
"""Seconds that a process may be held up between its last look at its lease and its handler."""
FORGETFUL = 5.0
"""Seconds between a crash and the handlers of which the server may have forgotten."""
MAY_END = {"finish": "finished", "acquire": "finished", "fail": "failed", "cancel": "cancelled"}


def never_ended(history: History) -> Iterator[Finding]:
    # The last first: what is to end others comes after them.
    for row in reversed(history.rows):
        if not row.outcome:
            parents = [parent for child, parent in history.edges if child == row.id]
            names = (history.by_id[p].key if p > 0 else f"batch {-p}" for p in sorted(parents))
            yield row.id, "has no end" + "".join(f", waits for {one}" for one in names)
        elif row.has_ticket:
            yield row.id, "has ended, and is in line all the same"


def ended_wrongly(history: History) -> Iterator[Finding]:
    for row in history.rows:
        if row.outcome and row.outcome not in scenario.endings(row.type):
            yield row.id, f"has {row.outcome}"


def miscounted(history: History) -> Iterator[Finding]:
    """Each error that a handler ended in is counted once, whatever died meanwhile."""
    retries = Counter(
        ref[0] for call in history.by_verb("retry") if call.is_done for ref in call.refs
    )
    for row in history.rows:
        due = scenario.errors(row.type, dict(row.data))
        if row.outcome not in ("finished", "failed") or due is None:
            continue
        # One that was broken off between noting that it retries and doing so does not.
        least = retries[row.id] if row.type == "settler" else due
        if not least <= row.errors <= due:
            yield row.id, f"has {row.errors} errors in place of {due}"


def out_of_order(history: History) -> Iterator[Finding]:
    """No task runs before those that it waits for, and what they came to decides its end."""
    yield from operations.nodes(history)
    yield from operations.too_early(history)
    yield from operations.callbacks(history)


def ended_twice(history: History) -> Iterator[Finding]:
    for task, closes in history.closes_of.items():
        for first, second in pairwise(closes):
            # What has finished is never put back.
            if (first.outcome and second.outcome) or first.outcome == "finished":
                ends = (f"{one.outcome or 'back'} by attempt {one.attempt}" for one in closes)
                yield task, ", ".join(ends)
                break


def taken_after_end(history: History) -> Iterator[Finding]:
    for task in history.closes_of:
        for change in history.changes_of[task]:
            if change.is_acquire and has_ended(history, task, change.at):
                yield task, f"attempt {change.attempt} was acquired afterwards"


def taken_twice(history: History) -> Iterator[Finding]:
    """Each acquire is an attempt of its own, and takes only what nobody holds."""
    for task, changes in history.changes_of.items():
        last = 0
        for change in changes:
            if change.state != RUNNING:
                # What was taken and not begun is given back with its number.
                last = min(last, change.attempt)
            elif change.is_acquire or change.attempt > last:
                if change.attempt != last + 1 or change.was == RUNNING:
                    yield task, f"attempt {change.attempt} was acquired after {last}"
                last = change.attempt
    for task, runs in history.runs_of.items():
        known: dict[int, Run] = {}
        for run in runs:
            first = known.setdefault(run.attempt, run)
            if first.ref != run.ref and not is_forgotten(history, first, first.began):
                yield task, f"attempt {run.attempt} was given out twice"


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


def without_a_lease(history: History) -> Iterator[Finding]:
    """No handler begins but under a live lease of its own, and so none after the task's end."""
    for run in history.runs:
        if is_forgotten(history, run, run.began):
            continue
        if not has_acquired(history, run):
            yield run.task, f"attempt {run.attempt} was never acquired"
        elif not is_own(history, run) and not was_held_up(history, run):
            yield run.task, f"attempt {run.attempt} began after it was over"


def delivered_after_end(history: History) -> Iterator[Finding]:
    for run in history.runs:
        if not has_ended(history, run.task, run.began):
            continue
        if not was_held_up(history, run) and not is_forgotten(history, run, run.began):
            yield run.task, f"attempt {run.attempt} began afterwards"


def cut_short(history: History) -> Iterator[Finding]:
    """A lease of a client lasts as long as it was told, unless someone ends it."""
    for run in history.taken():
        _begin, end = history.tenures.get(run.ref, (0.0, math.inf))
        until = lease_end(history, run, end)
        if end >= until - SLACK:
            continue
        refused = [call for call in history.by_second[int(end)] if run.ref in call.refused]
        unheard = any(was_unheard(history, call, run.ref) for call in refused)
        if not unheard and not was_let_go(history, run.ref, end):
            yield run.task, f"attempt {run.attempt} was taken away {until - end:.3f} s too early"


def was_let_go(history: History, ref: Ref, at: float) -> bool:
    """Return whether its holder, or anyone, may have ended a lease at a moment."""
    calls = [*history.endings_of[ref], *takers_away(history, ref[0])]
    return any(one.asked - SLACK <= at <= one.answered + SLACK for one in calls)


def was_unheard(history: History, call: Call, ref: Ref) -> bool:
    """
    Return whether a refused call may have been done all the same.

    Its answer was lost, the task was purged before the call was repeated, and so the
    repetition found nothing by which to know that.
    """
    is_gone = call.asked <= history.gone.get(ref[0], -math.inf) <= call.answered
    return bool(call.reported.get("reconnected")) and is_gone


def fence(history: History) -> Iterator[Finding]:
    """What a lease writes is refused once another has the task, or the task has ended."""
    for call in history.calls:
        for ref in call.refs if call.is_done else ():
            begin, end = history.tenures.get(ref, (math.inf, -math.inf))
            if begin <= call.answered + SLACK and end >= call.asked - SLACK:
                continue
            repeats = MAY_END.get(call.verb) == "finished"
            is_repeated = repeats and "finished" in ends_by(history, ref, call.answered)
            if is_repeated or was_crashed(history, call.asked):
                continue
            yield ref[0], f"{call.verb} of attempt {ref[1]} was done when it no longer had the task"


def ends_by(history: History, ref: Ref, at: float) -> set[str]:
    """Return the ends to which an attempt had brought its task by then."""
    closes = history.closes_of.get(ref[0], ())
    return {one.outcome for one in closes if one.attempt == ref[1] and one.at <= at + SLACK}


def ended_by_another(history: History) -> Iterator[Finding]:
    """The end that is stored is that of the last attempt, and of one that came to its end."""
    # One that settles by itself may be killed before it can note what it was answered.
    came_to_its_end = {
        (run.task, run.attempt) for run in history.runs if run.how in ("returned", "settles")
    }
    for call in history.by_verb("finish", "acquire"):
        came_to_its_end |= {ref[:2] for ref in call.refs}
    forced = {(call.given["queue"], call.key) for call in history.by_verb("force_finish")}
    for row in history.rows:
        born = history.born_of[row.id]
        is_forced = row.result is None and (born.queue, born.key) in forced
        if row.outcome not in ("finished", "failed") or is_forced:
            continue
        last = max((one.attempt for one in history.changes_of.get(row.id, ())), default=0)
        if row.attempt != last:
            yield row.id, f"was ended by attempt {row.attempt} of {last}"
        elif row.outcome == "finished" and (row.id, last) not in came_to_its_end:
            yield row.id, f"is finished, and attempt {last} never returned"
        elif isinstance(row.result, dict) and row.result.get("attempt") != last:
            yield row.id, f"has the result of attempt {row.result['attempt']}"


def cap_exceeded(history: History) -> Iterator[Finding]:
    """Never do more tasks of a user, or behind a limit, hold a lease than may run."""
    running: dict[str, set[int]] = defaultdict(set)
    reported: set[str] = set()
    for change in sorted(history.changes, key=lambda change: change.id):
        born = history.born_of.get(change.task)
        for who in born.holders() if born else ():
            if change.state != RUNNING:
                running[who].discard(change.task)
                continue
            running[who].add(change.task)
            cap = history.caps.get(who, math.inf)
            if len(running[who]) > cap and who not in reported:
                reported.add(who)
                yield (
                    None,
                    f"{who}: {len(running[who])} at once where {cap} may run, at {change.at:.3f}",
                )


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


def has_ended(history: History, task: int, at: float) -> bool:
    """Return whether a task was over at a moment, and nobody had put it back."""
    last: Close | None = None
    for close in history.closes_of.get(task, ()):
        if close.at < at - TICK or (close.at <= at + TICK and not close.outcome):
            last = close
    return last is not None and bool(last.outcome)


def has_acquired(history: History, run: Run) -> bool:
    return bool(history.acquires_of[run.ref])


def lease_end(history: History, run: Run, at: float) -> float:
    """Return until when the lease was to hold, as it was known at a moment."""
    own = history.acquires_of[run.ref]
    alarms = [one.alarm or 0.0 for one in own if one.at <= at + TICK]
    promised = [until for said, until in history.promised[run.ref] if said <= at + TICK]
    return max([*alarms, *promised], default=0.0)


def is_live(history: History, run: Run, at: float) -> bool:
    return lease_end(history, run, at) > at + TICK


def is_own(history: History, run: Run) -> bool:
    """Return whether an attempt had the task, and a live lease, when it began."""
    own = [change for change in history.acquires_of[run.ref] if change.at <= run.began + TICK]
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
    return any(thawed) or 0.0 <= run.began - end <= GRACE or was_taken_away(history, run)


def was_taken_away(history: History, run: Run) -> bool:
    """Return whether someone had ended the task just before, which its holder sees late."""
    late = history.alive_time
    calls = takers_away(history, run.task)
    return any(call.asked <= run.began <= call.answered + late for call in calls)


def takers_away(history: History, task: int) -> list[Call]:
    """Return the calls that may have ended a task, no matter who held it."""
    born = history.born_of[task]
    return [
        call
        for call in history.by_verb("force_finish", "clear")
        if call.given["queue"] == born.queue and call.key in ("", born.key)
    ]


def is_forgotten(history: History, run: Run, until: float) -> bool:
    """
    Return whether the server has forgotten in a crash that it gave this attempt the task.

    The task then waits again, and its holder is interrupted. So what counts is whether the
    database knew at that moment.
    """
    if any(change.at <= until + TICK for change in history.acquires_of[run.ref]):
        return False
    return was_crashed(history, run.began)


def was_crashed(history: History, at: float) -> bool:
    return any(
        one.crash and one.restored >= at - FORGETFUL and one.at <= at + FORGETFUL
        for one in history.strikes
    )


def forgotten(history: History) -> list[Run]:
    """Return the attempts that began on an acquire which a crashed server did not keep."""
    return [run for run in history.runs if is_forgotten(history, run, run.began)]


def acquired_ahead(history: History) -> int:
    """Count the attempts whose acquire was committed while their process ran another."""
    count = 0
    for runs in history.begun_by.values():
        begins = [run.began for run in runs]
        for run in runs:
            for change in history.acquires_of[run.ref][:1]:
                before = bisect_right(begins, change.at) - 1
                count += before >= 0 and change.at < (runs[before].ended or 0.0)
    return count
