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
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import combinations, pairwise

from benchmarks.audit import Checks, Violation

from . import operations, scenario
from .calls import STUMBLED, Call, Ref, refs
from .history import RUNNING, Born, Close, History, Run
from .operations import BULK, was_put_back

TICK = 0.005
"""Seconds within which two times of the same clock, read by two processes, are one."""
GRACE = 1.0
"""Seconds that a process may be held up between its last look at its lease and its handler."""
FORGETFUL = 5.0
"""Seconds between a crash and the handlers of which the server may have forgotten."""
SLACK = 0.05
"""Seconds by which the clocks of server and clients may differ in a run."""
AFTERMATH = 20.0
"""Seconds for which a fault may be felt: a server that recovers, a lock that is waited for."""
MAY_END = {"finish": "finished", "acquire": "finished", "fail": "failed", "cancel": "cancelled"}
OPERATIONS = {"force_finish": "finished", "cancel_request": "cancelled"}

Finding = tuple[int | None, str]
CHECKS = Checks()
check = CHECKS.kind


def violations(history: History) -> list[Violation]:
    """Return all that a history has of what must not be."""
    return CHECKS.violations(history, name)


@check("lost")
def lost(history: History) -> Iterator[Finding]:
    """What was confirmed is there, or has ended and was purged, or was cleared or replaced."""
    lives = {one.life for one in history.born}
    for call in history.calls:
        if call.is_done and call.given.get("on_conflict") != "ignore":
            for life in call.submitted:
                if life not in lives:
                    yield None, f"{life} was submitted, and was never there"
    there = {row.id for row in history.rows}
    for one in history.born:
        if one.task not in there and not may_be_gone(history, one):
            yield one.task, "is not there"
    for key, count in Counter((one.queue, one.key) for one in kept(history)).items():
        if count > 1:
            yield None, f"{key} is there {count} times"


def kept(history: History) -> list[Born]:
    there = {row.id for row in history.rows}
    return [one for one in history.born if one.task in there]


def may_be_gone(history: History, born: Born) -> bool:
    at = history.gone.get(born.task, math.inf)
    place = (born.queue, born.key)
    for call in history.by_second[int(at)] if born.task in history.gone else ():
        if not (call.may_hold and call.asked - SLACK <= at <= call.answered + SLACK):
            continue
        replaced = [(task["queue"], task["key"]) for task in call.given.get("tasks", ())]
        if call.verb == "purge" and has_ended(history, born.task, at):
            return True
        if call.verb == "clear" and call.given["queue"] == born.queue:
            return True
        if call.given.get("on_conflict") == "replace" and place in replaced:
            return True
    return False


@check("from nowhere")
def from_nowhere(history: History) -> Iterator[Finding]:
    """What was rolled back or refused, or what nobody has submitted, is not there."""
    known = {life for call in history.calls if call.may_hold for life in call.submitted}
    for one in history.born:
        is_tick = one.key.partition("@")[0] in history.ticks
        if one.life not in known and not is_tick and one.type != BULK:
            yield one.task, "was there, and nobody has submitted it"


@check("refused as known")
def refused_as_known(history: History) -> Iterator[Finding]:
    """A key is refused only where someone has used it."""
    users = Counter(key for call in history.calls for key in keys_of(call))
    for call in history.calls:
        if call.error == "AlreadyExistsError" and all(users[key] == 1 for key in keys_of(call)):
            yield None, f"{keys_of(call)[0]} was refused as known, and is new"


def keys_of(call: Call) -> list[tuple[str, str]]:
    tasks = [(task["queue"], task["key"]) for task in call.given.get("tasks", ())]
    return tasks + [("", key) for key in call.given.get("keys", ())]


@check("no tasks")
def no_tasks(history: History) -> Iterator[Finding]:
    """A run in which nobody submits a task shows nothing, as where all clients fail at once."""
    if not history.born:
        yield None, "nobody has submitted a task"


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
            parents = [parent for child, parent in history.edges if child == row.id]
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


@check("out of order")
def out_of_order(history: History) -> Iterator[Finding]:
    """No task runs before those that it waits for, and what they came to decides its end."""
    yield from operations.nodes(history)
    yield from operations.too_early(history)
    yield from operations.callbacks(history)


check("circle")(operations.circles)
check("batch")(operations.batches)
check("bulk")(operations.bulk)


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
    """What a lease writes is refused once another has the task, or the task has ended."""
    for call in history.calls:
        for ref in call.refs if call.is_done else ():
            begin, end = history.tenures.get(ref, (math.inf, -math.inf))
            if begin <= call.answered + SLACK and end >= call.asked - SLACK:
                continue
            is_repeated = "finished" in ends_by(history, ref, call.answered)
            if (is_repeated and call.verb in MAY_END) or was_crashed(history, call.asked):
                continue
            yield ref[0], f"{call.verb} of attempt {ref[1]} was done when it no longer had the task"


def ends_by(history: History, ref: Ref, at: float) -> set[str]:
    """Return the ends to which an attempt had brought its task by then."""
    closes = history.closes_of.get(ref[0], ())
    return {one.outcome for one in closes if one.attempt == ref[1] and one.at <= at + SLACK}


@check("refused though held")
def refused_though_held(history: History) -> Iterator[Finding]:
    for call in history.calls:
        for ref in call.refused:
            begin, end = history.tenures.get(ref, (math.inf, -math.inf))
            alarms = [one.alarm or 0.0 for one in history.acquires_of[ref] if one.at <= call.asked]
            until = min(end, max(alarms, default=-math.inf))
            if begin <= call.asked and call.answered < until - SLACK:
                yield ref[0], f"{call.verb} of attempt {ref[1]} was refused"


@check("end not kept")
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


@check("ended by another")
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


@check("cap exceeded")
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


@check("rate passed")
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


@check("ran while paused")
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


@check("at the wrong time")
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


@check("edit lost")
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


@check("stumbled")
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


@check("drift")
def drift(history: History) -> Iterator[Finding]:
    yield from ((None, text) for text in history.drift)


@check("did not stop")
def did_not_stop(history: History) -> Iterator[Finding]:
    yield from ((None, text) for text in history.leftovers)


KINDS = tuple(CHECKS)


def name(history: History, task: int) -> str:
    born = history.born_of.get(task)
    return f"task {task}" if born is None else f"{born.key} ({task})"


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
    alarms = [
        change.alarm or 0.0 for change in history.acquires_of[run.ref] if change.at <= at + TICK
    ]
    return max(alarms, default=0.0)


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
    born = history.born_of[run.task]
    return any(
        call.given["queue"] == born.queue
        and call.key in ("", born.key)
        and call.asked <= run.began <= call.answered + history.alive_time
        for call in history.by_verb("force_finish", "clear")
    )


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
