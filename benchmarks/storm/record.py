"""
What a storm has left behind, and what follows from it with certainty.

A call took effect at some moment between ``asked`` and ``answered``. So nothing is known but
bounds: a lease certainly holds from the answer to its acquire until its time is over, counted
from when it was asked for, or until anyone asks for something that may end it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from benchmarks.chaos.history import Row, Strike

from . import scenario
from .calls import REFUSED, Call, Ref, refs

SLACK = 0.05
"""Seconds by which the clocks of server and clients may differ in a run."""
FORGETFUL = 5.0
"""Seconds before a crash in which PostgreSQL may not yet have kept an acquire."""
SETTLES = ("finish", "acquire", "retry", "release", "fail", "cancel", "snooze")
MAY_END = {"finish": "finished", "acquire": "finished", "fail": "failed", "cancel": "cancelled"}
OPERATIONS = ("force_finish", "cancel_request", "retry_ended", "unlink")
MANY = ("bulk", "batch")
"""Verbs that change tasks that they do not name, at any time since they were asked for."""


@dataclass
class Take:
    """
    An attempt that someone was given, and until when it certainly holds.

    ``asked`` and ``answered`` bound the moment at which it was taken; of a worker's
    attempt only the second is known well, which is when its handler began.
    """

    life: str
    attempt: int
    holder: int
    asked: float
    answered: float
    until: float
    edit: str | None = None
    call: Call | None = None
    forgettable: bool = False

    @property
    def ref(self) -> Ref:
        return (self.life, self.attempt, self.holder)


@dataclass(frozen=True)
class End:
    """An end of a task that a call has brought about; ``sure`` is set if it certainly has."""

    outcome: str
    call: Call
    sure: bool
    ref: Ref | None = None

    @property
    def asked(self) -> float:
        return self.call.asked

    @property
    def answered(self) -> float:
        return self.call.answered


@dataclass
class Life:
    """One submission of a key. ``fate`` is sure, maybe or never: whether it was stored."""

    life: str
    task: dict[str, Any]
    call: Call
    fate: str
    takes: list[Take] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    settles: list[Call] = field(default_factory=list)
    alone: bool = True

    @property
    def updates(self) -> list[Call]:
        return [call for call in self.settles if call.verb == "update"]

    parents: list[tuple[str, str]] = field(default_factory=list)
    """The places of what it waits for, by its submit or by links that were made."""
    batches: list[str | None] = field(default_factory=list)
    """The batches that it may be in."""

    @property
    def queue_key(self) -> tuple[str, str]:
        return (self.task["queue"], self.task["key"])


@dataclass(frozen=True)
class Record:
    """
    ``rows`` are the tasks at the end. ``drift`` is where counters differ from rows then,
    and ``stuck`` what did not end when it was asked to. ``forgets`` says that a crash of
    the server may undo an acquire.
    """

    calls: Sequence[Call] = ()
    rows: Sequence[Row] = ()
    strikes: Sequence[Strike] = ()
    drift: Sequence[str] = ()
    stuck: Sequence[str] = ()
    alive_time: float = 3.0
    forgets: bool = False

    @cached_property
    def lives(self) -> dict[str, Life]:
        found = {life.life: life for life in self.submitted()}
        for lives in grouped(found.values(), lambda life: life.queue_key).values():
            for life in lives:
                life.alone = len(lives) == 1
                # One that takes another's place takes that in its batch, too.
                replaces = life.call.given.get("on_conflict") == "replace"
                life.batches = [one.task.get("batch") for one in (lives if replaces else [life])]
                life.parents = [(queue, key) for queue, key in life.task.get("after", ())]
                life.parents += self.links[life.queue_key]
        for take in self.taken():
            found.setdefault(take.life, stray(take)).takes.append(take)
        for call in self.calls:
            for life_id in found.keys() & {ref[0] for ref in call.refs}:
                found[life_id].settles.append(call)
        for life in found.values():
            life.ends = list(self.ends_of(life))
            for take in life.takes:
                take.until = min(self.lapse(life, take), self.may_end(life, take))
        return found

    @cached_property
    def operations(self) -> dict[tuple[str, str], list[Call]]:
        """Return by queue and key what anyone did to a task, and who took its key."""
        found: dict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.verb in OPERATIONS:
                found[call.given["queue"], call.given["key"]].append(call)
            for task in call.given.get("tasks", ()):
                if call.given.get("on_conflict") == "replace":
                    found[task["queue"], task["key"]].append(call)
        return found

    @cached_property
    def links(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return by the place of a task what it has been made to wait for."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for call in self.calls:
            if call.verb == "link" and call.may_hold:
                queue_key = (call.given["queue"], call.given["key"])
                found[queue_key].append((call.given["queue"], call.given["parent"]))
        return found

    @cached_property
    def of_many(self) -> list[Call]:
        return [call for call in self.calls if call.verb in MANY and call.may_hold]

    @cached_property
    def graph_cancels(self) -> list[Call]:
        return [call for call in self.calls if call.given.get("together") and call.may_hold]

    def with_others(self, life: Life, what: str) -> list[Call]:
        """Return what may have cancelled or put back a task together with others."""
        operated = {life.task["user"], *life.batches}
        found = [
            call
            for call in self.of_many
            if call.given["what"] == what and call.given["whom"] in operated
        ]
        return found + (self.graph_cancels if what == "cancel" and life.parents else [])

    @cached_property
    def clears(self) -> list[Call]:
        return [call for call in self.calls if call.verb == "clear" and call.may_hold]

    @cached_property
    def life_of_row(self) -> dict[str, Row]:
        return {str(row.data["life"]): row for row in self.rows}

    def submitted(self) -> Iterator[Life]:
        users: dict[tuple[str, str], int] = defaultdict(int)
        submits = [call for call in self.calls if call.verb == "submit"]
        for call in submits:
            for task in call.given["tasks"]:
                users[task["queue"], task["key"]] += 1
        for call in submits:
            for task in call.given["tasks"]:
                fresh = users[task["queue"], task["key"]] == 1
                yield Life(task["life"], task, call, fate(call, task, fresh))

    def taken(self) -> Iterator[Take]:
        for call in self.calls:
            for one in call.reported.get("taken", ()):
                [ref] = refs([one["ref"]])
                until = call.asked + self.alive_time - SLACK
                forgettable = self.may_be_forgotten(call.asked, call.answered)
                yield Take(*ref, call.asked, call.answered, until, one["edit"], call, forgettable)
            if call.verb == "run":
                yield self.run(call)

    def run(self, call: Call) -> Take:
        """Return a worker's attempt: of one that was disturbed nothing is known but its begin."""
        [one] = call.given["taken"]
        [ref] = refs([one["ref"]])
        long_ago = call.asked - self.alive_time
        disturbed = math.isinf(call.answered) or any(
            strike.at <= call.answered and strike.restored >= long_ago
            for strike in self.strikes
            if not strike.fault.endswith(("client", "clients"))
        )
        until = call.asked if disturbed else call.answered
        forgettable = self.may_be_forgotten(long_ago, call.asked)
        return Take(*ref, -math.inf, call.asked, until, one["edit"], call, forgettable)

    def may_be_forgotten(self, asked: float, answered: float) -> bool:
        return self.forgets and any(
            strike.crash and strike.at - FORGETFUL <= answered and asked <= strike.restored
            for strike in self.strikes
        )

    def ends_of(self, life: Life) -> Iterator[End]:
        for call in life.settles:
            for ref in (ref for ref in call.refs if ref[0] == life.life):
                unheard = self.may_be_unheard(call, ref)
                if outcome := MAY_END.get(call.verb, "") if unheard else outcome_of(call, ref):
                    yield End(outcome, call, call.is_done and not unheard, ref)
        for take in life.takes:
            if take.call and take.call.verb == "run":
                yield End("finished", take.call, False, take.ref)
        yield from self.operated_ends(life)

    def operated_ends(self, life: Life) -> Iterator[End]:
        for call in self.operations.get(life.queue_key, ()):
            if not call.may_hold:
                continue
            if call.verb == "force_finish":
                yield End("finished", call, call.is_done and life.alone)
            elif call.verb == "cancel_request":
                # One that is running is cancelled by its holder, or once its lease is over.
                at_once = call.is_done and call.reported["cancelled"]
                yield End("cancelled", call, at_once and life.alone)
        for call in self.with_others(life, "cancel"):
            yield End("cancelled", call, sure=False)

    def lapse(self, life: Life, take: Take) -> float:
        """Return until when a lease holds if nobody ends it; of a worker's, until its handler."""
        if take.call is None or take.call.verb == "run":
            return take.until
        until = take.call.asked + self.alive_time - SLACK
        for call in life.settles:
            renews = call.is_done and call.verb in ("heartbeat", "update")
            if renews and take.ref in call.refs and take.ref not in call.refused:
                # Asked for in time, or else it is not known under which alarm it was.
                until = max(until, call.asked + self.alive_time - SLACK)
        return until

    def may_end(self, life: Life, take: Take, *, but: Call | None = None) -> float:
        """Return from when on somebody, in some other call, may have ended a lease."""
        own = [call for call in life.settles if take.ref in call.refs and call.verb in SETTLES]
        others = list(self.operations.get(life.queue_key, ()))
        others += [call for call in self.clears if call.given["queue"] == life.task["queue"]]
        calls = own + [call for call in others if call.answered > take.asked]
        calls += self.with_others(life, "cancel")
        return min((call.asked for call in calls if call is not but), default=math.inf)

    def may_be_unheard(self, call: Call, ref: Ref) -> bool:
        """
        Return whether a refused call may have been done all the same.

        Its answer was lost, the task was purged before the call was repeated, and so the
        repetition found nothing by which to know that.
        """
        return (
            call.reconnected
            and (ref in call.refused or call.answer == REFUSED)
            and ref[0] not in self.life_of_row
            and any(
                purge.may_hold and purge.asked < call.answered and call.asked < purge.answered
                for purge in self.calls
                if purge.verb == "purge"
            )
        )

    def may_have_been_put_back(self, life: Life, after: float, before: float) -> bool:
        return any(
            call.verb == "retry_ended"
            and call.may_hold
            and call.answered >= after
            and call.asked <= before
            for call in self.operations.get(life.queue_key, ())
        ) or any(call.asked <= before for call in self.with_others(life, "retry"))

    def may_have_ended(self, life: Life) -> float:
        """Return from when on a task may have ended in any way."""
        moments = [end.asked for end in life.ends]
        moments += [one.asked for one in self.clears if one.given["queue"] == life.task["queue"]]
        if life.task["expires"] is not None:
            moments.append(life.call.asked + life.task["expires"])
        return min(moments, default=math.inf)


