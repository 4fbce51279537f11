"""Reads what was recorded of a storm, and reports what must not have happened."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from benchmarks.audit import Checks, Violation

from . import scenario
from .calls import BROKEN, STUMBLED, Call, Ref, refs
from .record import SLACK, End, Life, Record, Take, behind

__all__ = ["KINDS", "Record", "story", "violations"]

AFTERMATH = 20.0
"""Seconds for which a fault may be felt: a server that recovers, a lock that is waited for."""

Finding = tuple[str | None, str]
CHECKS = Checks()
check = CHECKS.kind


def violations(record: Record) -> list[Violation]:
    """Return all that a record has of what must not be."""
    return CHECKS.violations(
        record, lambda record, life: f"{record.lives[life].task['key']} ({life})"
    )


@check("no tasks")
def no_tasks(record: Record) -> Iterator[Finding]:
    """A storm in which nobody submits a task shows nothing, as where all clients fail at once."""
    if not record.lives:
        yield None, "nobody has submitted a task"


@check("lost")
def lost(record: Record) -> Iterator[Finding]:
    """What was stored is there at the end, unless it has ended and was purged, or replaced."""
    for life in record.lives.values():
        stored = life.fate == "sure" or (life.fate == "maybe" and life.takes)
        if stored and life.life not in record.life_of_row and not may_be_gone(record, life):
            yield life.life, "was stored, has not ended, and is not there"


def may_be_gone(record: Record, life: Life) -> bool:
    since = life.call.asked
    for call in record.operations.get(life.queue_key, ()):
        if call.verb == "submit" and call is not life.call and call.may_hold:
            return True
    if any(c.given["queue"] == life.task["queue"] and c.answered >= since for c in record.clears):
        return True
    ended = [end.asked for end in life.ends]
    if life.task["expires"] is not None:
        ended.append(since + life.task["expires"])
    purges = (call.answered for call in record.calls if call.verb == "purge" and call.may_hold)
    return bool(ended) and max(purges, default=-math.inf) >= min(ended)


@check("from nowhere")
def from_nowhere(record: Record) -> Iterator[Finding]:
    """What was rolled back or refused was not stored."""
    for life in record.lives.values():
        if life.fate == "never" and (life.takes or life.life in record.life_of_row):
            yield life.life, "was not stored, by its submit, and is there"
    for row in record.rows:
        if row.data["life"] not in record.lives:
            yield None, f"{row.key} is there, and nobody has submitted it"


@check("refused as known")
def refused_as_known(record: Record) -> Iterator[Finding]:
    """A key is refused only where someone has used it."""
    users: dict[tuple[str, str], list[Call]] = {}
    submits = [call for call in record.calls if call.verb == "submit"]
    for call in submits:
        for task in call.given["tasks"]:
            users.setdefault((task["queue"], task["key"]), []).append(call)
    for call in submits:
        if call.reported.get("error") == "AlreadyExistsError":
            queue_keys = [(task["queue"], task["key"]) for task in call.given["tasks"]]
            if all(users[queue_key] == [call] for queue_key in queue_keys):
                yield call.given["tasks"][0]["life"], "was refused as known, and is new"


@check("never ended")
def never_ended(record: Record) -> Iterator[Finding]:
    for row in record.rows:
        if row.has_ticket or not row.outcome:
            yield known(record, row.data["life"]), "has not ended, with nothing in its way"


@check("taken twice")
def taken_twice(record: Record) -> Iterator[Finding]:
    """Each acquire is an attempt of its own, and later ones have larger numbers."""
    for life, first, second in pairs(record):
        if first.forgettable or second.forgettable:
            continue
        if first.attempt == second.attempt:
            yield life.life, f"attempt {first.attempt} was given out twice"
        elif second.asked > first.answered and second.attempt < first.attempt:
            yield life.life, f"attempt {second.attempt} was given out after {first.attempt}"


@check("held twice")
def held_twice(record: Record) -> Iterator[Finding]:
    """No two leases of a task hold at one moment."""
    for life, first, second in pairs(record):
        if first.forgettable or second.forgettable:
            continue
        begin, end = max(first.answered, second.answered), min(first.until, second.until)
        if begin < end:
            yield (
                life.life,
                f"attempts {first.attempt} and {second.attempt} held from {begin:.3f} to {end:.3f}",
            )


@check("ran after its end")
def ran_after_its_end(record: Record) -> Iterator[Finding]:
    """What has ended is not given out again, unless someone has put it back."""
    for life in record.lives.values():
        for end in (end for end in life.ends if end.sure):
            for take in life.takes:
                # A worker may be late to see that what it has taken has ended meanwhile.
                asked = take.answered - record.alive_time if math.isinf(take.asked) else take.asked
                if asked <= end.answered or was_frozen(record, take):
                    continue
                back = record.may_have_been_put_back(life, end.asked, take.answered)
                if end.outcome == "finished" or not back:
                    yield life.life, f"attempt {take.attempt} was given out after {reported(end)}"


def was_frozen(record: Record, take: Take) -> bool:
    """Return whether a worker may have stood still between its acquire and its handler."""
    return math.isinf(take.asked) and any(
        strike.at <= take.answered <= strike.restored + 2 * record.alive_time
        for strike in record.strikes
    )


@check("ended twice")
def ended_twice(record: Record) -> Iterator[Finding]:
    for life in record.lives.values():
        sure = [end for end in life.ends if end.sure]
        for first, second in combinations(sure, 2):
            if first.ref is not None and first.ref == second.ref and is_finish(first, second):
                continue
            both = first.outcome == second.outcome == "finished"
            since, until = min(first.asked, second.asked), max(first.answered, second.answered)
            if both or not record.may_have_been_put_back(life, since, until):
                yield life.life, f"{reported(first)}, and {reported(second)}"


def is_finish(*ends: End) -> bool:
    return all(end.outcome == "finished" for end in ends)


@check("fence passed")
def fence_passed(record: Record) -> Iterator[Finding]:
    """What a lease writes is refused once another has the task, or it has ended."""
    for life in record.lives.values():
        for call in life.settles:
            for ref in (ref for ref in call.refs if ref[0] == life.life):
                was_done = call.is_done and ref not in call.refused
                if was_done and (reason := past(life, call, ref)):
                    yield life.life, f"{call.verb} of attempt {ref[1]} was done after {reason}"


def past(life: Life, call: Call, ref: Ref) -> str:
    """Return what had ended a lease for sure before a call with it, or nothing."""
    for take in life.takes:
        if take.attempt > ref[1] and take.answered < call.asked and not take.forgettable:
            return f"attempt {take.attempt} was given out"
    for end in life.ends:
        if not end.sure or end.answered >= call.asked:
            continue
        if end.ref == ref and end.outcome == "finished" and call.verb in ("finish", "acquire"):
            continue
        if was_before(life, ref, end):
            return reported(end)
    return ""


def was_before(life: Life, ref: Ref, end: End) -> bool:
    """Return whether a lease is older than an end, after which its task may have been put back."""
    if end.ref is not None:
        return ref[1] <= end.ref[1]
    return any(take.ref == ref and take.answered <= end.asked for take in life.takes)


@check("both leases done")
def both_leases_done(record: Record) -> Iterator[Finding]:
    """Of two leases of a task that one call names, at most one holds."""
    for call in record.calls:
        if not call.is_done:
            continue
        done = [ref for ref in call.refs if ref not in call.refused]
        for first, second in combinations(done, 2):
            if first[0] == second[0]:
                yield known(record, first[0]), f"{call.verb} of attempts {first[1]}, {second[1]}"


@check("refused though held")
def refused_though_held(record: Record) -> Iterator[Finding]:
    for life in record.lives.values():
        for take in life.takes:
            if take.forgettable or take.call is None or take.call.verb == "run":
                continue
            for call in life.settles:
                if (
                    take.ref in refused_of(call)
                    and holds_during(record, life, take, call)
                    and not record.may_be_unheard(call, take.ref)
                ):
                    yield life.life, f"{call.verb} of attempt {take.attempt} was refused"


def refused_of(call: Call) -> set[Ref]:
    if call.reported.get("error") == "PreemptedError":
        return set(call.refs)
    return call.refused if call.is_done else set()


def holds_during(record: Record, life: Life, take: Take, call: Call) -> bool:
    """Return whether a lease held all the time that a call took, but for what that may end."""
    until = min(record.lapse(life, take), record.may_end(life, take, but=call))
    return take.answered <= call.asked and call.answered <= until


@check("stale result kept")
def stale_result_kept(record: Record) -> Iterator[Finding]:
    """The result that is kept is of the last attempt, whose finish was not refused."""
    for row in record.rows:
        if row.outcome != "finished" or row.result is None:
            continue
        life = record.lives.get(row.data["life"])
        [ref] = refs([row.result])
        if life is None:
            continue
        if ref[:2] != (life.life, row.attempt):
            yield life.life, f"was ended by attempt {row.attempt} with the result of {ref}"
        elif not any(end.ref == ref and end.outcome == "finished" for end in life.ends):
            yield life.life, f"has the result of attempt {ref[1]}, whose finish was refused"


@check("end not kept")
def end_not_kept(record: Record) -> Iterator[Finding]:
    """An end that was confirmed is what the row says."""
    for life in record.lives.values():
        row = record.life_of_row.get(life.life)
        for end in (end for end in life.ends if end.sure and row is not None):
            assert row is not None
            put_back = record.may_have_been_put_back(life, end.asked, math.inf)
            if end.outcome != "finished" and put_back:
                continue
            if row.outcome != end.outcome:
                yield life.life, f"{reported(end)}, and is {row.outcome or 'live'}"
            elif (
                end.ref
                and end.outcome == "finished"
                and refs([row.result or ("", 0, 0)]) != [end.ref]
            ):
                yield life.life, f"{reported(end)}, and has the result {row.result}"


@check("cap passed")
def cap_passed(record: Record) -> Iterator[Finding]:
    """Never do more tasks of a user, or behind a limit, hold a lease than may run."""
    users = {
        f"user:{user} in {queue}": cap
        for user, cap in scenario.CAPS.items()
        for queue in scenario.QUEUES
    }
    for key, cap in (users | scenario.LIMITS).items():
        takes = [one for one in behind(record, key) if one.answered < one.until]
        begins = sorted(one.answered for one in takes)
        ends = sorted(one.until for one in takes)
        for number, at in enumerate(begins, start=1):
            running = number - bisect_left(ends, at + SLACK)
            if running > cap:
                yield None, f"{key}: {running} at once where {cap} may run, at {at:.3f}"
                break


@check("rate passed")
def rate_passed(record: Record) -> Iterator[Finding]:
    """In no length of time are more tasks taken than the rate allows, run or not."""
    for key, rate in scenario.RATES.items():
        takes = sorted(behind(record, key), key=lambda take: take.answered)
        for first in takes:
            inside = 0
            for take in takes:
                inside += take.asked >= first.asked
                seconds = take.answered - first.asked + SLACK
                if inside and inside > rate.most_in(seconds):
                    yield None, f"{key}: {inside} started in {seconds:.3f} s"
                    return


@check("ran while paused")
def ran_while_paused(record: Record) -> Iterator[Finding]:
    for key in scenario.PAUSES:
        takes = behind(record, key)
        for begin, end in pauses(record, key):
            for take in takes:
                if take.asked > begin and take.answered < end:
                    yield take.life, f"was given out at {take.answered:.3f} while {key} was paused"


def pauses(record: Record, key: str) -> Iterator[tuple[float, float]]:
    """Yield from when until when something certainly was paused."""
    calls = [call for call in record.calls if call.given.get("whom") == key and call.may_hold]
    lifts = [call for call in calls if call.verb == "unpause"]
    for call in calls:
        if call.verb == "pause" and call.is_done:
            later = [lift.asked for lift in lifts if lift.answered >= call.asked]
            end = min(later, default=math.inf)
            if end > call.answered:
                yield call.answered, end


@check("before its time")
def before_its_time(record: Record) -> Iterator[Finding]:
    for life in record.lives.values():
        delay = life.task.get("delay")
        operated = record.operations.get(life.queue_key) or record.with_others(life, "retry")
        if delay is None or operated:
            continue
        for take in life.takes:
            if take.answered < life.call.asked + delay - SLACK:
                yield life.life, f"attempt {take.attempt} was given out too early"


@check("before what it waits for")
def before_what_it_waits_for(record: Record) -> Iterator[Finding]:
    """No task is given out before each of those may have ended for which it was made to wait."""
    ends = {
        life.queue_key: record.may_have_ended(life)
        for life in record.lives.values()
        if life.alone and life.fate == "sure"
    }
    for life in record.lives.values():
        back = record.may_have_been_put_back(life, -math.inf, math.inf)
        unlinked = any(call.verb == "unlink" for call in record.operations.get(life.queue_key, ()))
        if not life.alone or back or unlinked:
            continue
        for take in life.takes:
            for parent in life.parents:
                if take.answered + SLACK < ends.get(parent, -math.inf):
                    yield (
                        life.life,
                        f"attempt {take.attempt} was given out before {parent[1]} ended",
                    )


@check("after it expired")
def after_it_expired(record: Record) -> Iterator[Finding]:
    for life in record.lives.values():
        expires = life.task.get("expires")
        if expires is None or record.may_have_been_put_back(life, -math.inf, math.inf):
            continue
        for take in life.takes:
            if take.asked > life.call.answered + expires + SLACK:
                yield life.life, f"attempt {take.attempt} was given out when it had expired"


@check("edit lost")
def edit_lost(record: Record) -> Iterator[Finding]:
    """An attempt sees the last edit that was confirmed before it, or one that came later."""
    for life in record.lives.values():
        # A repetition is refused where the lease has run out after a commit without an answer.
        written = [call for call in life.updates if call.may_hold or call.reconnected]
        edits = {call.given["edit"]: call for call in written}
        for take in life.takes:
            seen = edits.get(take.edit)
            if take.edit is not None and seen is None:
                yield life.life, f"attempt {take.attempt} has an edit that was refused"
                continue
            if math.isinf(take.asked):
                continue
            since = -math.inf if seen is None else seen.answered
            for call in edits.values():
                if call.is_done and call.asked > since and call.answered < take.asked:
                    edit = call.given["edit"]
                    yield life.life, f"attempt {take.attempt} does not see the edit {edit}"
                    break


@check("counters differ from rows")
def counters(record: Record) -> Iterator[Finding]:
    yield from ((None, text) for text in record.drift)


@check("stumbled")
def stumbled(record: Record) -> Iterator[Finding]:
    """No verb raises what is neither a refusal nor a broken connection; and that has a cause."""
    for call in record.calls:
        what = f"{call.verb} of {call.by} at {call.asked:.3f}: {call.reported.get('error')}"
        if call.answer == STUMBLED:
            yield None, what
        elif (
            call.answer == BROKEN and not call.given.get("how") and not was_disturbed(record, call)
        ):
            yield None, f"{what}, with nothing broken"


def was_disturbed(record: Record, call: Call) -> bool:
    """Return whether something may have broken a connection, or held a lock, in a call's time."""
    return any(
        strike.at <= call.answered and call.asked <= strike.restored + AFTERMATH
        for strike in record.strikes
    )


