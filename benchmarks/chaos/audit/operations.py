"""What must not have come of what was asked for at random."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..calls import Call
from ..scenario import BULK, POND, WEBS
from .history import Close, History, Row

STOPS_WITHIN = 5.0
"""Seconds after which a bulk operation that is asked to stop has stopped, if nothing fails."""
TICK = 0.005
"""Seconds within which two times of the same clock, read by two processes, are one."""
DEAD = frozenset({"failed", "cancelled"})

Finding = tuple[int | None, str]


def too_early(history: History) -> Iterator[Finding]:
    """No task begins while one runs for which it was made to wait."""
    unlinked = defaultdict(list)
    for call in history.by_verb("unlink"):
        unlinked[call.given.get("queue", WEBS), call.key].append(call.answered)
    for call, queue, key, parent in links(history):
        children, parents = history.by_key[queue, key], history.by_key[queue, parent]
        if not call.is_done or len(children) != 1 or len(parents) != 1:
            continue
        [child], [other] = children, parents
        begin = first_begin(history, child)
        if any(at >= call.asked for at in unlinked[queue, key]) or was_put_back(history, child):
            continue
        if history.gone.get(other, math.inf) <= begin + TICK:
            continue
        if not any_end(history.closes_of.get(other, ()), call.asked, begin):
            yield child, f"{key} began before {parent} had ended"


def links(history: History) -> Iterator[tuple[Call, str, str, str]]:
    """Yield who was made to wait for whom: the call, the queue, the key, and that of the parent."""
    for call in history.by_verb("link"):
        yield call, call.given.get("queue", WEBS), call.key, call.other
    for call, task in history.submitted.values():
        for parent in task.get("after", ()):
            yield call, task["queue"], task["key"], parent


def any_end(closes: Sequence[Close], since: float, until: float) -> bool:
    """Return whether a task was over at some moment of a time, or nothing began in it."""
    before = [close for close in closes if close.at <= since]
    during = [close for close in closes if since < close.at <= until + TICK]
    return math.isinf(until) or any(one.outcome for one in [*before[-1:], *during])


def first_begin(history: History, task: int) -> float:
    return min((run.began for run in history.runs_of.get(task, ())), default=math.inf)


def was_put_back(history: History, task: int) -> bool:
    return any(not close.outcome for close in history.closes_of.get(task, ()))


def nodes(history: History) -> Iterator[Finding]:
    """What nobody changes begins after what it waits for, and ends as that says."""
    rows = {row.key: row for row in history.rows}
    for web in history.webs:
        for key, (parents, mode) in web.nodes.items() if web.still else ():
            row, before = rows.get(key), [rows[one] for one in parents if one in rows]
            if row is None:
                continue
            died = any(one.outcome in DEAD for one in before)
            due = "failed" if row.data.get("deaths") else "finished"
            due = "cancelled" if died and mode == "cancel" else due
            if row.outcome and row.outcome != due:
                yield row.id, f"{key} is {row.outcome} in place of {due}"
            begin = first_begin(history, row.id)
            for one in before:
                if not math.isinf(begin) and not ended_by(history, one, begin):
                    yield row.id, f"{key} began before {one.key} had ended"


def callbacks(history: History) -> Iterator[Finding]:
    """A callback runs after an end of all that was submitted with its batch, and as it should."""
    rows = {row.key: row for row in history.rows}
    added = defaultdict(list)
    for key, row in rows.items():
        added[key.partition("+")[0]].append(row)
    operations = {one.other for one in history.by_verb("bulk cancel")}
    touched = {one.key for one in history.by_verb("cancel together", "link", "unlink")}
    for web in history.webs:
        for key, batch in web.callbacks.items():
            row = rows.get(key)
            members = [member for member in web.members[batch] if member in rows]
            if row is None or key in touched:
                if row is None and members:
                    yield None, f"{key} is not there, though members of its batch are"
                continue
            begin = first_begin(history, row.id)
            ends = {member: ended_by(history, rows[member], begin) for member in members}
            more = [ended_by(history, one, begin) for member in members for one in added[member]]
            if not math.isinf(begin):
                yield from audited(row, ends, more)
            when = key.rpartition("!")[2]
            died = any(rows[member].outcome in DEAD for member in members)
            due = "cancelled" if when == "failed" and not died else "finished"
            is_due = web.still or (when != "failed" and web.name not in operations)
            if is_due and row.outcome != due:
                yield row.id, f"{key} is {row.outcome or 'open'} in place of {due}"


def audited(row: Row, ends: Mapping[str, set[str]], more: Sequence[set[str]]) -> Iterator[Finding]:
    """``ends`` are those of the batch's tasks before the callback began, ``more`` of added ones."""
    when = row.key.rpartition("!")[2]
    if open_ones := [key for key, outcomes in ends.items() if not outcomes]:
        yield row.id, f"{row.key} began before {open_ones[0]} had ended"
    elif when == "finished" and any("finished" not in outcomes for outcomes in ends.values()):
        yield row.id, f"{row.key} began though not all had finished"
    elif when == "failed" and not set().union(*ends.values(), *more) - {"finished"}:
        yield row.id, f"{row.key} began though all had finished"