def fate(call: Call, task: dict[str, Any], fresh: bool) -> str:
    """Return whether a submit has stored a task."""
    given = call.given
    if given["how"] == "rolled back" or task["life"] in given.get("dropped", ()):
        return "never"
    if not call.may_hold:
        return "never"
    if not call.is_done or (given.get("on_conflict") == "ignore" and not fresh):
        return "maybe"
    return "sure"


def stray(take: Take) -> Life:
    """Return the life of a task that nobody has submitted."""
    nowhere = {"queue": "", "key": take.life, "user": "", "type": "", "limits": []}
    nowhere["expires"] = None
    return Life(take.life, nowhere, take.call or Call("", "", 0.0), "never")


def outcome_of(call: Call, ref: Ref) -> str:
    """Return as what a call with a lease may have ended its task, or nothing."""
    if not call.may_hold or ref in call.refused:
        return ""
    if call.verb in MAY_END:
        return MAY_END[call.verb]
    if call.verb not in ("retry", "release", "snooze"):
        return ""
    cancelled = ref in refs(call.reported.get("cancelled", ()))
    return "cancelled" if cancelled or not call.is_done else ""


def grouped(things: Iterable[Any], by: Any) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for thing in things:
        found[by(thing)].append(thing)
    return found


def behind(record: Record, key: str) -> list[Take]:
    """Return the takes of all tasks that keep to a limit or have a user, in a queue or in all."""
    return [
        take
        for life in record.lives.values()
        if key in scenario.keys_of(life.task)
        for take in life.takes
    ]
