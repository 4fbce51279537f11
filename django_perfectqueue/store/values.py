"""What goes into the store and what comes out: plain values, never rows."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.models import State
from django_perfectqueue.models.batch import SEQUENCES
from django_perfectqueue.payload import codecs, inputs
from django_perfectqueue.payload.context import OF_ATTEMPTS

# The channel of PostgreSQL's notifications that there is work.
CHANNEL = "perfectqueue"
# The channel of the notification that a task has ended, before its id.
ENDED = "perfectqueue_ended_"

# A point in time; a timedelta counts from the server's clock when the task is stored.
Moment = datetime | timedelta
# The time where a caller gives it; None is for the server's clock.
Now = datetime | None
# What a task is known by: its queue and its key.
Name = tuple[str, str]
# The ids of tasks by queue and key.
Ids = dict[Name, int]


class Parent(NamedTuple):
    """A task that another waits for, by its queue and key; or by its id, if that is given."""

    queue: str
    key: str
    id: int | None = None

    @property
    def name(self) -> Name:
        return self.queue, self.key

    @classmethod
    def batch(cls, batch: int) -> Parent:
        """Return a batch as what a callback waits for: it has minus its id."""
        return cls("", "", -batch)

    @classmethod
    def sequence(cls, name: str) -> Parent:
        """Return a sequence as what its tasks wait for until they have a place in it."""
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
        return cls("", "", SEQUENCES - int.from_bytes(digest, "big") // 8)


class Unique(NamedTuple):
    """
    Until when the key of a task is taken: its "start", its "end" or its deletion, ""; and for so
    many ``seconds`` at most.
    """

    until: str = ""
    seconds: float | None = None


class Debounce(NamedTuple):
    """
    How submits of a key are merged into one run: it begins so many seconds after the last, and
    ``at_most`` so many after the first. One that is ``leading`` begins at once.
    """

    wait: float
    at_most: float | None = None
    leading: bool = False


class Submission(NamedTuple):
    """
    A task to be stored. ``payload`` is JSON text; ``run_at`` None is now.

    ``limits`` are the names of the limits that it keeps to, sorted. ``lane`` is that of its
    user, behind all limits known to hold for it; one that was missed is found when the
    task is acquired. ``time_limit`` is in seconds; None leaves it to the handler.
    ``context`` is JSON text: what of the submitter's surroundings the handler is to find.
    It waits for the tasks in ``after``; ``if_failed`` is a number of IfFailed. ``tags`` are
    each there once. ``followed`` is what its ticket says of who follows it. One that is ``unique``
    is stored by submit_unique(), or submit_debounced().
    """

    queue: str
    key: str
    type: str
    payload: str
    lane: int
    user: str = ""
    priority: int = 0
    run_at: Moment | None = None
    expires_at: Moment | None = None
    expected_at: Moment | None = None
    limits: tuple[str, ...] = ()
    time_limit: float | None = None
    context: str | None = None
    after: tuple[Parent, ...] = ()
    if_failed: int = 0
    tags: tuple[str, ...] = ()
    followed: int | None = None
    unique: Unique | Debounce | None = None

    @property
    def state(self) -> int:
        """The state in which its ticket is stored."""
        ready = State.WAITING if self.run_at is None else State.SCHEDULED
        return int(State.BLOCKED if self.after else ready)

    @classmethod
    def like(cls, row: Any, key: str, lane: int, **more: Any) -> Submission:
        """Return a task with what the row of a task or of a schedule says of one."""
        return cls(
            queue=row.queue,
            key=key,
            type=row.type,
            payload=row.payload,
            lane=lane,
            user=row.user,
            priority=row.priority,
            time_limit=row.time_limit,
            **{"limits": tuple(row.limits.split(",")) if row.limits else ()} | more,
        )


# What is said of a task beyond its columns.
IN_OTHERS = ("sequence", "unique", *OF_ATTEMPTS)


def put_in_others(given: dict[str, Any]) -> None:
    """
    Replace the options that have no column: a sequence is a parent, attempts are context, which
    also says of which key one task is to live.
    """
    if sequence := given.pop("sequence", None):
        given["after"] = (*given.get("after", ()), Parent.sequence(sequence))
        given["tags"] = (*given.get("tags", ()), inputs.IN_SEQUENCE + sequence)
    attempts = {name: given.pop(name) for name in OF_ATTEMPTS if name in given}
    if attempts := attempts | ({"unique": "live"} if given.get("unique") == "live" else {}):
        beside = codecs.decode(given["context"]) if given["context"] else {}
        given["context"] = inputs.carried({**beside, **attempts})


class Stored(Ids):
    """The ids of tasks by queue and key, and which of their lanes are known to be ``awake``."""

    awake: Collection[int] = ()


class Chunk(list[Submission]):
    """Tasks to be stored together, and what waits for a server that has begun: see send_ahead()."""

    ahead: Any = None


class Lease(NamedTuple):
    """
    A task in the hands of one holder.

    ``token`` fences every write: no other acquire, by whatever holder, has the same for this
    task. ``charge`` is the seconds that its lane has been charged in advance, and
    ``finish_tag`` the virtual time that it reaches with them. ``is_new`` means that none of
    its lane's tasks was measured before. ``capped`` means that others may wait until it has
    ended, by a cap or a limit. ``time_limit`` is what the submitter said, in seconds;
    ``context`` is what it sent along of its surroundings, as JSON text. ``limits`` are the
    names of the limits that it lists, with commas between. ``share`` is how many processors
    of a worker its user has as long as others wait; 0 is any number. ``weight`` is that of its
    user. One that ``goes_on`` had begun before it yielded or waited.
    """

    using: str
    task_id: int
    attempt: int
    holder: int
    token: int
    lane: int
    charge: float
    errors: int
    crashes: int
    queue: str
    key: str
    type: str
    user: str
    payload: str
    priority: int
    created_at: datetime
    run_at: datetime
    time_limit: float | None = None
    context: str | None = None
    capped: bool = False
    finish_tag: float = 0.0
    is_new: bool = False
    limits: str = ""
    share: int = 0
    weight: float = 1.0
    goes_on: bool = False

    def __repr__(self) -> str:
        """Name it without its payload, which must not get into logs and reports of errors."""
        return f"<Lease {self.task_id} key={self.key!r} attempt={self.attempt}>"

    @property
    def fence(self) -> tuple[int, int]:
        """What every write names of it: the task and the acquire."""
        return self.task_id, self.token

    @property
    def tries(self) -> int:
        """How many attempts have counted, this one among them."""
        return self.errors + self.crashes + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not finish."""

    error: str = ""
    message: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(
            error=path_of(type(error)),
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )


