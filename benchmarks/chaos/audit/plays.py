"""
What must not come of workflows, sequences and what is merged or there once.

It is read from what handlers noted while they ran and from what senders were answered, beside
what the triggers saw: a workflow does not vouch for itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ..calls import Call
from ..scenario import CHILD, CHILDREN, MERGED, ONCE, PLAYS, SIGNALS, STEPS, WORKFLOW
from .attempts import is_live
from .history import SLACK, Born, History, Note, Row, Run, grouped
from .operations import TICK, Finding, first_begin

STRAND = "strand"
GIVEN = {*map(str, range(STEPS)), *SIGNALS, "version", "join", "nap"}


def flows(history: History) -> list[Row]:
    return [row for row in history.rows if row.type == WORKFLOW]


def given(history: History, task: int) -> dict[str, Note]:
    """Return by name what a workflow was first given."""
    found: dict[str, Note] = {}
    for note in history.notes_of.get(task, ()):
        if note.what == "given":
            found.setdefault(note.name, note)
    return found


def workflows(history: History) -> Iterator[Finding]:
    """A step that is kept never runs again, and each attempt is given the same."""
    kept = {(one.task, one.name): one for one in history.steps}
    for row in flows(history):
        first = given(history, row.id)
        for note in history.notes_of.get(row.id, ()):
            step = kept.get((row.id, note.name))
            if note.what == "given" and note.value != first[note.name].value:
                yield row.id, f"{note.name}: attempt {note.attempt} was given another value"
            if note.what != "runs" or step is None:
                continue
            if note.at > step.at + TICK and holds(history, note):
                yield row.id, f"step {note.name} ran in attempt {note.attempt} after it was kept"
            begin, end = history.tenures.get(note.ref, (math.inf, -math.inf))
            if note.value in step.value and not begin - SLACK <= step.at <= end + SLACK:
                yield row.id, f"step {note.name} of attempt {note.attempt} was kept without a lease"
        if row.outcome == "finished":
            yield from wrongly_finished(row, first)


def wrongly_finished(row: Row, first: dict[str, Note]) -> Iterator[Finding]:
    if missing := GIVEN - first.keys():
        yield row.id, f"has finished without {', '.join(sorted(missing))}"
    elif row.result["value"] != {name: note.value for name, note in first.items()}:
        yield row.id, "has another result than it was given"
    elif not first["version"].value:
        yield row.id, "took the old side of a change that was there before it"
    elif first["nap"].at < first["join"].at + row.data["seconds"] - SLACK:
        yield row.id, "slept for less than it should"


def holds(history: History, note: Note) -> bool:
    """Return whether its attempt had the task, and a live lease, when it was written."""
    begin, end = history.tenures.get(note.ref, (math.inf, -math.inf))
    run = Run(*note.ref, 0, "", note.at)
    return begin <= note.at + TICK and note.at <= end and is_live(history, run, note.at)


def signals(history: History) -> Iterator[Finding]:
    """The one signal of a name that was accepted is the one that is taken, and no other is."""
    sent = defaultdict(list)
    for call in history.calls:
        if call.verb == "signal":
            sent[call.key, call.given["name"]].append(call)
    for row in flows(history):
        first = given(history, row.id)
        for name in SIGNALS:
            calls = sent[row.key, name]
            done = [call for call in calls if call.is_done]
            if len(done) > 1:
                yield row.id, f"signal {name} was accepted {len(done)} times"
            if name not in first:
                continue
            value, at = first[name].value, first[name].at
            if value is None:
                yield from missed(row, first, name, done)
            elif not any(may_be_done(call) and call.given["value"] == value for call in calls):
                yield row.id, f"took a signal {name} that was not sent: {value}"
            elif any(call.given["value"] != value and call.answered < at for call in done):
                yield row.id, f"took a signal {name} that was not accepted: {value}"


def missed(row: Row, first: dict[str, Note], name: str, done: list[Call]) -> Iterator[Finding]:
    """No wait ends without a signal before its time, nor when one was there."""
    timeout = row.data["timeout"] if name == SIGNALS[-1] else None
    waits = first["3"].at
    if timeout is None or first[name].at < waits + timeout - SLACK:
        yield row.id, f"waited for a signal {name} for less than it should"
    elif any(call.answered < waits + timeout - SLACK for call in done):
        yield row.id, f"lost signal {name}"


def may_be_done(call: Call) -> bool:
    # A repetition finds its own signal after a commit without an answer.
    return call.may_hold or bool(call.reported.get("reconnected"))


def children(history: History) -> Iterator[Finding]:
    """Each child is stored once, and its parent is given what has come of it."""
    by_life = grouped(
        (row for row in history.rows if row.type == CHILD), lambda row: row.data["life"]
    )
    for life, rows in by_life.items():
        if len(rows) > 1:
            yield rows[0].id, f"{life} was stored {len(rows)} times"
    for row in flows(history):
        if row.outcome == "finished":
            lives = [f"{row.key}/{number}" for number in range(CHILDREN)]
            results = [one.result for life in lives for one in by_life.get(life, ())]
            if results != row.result["value"]["join"]:
                yield row.id, f"has joined {row.result['value']['join']} in place of {results}"


def born(history: History, type_: str) -> list[Born]:
    return [one for one in history.born if one.queue == PLAYS and one.type == type_]


def sequences(history: History) -> Iterator[Finding]:
    """Each member begins once the one before has finished; those of a client in their order."""
    done = {key for call in history.by_verb("submit") if call.is_done for key in call.submitted}
    rows = history.by_id
    for name, members in grouped(born(history, STRAND), lambda one: line_of(one.key)).items():
        ran = sorted((first_begin(history, one.task), one.key, one.task) for one in members)
        ran = [one for one in ran if not math.isinf(one[0])]
        last: dict[str, int] = {}
        for (_begin, key, before), (begin, _key, task) in pairwise(ran):
            if finished_at(history, before) > begin + TICK:
                yield task, f"began in {name} before {key} had finished"
        for _begin, key, task in ran:
            client, _, number = key.rpartition("-")
            if key in done and last.get(client, 0) > int(number):
                yield task, f"ran in {name} after number {last[client]} of the same client"
            last[client] = int(number) if key in done else last.get(client, 0)
        for one in members:
            if rows[one.task].outcome != "finished":
                yield one.task, f"is {rows[one.task].outcome or 'open'} in {name}"


def line_of(key: str) -> str:
    return "-".join(key.split("-")[:2])


def finished_at(history: History, task: int) -> float:
    closes = history.closes_of.get(task, ())
    return min((one.at for one in closes if one.outcome == "finished"), default=math.inf)


def debounces(history: History) -> Iterator[Finding]:
    """What was submitted last has run since; nothing runs too early, or that was rolled back."""
    runs = defaultdict(list)
    for one in born(history, MERGED):
        runs[one.key.partition("~")[0]] += history.notes_of.get(one.task, ())
    calls = [call for call in history.calls if call.verb == "debounce"]
    for name, its in grouped(calls, lambda call: call.key).items():
        by_life = {call.given["life"]: call for call in its}
        for note in runs[name]:
            call = by_life.get(note.value)
            if call is None or not may_be_done(call):
                yield note.task, f"{note.value} ran, and was {call and call.answer}"
                continue
            options = call.given["terms"]
            if options.keys() & {"at_most", "leading"}:
                continue
            if note.at < call.asked + options["debounce"] - SLACK:
                yield note.task, f"{note.value} ran too early"
        done = [call for call in its if call.is_done]
        last = max(done, key=lambda call: call.asked, default=None)
        if last and not any(
            note.at >= last.asked
            and note.value in by_life
            and by_life[note.value].asked >= last.asked
            for note in runs[name]
            if history.by_id[note.task].outcome == "finished"
        ):
            yield None, f"{last.given['life']} was the last of {name}, and did not run"


def uniques(history: History) -> Iterator[Finding]:
    """No two tasks of a name are live at once, and a submit of one finds or makes one."""
    spans = defaultdict(list)
    for one in born(history, ONCE):
        closes = history.closes_of.get(one.task, ())
        end = max((close.at for close in closes if close.outcome), default=math.inf)
        spans[history.by_id[one.task].data["number"]].append((one.at, end, one.task))
    for number, its in spans.items():
        for (_at, end, first), (at, _end, task) in pairwise(sorted(its)):
            if at < end - TICK:
                yield task, f"number {number} was stored while task {first} was live"
    for call in history.by_verb("once"):
        its = spans[call.given["number"]] if call.is_done else []
        if its and not any(
            at <= call.answered + SLACK and end >= call.asked - SLACK for at, end, _task in its
        ):
            yield None, f"{call.given['tasks'][0]['life']} found none, and made none"


def counts(history: History) -> dict[str, int]:
    """Return how much of each was played."""
    done = Counter(call.verb for call in history.calls if call.is_done)
    return {
        "workflows": len(flows(history)),
        "signals": done["signal"],
        "in_sequences": len(born(history, STRAND)),
        "debounced": done["debounce"],
        "once": done["once"],
    }