@check("did not stop")
def did_not_stop(record: Record) -> Iterator[Finding]:
    yield from ((None, text) for text in record.stuck)


KINDS = tuple(CHECKS)


def known(record: Record, life: Any) -> str | None:
    return life if life in record.lives else None


def reported(end: End) -> str:
    whose = "" if end.ref is None else f" by attempt {end.ref[1]}"
    return f"{end.call.verb} of {end.call.by}{whose} at {end.answered:.3f}"


def pairs(record: Record) -> Iterator[tuple[Life, Take, Take]]:
    for life in record.lives.values():
        for first, second in combinations(sorted(life.takes, key=lambda one: one.answered), 2):
            yield life, first, second


def story(record: Record, life: str | None) -> list[str]:
    """Return all that was recorded of a task, in the order of time."""
    if life is None or life not in record.lives:
        return []
    found = record.lives[life]
    calls: Iterable[Call] = [
        found.call,
        *found.settles,
        *record.operations.get(found.queue_key, ()),
        *(take.call for take in found.takes if take.call),
        *(end.call for end in found.ends),
    ]
    seen = {id(call): call for call in calls}.values()
    lines = [(call.asked, brief(call, life)) for call in seen]
    since, until = min(at for at, _ in lines), max(at for at, _ in lines)
    strikes = (s for s in record.strikes if since - 5 < s.restored and s.at < until + 5)
    lines += [(strike.at, str(strike)) for strike in strikes]
    rows = [(math.inf, str(row)) for row in record.rows if row.data["life"] == life]
    return [f"{at:.4f} {text}" for at, text in sorted([*lines, *rows])]


def brief(call: Call, life: str) -> str:
    """Return a call without what it says of other tasks."""

    def own(things: Any) -> Any:
        if not isinstance(things, list):
            return things
        return [one for one in things if life in str(one)] or f"{len(things)} others"

    given = {name: own(value) for name, value in call.given.items()}
    reported = {name: own(value) for name, value in call.reported.items()}
    return f"-> {call.answered:.4f} {call.by} {call.verb} {call.answer} {given} {reported}"