REST = 9.0


def rested_at(began: float) -> float:
    """Return until when what began then is not repeated, so that it takes a tenth of the time."""
    now = time.monotonic()
    return now + REST * (now - began)


# The least and the most that a task is expected to cost, in seconds.
Costs = tuple[float, float]
# The rank, the time and the id by which a ticket stands in its lane.
Mark = tuple[int, float, int]
START: Mark = (-(2**31), float("-inf"), 0)


@dataclass(slots=True)
class Watermarks:
    """
    Up to where a holder has taken the tickets of each lane: where it was slow to read a lane
    from its start, the next claims begin there.

    PostgreSQL keeps entries of all tickets that were taken since the oldest snapshot, as that
    of a backup, and who reads from the start passes them all. What stands before the marks, as
    a task of a higher priority, one that was released, or one whose claim was rolled back, is
    taken by a claim from the start: after one that would get nothing; and every half second, or
    so seldom that reading takes a hundredth of the time, but every ten seconds. The same holds
    for a look, and for a timer that was committed long after it was due.
    The users of a queue are read from the turn in ``turns`` on, until ``turns_until``.
    ``timers_at`` is when the last look has found that no timer was due, by the monotonic clock,
    and ``timers_until`` when one looks from the start again; ``back_at`` is when one does so that
    finds nothing.
    """

    lanes: dict[int, Mark] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    turns_until: float = 0.0
    timers_at: float | None = None
    timers_until: float = 0.0
    timers_in_use: bool = False
    taken: int = 0
    until: float = 0.0
    in_use: bool = False
    back_at: float = 0.0

    # In seconds; and how many tasks are taken before anything is called slow.
    LEAST: ClassVar = 0.5
    MOST: ClassVar = 10.0
    PART: ClassVar = 100
    SLOW: ClassVar = 0.005
    SLOW_ROW: ClassVar = 0.00005
    MANY: ClassVar = 1_000
    NAMED: ClassVar = 100

    def begin(self) -> None:
        """Begin a claim, at the marks or at the start."""
        self.in_use = time.monotonic() < self.until
        if not self.in_use:
            self.lanes.clear()

    def few(self) -> dict[int, Mark]:
        """Return the marks for a statement that names each; none to read from the start."""
        is_used = len(self.lanes) <= self.NAMED and time.monotonic() < self.until
        return self.lanes if is_used else {}

    def was_read(self, seconds: float, rows: int) -> None:
        """Note how long a claim took that has returned so many rows."""
        self.taken += rows
        if not self.in_use:
            self.until = max(self.until, self.next_at(seconds, rows))

    def next_at(self, seconds: float, rows: int) -> float:
        """Return when to read from the start again, after it took so long; 0 for at once."""
        slow = seconds > self.SLOW + rows * self.SLOW_ROW
        if not slow or self.taken < self.MANY:
            return 0.0
        return time.monotonic() + min(max(self.LEAST, self.PART * seconds), self.MOST)

    def from_turn(self, queue: str) -> str:
        """Return the condition of the users of a queue that are read; nothing for all."""
        if time.monotonic() >= self.turns_until:
            self.turns.clear()
        turn = self.turns.get(queue)
        return "" if turn is None else f' AND "turn" >= {turn!r}'

    def users_read(self, queue: str, began: float) -> bool:
        """Note that users were read since then; return whether the first turn is to be noted."""
        now = time.monotonic()
        if queue not in self.turns:
            self.turns_until = max(self.turns_until, self.next_at(now - began, 0))
        return now < self.turns_until

    def begin_look(self) -> float | None:
        """Return when no timer was due, for a look at those since; None looks at all."""
        if time.monotonic() >= self.timers_until:
            self.timers_at = None
        self.timers_in_use = self.timers_at is not None
        return self.timers_at

    def leave(self) -> bool:
        """Have all be read from the start again; return whether the last claim was not."""
        were_in_use = self.in_use or self.timers_in_use
        if were_in_use:
            self.until = self.timers_until = 0.0
        return were_in_use

    def looked(self, began: float, *, due: bool) -> None:
        """Note a look at timers that began then, and whether one was due."""
        if self.timers_at is None:
            self.timers_until = self.next_at(time.monotonic() - began, 0)
        if not due:
            self.none_due(began)

    def none_due(self, moment: float) -> None:
        """Note that no timer was due then that is due no more."""
        if time.monotonic() < self.timers_until:
            self.timers_at = moment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """
    Which tasks a holder asks for: up to ``limit`` of these queues, which are tried in order.

    ``alive_time`` is for how many seconds it may keep them. A ``serial`` holder runs them one
    after another: of what has a cap or keeps to limits it then gets a part, so that others
    may run the rest at the same time. Its worker has so many ``processors``; 0 is for one that
    is not bound to shares of them. ``overrun`` are the lanes whose tasks take longer there
    than expected, each with how many of them run. ``marks`` are those of its earlier claims.
    With ``costs`` it is kept for users whose tasks are expected to take between so many seconds,
    and not for those of ``overrun``; below 0 are those of which none was ever measured.
    """

    queues: Sequence[str]
    limit: int
    alive_time: float
    holder: int
    using: str
    now: Now = None
    serial: bool = False
    processors: int = 0
    overrun: Mapping[int, int] = field(default_factory=dict)
    marks: Watermarks = field(default_factory=Watermarks)
    costs: Costs | None = None