def ended_by(history: History, row: Row, at: float) -> set[str]:
    """Return the ends that a task had come to by then."""
    closes = history.closes_of.get(row.id, ())
    return {close.outcome for close in closes if close.outcome and close.at <= at + TICK}


def circles(history: History) -> Iterator[Finding]:
    """No tasks wait for one another."""
    waits = defaultdict(set)
    for child, parent in history.edges:
        waits[child].add(parent)
    left = set(waits)
    # Who waits for none that waits is in no circle, and nor is who waits for such ones.
    while free := {child for child in left if not waits[child] & left}:
        left -= free
    if left:
        names = {row.id: row.key for row in history.rows}
        yield (
            min(left),
            "wait for one another: "
            + ", ".join(sorted(names.get(child, f"batch {-child}") for child in left)),
        )


def batches(history: History) -> Iterator[Finding]:
    """What a batch says is what its tasks say, and one that is open takes more tasks."""
    for name, (said, there) in history.batches.items():
        if said != there:
            yield None, f"{name} says {said}, and has {there}"
    stopped = {web_of(one.key) for one in history.by_verb("cancel batch")}
    for call in history.calls:
        if call.error == "BatchEndedError" and web_of(call.key) not in stopped:
            yield None, f"{call.key} was refused by the batch of the task that adds it"


def web_of(key: str) -> str:
    """Return the name of the web that a key or a batch belongs to."""
    return "-".join(re.split(r"\W", key)[:2])


def bulk(history: History) -> Iterator[Finding]:
    """A bulk operation stops when it is asked to, and what it says is what it did."""
    rows = {row.key: row for row in history.rows if row.type == BULK}
    pond = [row for row in history.rows if row.key.startswith(f"{POND}-")]
    marks = Counter(mark for row in history.rows for mark in row.data.get("edits", ()))
    for one in history.by_verb("bulk retry", "bulk edit", "bulk cancel"):
        row = rows.get(str(one.reported.get("value")))
        if row is None:
            continue
        done = Counter(row.data["done"])
        if one.verb == "bulk edit" and done["edited"] != marks[one.key]:
            yield row.id, f"says {dict(done)}, and has edited {marks[one.key]}"
        if one.verb == "bulk retry" and done["retried"] > marks[one.key]:
            yield row.id, f"says {dict(done)}, and has edited {marks[one.key]} of these"
        happened = changes_by(history, one)
        for word, outcome in (("retried", ""), ("cancelled", "cancelled")):
            if done[word] > happened[outcome]:
                yield row.id, f"says {dict(done)}; of these {happened[outcome]} were {word}"
        if one.other == POND and done["refused"]:
            yield row.id, f"refused {done['refused']} tasks that nobody else changes"
        if one.other == POND and row.outcome == "finished" and done.total() != len(pond):
            yield row.id, f"says {dict(done)} of {len(pond)} tasks"
    yield from never_stopped(history, rows)


def changes_by(history: History, one: Call) -> Counter[str]:
    """Return how often tasks of an operation's web came to each end since it was asked for."""
    return Counter(
        close.outcome
        for row in history.rows
        if web_of(row.key) == one.other or (one.other == POND and row.key.startswith(POND))
        for close in history.closes_of.get(row.id, ())
        if close.at >= one.asked
    )


def never_stopped(history: History, rows: Mapping[str, Row]) -> Iterator[Finding]:
    for one in history.by_verb("cancel bulk"):
        row = rows.get(one.other)
        if row is None or not one.is_done or was_struck(history, one.answered):
            continue
        ends = [close.at for close in history.closes_of.get(row.id, ()) if close.outcome]
        took = max(ends, default=math.inf) - one.answered
        if took > STOPS_WITHIN:
            yield row.id, f"was asked to stop, and went on for {took:.1f} s"


def was_struck(history: History, at: float) -> bool:
    """Return whether something went wrong while an operation was to stop."""
    return any(
        strike.at <= at + STOPS_WITHIN and strike.restored >= at - STOPS_WITHIN
        for strike in history.strikes
    )
