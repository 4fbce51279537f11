"""What must not have come of what was asked: confirmed and lost, refused and done, too early."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from ..calls import STUMBLED, Call, refs
from ..scenario import BULK
from .attempts import MAY_END, ends_by, has_ended, was_let_go, was_unheard
from .history import SLACK, Born, History, Run
from .operations import TICK, Finding, was_put_back

AFTERMATH = 20.0
"""Seconds for which a fault may be felt: a server that recovers, a lock that is waited for."""
OPERATIONS = {"force_finish": "finished", "cancel_request": "cancelled"}


def lost(history: History) -> Iterator[Finding]:
    """What was confirmed is there, or has ended and was purged, or was cleared or replaced."""
    lives = {one.life for one in history.born}
    for call in history.calls:
        if call.is_done and call.given.get("on_conflict") != "ignore":
            for life in call.submitted:
                if life not in lives:
                    yield None, f"{life} was submitted, and was never there"
    kept = [one for one in history.born if one.task in history.by_id]
    for one in history.born:
        if one.task not in history.by_id and not may_be_gone(history, one):
            yield one.task, "is not there"
    for key, count in Counter((one.queue, one.key) for one in kept).items():
        if count > 1:
            yield None, f"{key} is there {count} times"


def may_be_gone(history: History, born: Born) -> bool:
    at = history.gone.get(born.task, math.inf)
    place = (born.queue, born.key)
    for call in history.by_second[int(at)] if born.task in history.gone else ():
        if not (call.may_hold and call.asked - SLACK <= at <= call.answered + SLACK):
            continue
        replaced = [(task["queue"], task["key"]) for task in call.given.get("tasks", ())]
        # It may have been purged in the moment in which it ended.
        if call.verb == "purge" and has_ended(history, born.task, at + 2 * TICK):
            return True
        if call.verb == "clear" and call.given["queue"] == born.queue:
            return True
        if call.given.get("on_conflict") == "replace" and place in replaced:
            return True
    return False


def from_nowhere(history: History) -> Iterator[Finding]:
    """What was rolled back or refused, or what nobody has submitted, is not there."""
    known = {life for call in history.calls if call.may_hold for life in call.submitted}
    for one in history.born:
        is_tick = one.key.partition("@")[0] in history.ticks
        if one.life not in known and not is_tick and one.type != BULK:
            yield one.task, "was there, and nobody has submitted it"


def refused_as_known(history: History) -> Iterator[Finding]:
    """A key is refused only where someone has used it."""
    users = Counter(key for call in history.calls for key in keys_of(call))
    for call in history.calls:
        keys = keys_of(call) if call.error == "AlreadyExistsError" else []
        if keys and all(users[key] == 1 for key in keys):
            yield None, f"{keys[0]} was refused as known, and is new"


def keys_of(call: Call) -> list[tuple[str, str]]:
    tasks = [(task["queue"], task["key"]) for task in call.given.get("tasks", ())]
    return tasks + [("", key) for key in call.given.get("keys", ())]


def no_tasks(history: History) -> Iterator[Finding]:
    """A run in which nobody submits a task shows nothing, as where all clients fail at once."""
    if not history.born:
        yield None, "nobody has submitted a task"


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


def half_stored(history: History) -> Iterator[Finding]:
    """What a handler has submitted in a transaction is there with its other rows, or not."""
    written = Counter(history.effects)
    children = {row.key for row in history.rows if row.key.endswith("/child")}
    for key in sorted(children | set(written)):
        if written[key] != 1 or key not in children:
            tasks = int(key in children)
            yield None, f"{key}: {tasks} task and {written[key]} rows of its transaction"


def refused_though_held(history: History) -> Iterator[Finding]:
    """Nothing is refused to who holds a lease all the time, nor done although it was refused."""
    taken = {run.ref for run in history.taken()}
    for call in history.calls:
        for ref in call.refused:
            begin, end = history.tenures.get(ref, (math.inf, -math.inf))
            alarms = [one.alarm or 0.0 for one in history.acquires_of[ref] if one.at <= call.asked]
            alarms += [until for said, until in history.promised[ref] if said <= call.asked]
            until = max(alarms, default=-math.inf) - SLACK
            if begin > call.asked or min(end, until) <= call.asked:
                continue
            is_done = ref in taken and end < until and not was_let_go(history, ref, end)
            if call.answered < min(end, until) or (is_done and not was_unheard(history, call, ref)):
                yield ref[0], f"{call.verb} of attempt {ref[1]} was refused"


def end_not_kept(history: History) -> Iterator[Finding]:
    """An end that was confirmed is written, and the last that was written is what the row says."""
    for call in history.calls:
        for ref in call.refs if call.is_done else ():
            cancelled = ref in refs(call.reported.get("cancelled", ()))
            due = "cancelled" if cancelled else MAY_END.get(call.verb, "")
            if due and due not in ends_by(history, ref, call.answered):
                yield ref[0], f"{call.verb} of attempt {ref[1]} was done, and it is not {due}"
        due = OPERATIONS.get(call.verb, "")
        if due and call.is_done and call.reported.get("cancelled", True):
            tasks = history.by_key[call.given["queue"], call.key]
            closes = [one for task in tasks for one in history.closes_of.get(task, ())]
            if not any(one.outcome == due and one.at <= call.answered + SLACK for one in closes):
                yield None, f"{call.verb} of {call.key} was done, and it is not {due}"
    for row in history.rows:
        closes = history.closes_of.get(row.id, ())
        if closes and closes[-1].outcome != row.outcome:
            yield row.id, f"was {closes[-1].outcome or 'put back'}, and is {row.outcome or 'live'}"


def rate_passed(history: History) -> Iterator[Finding]:
    """In no length of time are more tasks taken than the rate allows, run or not."""
    for key, rate in history.rates.items():
        takes = sorted(behind(history, key), key=lambda take: take.began)
        for first in takes:
            inside = 0
            for take in takes:
                inside += take.asked >= first.asked
                seconds = take.began - first.asked + SLACK
                if inside and inside > rate.most_in(seconds):
                    yield None, f"{key}: {inside} started in {seconds:.3f} s"
                    return


def behind(history: History, key: str) -> list[Run]:
    """Return what clients took of the tasks that something holds back."""
    return [
        run
        for run in history.runs
        if run.task in history.born_of and key in history.born_of[run.task].holders()
    ]


def ran_while_paused(history: History) -> Iterator[Finding]:
    for key in history.pauses:
        takes = behind(history, key)
        for begin, end in pauses(history, key):
            for take in takes:
                if take.asked > begin and take.began < end:
                    yield take.task, f"was given out at {take.began:.3f} while {key} was paused"


def pauses(history: History, key: str) -> Iterator[tuple[float, float]]:
    """Yield from when until when something certainly was paused."""
    lifts = [call for call in history.by_verb("unpause") if call.given["whom"] == key]
    for call in history.by_verb("pause"):
        if call.is_done and call.given["whom"] == key:
            later = [lift.asked for lift in lifts if lift.answered >= call.asked]
            yield call.answered, min(later, default=math.inf)


def at_the_wrong_time(history: History) -> Iterator[Finding]:
    """No task is given out before it is due, nor when it has expired."""
    for one in history.born:
        if was_put_back(history, one.task):
            continue
        call, task = history.submitted.get(one.life, (None, {}))
        delay, expires = task.get("delay"), task.get("expires")
        if call is None or (delay is None and expires is None) or was_hurried(history, one):
            continue
        due = call.asked + (delay or 0.0)
        over = math.inf if expires is None else call.answered + expires
        for run in history.runs_of.get(one.task, ()):
            if run.began < due - SLACK:
                yield one.task, f"attempt {run.attempt} was given out too early"
            if run.asked > over + SLACK:
                yield one.task, f"attempt {run.attempt} was given out when it had expired"


def was_hurried(history: History, born: Born) -> bool:
    """Return whether someone may have asked to have it run now."""
    _call, task = history.submitted[born.life]
    whom = (born.user, task.get("batch"))
    return any(
        (call.given["queue"], call.key) == (born.queue, born.key)
        for call in history.by_verb("retry_ended")
    ) or any(
        call.given["what"] == "retry" and call.given["whom"] in whom
        for call in history.by_verb("batch", "herd")
    )


def edit_lost(history: History) -> Iterator[Finding]:
    """An attempt sees the last edit that was confirmed before it, or one that came later."""
    edits: dict[int, dict[str, Call]] = defaultdict(dict)
    for call in history.calls:
        # A repetition is refused where the lease has run out after a commit without an answer.
        if call.verb == "update" and (call.may_hold or call.reported.get("reconnected")):
            [ref] = refs(call.given["leases"])
            edits[ref[0]][call.given["edit"]] = call
    for run in history.runs:
        mine = edits.get(run.task, {})
        if run.edit is not None and run.edit not in mine:
            yield run.task, f"attempt {run.attempt} has an edit that was refused"
            continue
        since = -math.inf if run.edit is None else mine[run.edit].answered
        for edit, call in mine.items():
            if call.is_done and call.asked > since and call.answered < run.asked:
                yield run.task, f"attempt {run.attempt} does not see the edit {edit}"
                break


def stumbled(history: History) -> Iterator[Finding]:
    """No verb raises what is neither a refusal nor a broken connection; and that has a cause."""
    for call in history.calls:
        what = f"{call.verb} of {call.by} at {call.asked:.3f}: {call.reported.get('error')}"
        is_lost = call.error in ("OperationalError", "InterfaceError")
        if call.answer == STUMBLED:
            yield None, what
        elif is_lost and not call.given.get("how") and not was_disturbed(history, call):
            yield None, f"{what}, with nothing broken"


def was_disturbed(history: History, call: Call) -> bool:
    """Return whether something may have broken a connection, or held a lock, in a call's time."""
    return any(
        strike.at <= call.answered and call.asked <= strike.restored + AFTERMATH
        for strike in history.strikes
    )