class Wait(NamedTuple):
    """
    What a held task waits for, or a row like it: a kind of Step by its name.

    It is over at a time at the latest, which is so many ``seconds`` away; with None only a signal
    ends it. Where an earlier attempt has opened it, that is in the row with this ``id``, and it
    waits ``since`` then.
    """

    kind: int
    name: str
    until: datetime | None = None
    seconds: float = math.inf
    id: int | None = None
    since: datetime | None = None


class Completion(NamedTuple):
    """A handler that has returned. Times are the host's monotonic clock, in seconds."""

    lease: Lease
    result: str | None
    started: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """
    What a handler has reported so far in one attempt; ``progress`` is a part of 1. ``key`` is
    that of its task, which shows whether the task of this id is still the same.

    ``is_first`` means that nothing of this attempt has been written before.
    """

    task_id: int
    key: str
    attempt: int
    progress: float | None = None
    stage: str = ""
    lines: str = ""
    is_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a heartbeat learnt of one lease."""

    held: bool
    cancel_requested: bool


def new_holder() -> int:
    """Return a number that no other holder has."""
    return secrets.randbits(63)


def new_token() -> int:
    """Return a number that no other acquire has, and no other submit."""
    return secrets.randbits(63)


def as_text(value: object, limit: int) -> str:
    """Cut to what a column takes, and write otherwise what is no UTF-8 or PostgreSQL refuses."""
    text = str(value).encode(errors="backslashreplace").decode()
    return text.replace("\x00", "\ufffd")[:limit]
