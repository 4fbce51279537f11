"""What a worker and its processors are doing, in memory that its processes share."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Sequence

from django_perfectqueue import store
from django_perfectqueue.application.base import TimeLimits
from django_perfectqueue.signals import ENDINGS
from django_perfectqueue.store.arithmetic.fair_order import lane_of
from django_perfectqueue.store.database import Problem
from django_perfectqueue.store.values import Costs

from ..process.output import shared, with_fields
from ..process.signals import Wakeup

# The words for the end of an attempt: those that have a signal, and others.
COUNTED = (*ENDINGS, "yielded", "suspended", "left", "crashed", "killed")
NEVER = float("inf")
NO_LIMITS = TimeLimits()

# How often leases are renewed while one of them would last.
RENEWALS = 3


class ProcessorCounts(ctypes.Structure):
    """How many attempts of a processor's place ended in each way."""

    _fields_ = [(word, ctypes.c_int64) for word in COUNTED]


@with_fields
class TaskStatus(ctypes.Structure):
    """
    A task whose handler runs; ``task_id`` is 0 where there is none. ``account`` is the lane
    that is charged for it, and ``charge`` what it was expected to take, 0.0 where nobody knew.

    Times are in seconds of the monotonic clock, which all processes of a host share.
    ``stopped_id`` and ``returned_id`` name the task that they are about, so that they never
    hold for the next one in the same place.

    ``has_steps`` means that it has come to a place where it may yield. The listener writes whether
    it is ``outranked``: a lane waits that comes before its own.
    """

    task_id: int
    account: int
    charge: float
    since: float
    limit_at: float
    kill_wait: float
    stopped_id: int
    stopped_at: float
    returned_id: int
    has_steps: bool
    outranked: bool

    @property
    def kill_at(self) -> float:
        """When its processor is killed: by its time limit, or after a stop request."""
        if self.returned_id == self.task_id:
            return NEVER
        if self.stopped_id == self.task_id:
            return min(self.limit_at, self.stopped_at + self.kill_wait)
        return self.limit_at


@with_fields
class ProcessorStatus(ctypes.Structure):
    """
    Shared-memory status of one processor, read by the supervisor, helpers and processors.

    The processor writes it, which costs no system call. Others set ``rung`` and ``called``.

    - ``signed_off``: the processor ended by itself and left nothing behind.
    - ``serves``: it has looked for tasks for the first time.
    - ``seeking``: it looks for tasks, or would wake for one. ``rung``: it was woken since.
    - ``called``: something happened to a task that it holds.
    - ``renewed_at``: when its leases were last renewed, or 0.
    - ``draining``: it takes no more tasks, as a person wants; the next in its place neither.
    - ``kept``: it takes short tasks only; see the setting HEADROOM.
    """

    pid: int
    holder: int
    renewed_at: float
    signed_off: bool
    serves: bool
    seeking: bool
    rung: bool
    called: bool
    counts: ProcessorCounts
    draining: bool
    kept: bool

    _task_statuses: ctypes.Array[TaskStatus]
    _lock: threading.Lock

    @classmethod
    def shared(cls, concurrency: int = 1) -> ProcessorStatus:
        """Return the status of a processor that runs up to ``concurrency`` tasks at once."""
        status = shared(cls)
        status._task_statuses = shared(TaskStatus * concurrency)
        status._lock = threading.Lock()
        return status

    @property
    def tasks(self) -> list[TaskStatus]:
        """The tasks whose handlers run; copies, since a status may be written meanwhile."""
        copies = map(TaskStatus.from_buffer_copy, self._task_statuses)
        return [task for task in copies if task.task_id]

    def overdue(self, now: float) -> list[TaskStatus]:
        """Return the tasks that are to be ended by force by now."""
        return [task for task in self.tasks if task.kill_at <= now]

    @property
    def is_free(self) -> bool:
        """Whether a wake-up would make it look for tasks, and none was sent."""
        return self.seeking and not self.rung and not self.draining

    def seek(self) -> None:
        """Begin to look for tasks; a wake-up from now on is kept in ``rung``."""
        self.rung = False
        self.seeking = True

    def sign_on(self, holder: int = 0) -> None:
        """Reset it for another processor; the counts stay, and whether it drains."""
        ctypes.memset(ctypes.addressof(self), 0, ProcessorStatus.counts.offset)
        self.holder = holder
        self.clear()

    def begin(
        self,
        task_id: int,
        *,
        since: float,
        limits: TimeLimits = NO_LIMITS,
        index: int = 0,
        whose: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Record that a handler begins; ``whose`` are its account and charge."""
        task, (time_limit, kill_wait) = self._task_statuses[index], limits
        task.stopped_id = task.returned_id = 0
        task.has_steps = task.outranked = False
        task.since, task.kill_wait = since, kill_wait
        task.account, task.charge = whose
        task.limit_at = since + time_limit + kill_wait
        # The id goes last: it makes the rest count.
        task.task_id = task_id

    def ask_to_stop(self, task_id: int, now: float) -> None:
        """Note that a handler was asked to stop: its ``kill_wait`` counts from the first time."""
        for task in self._task_statuses:
            if task.task_id == task_id != task.stopped_id:
                task.stopped_at = now
                task.stopped_id = task_id

    def returned(self, task_id: int) -> None:
        """Record that a handler has ended, so that its processor is not killed for it."""
        for task in self._task_statuses:
            if task.task_id == task_id:
                task.returned_id = task_id

    def of(self, task_id: int) -> TaskStatus | None:
        """Return the status of a task that runs here: itself, to be written to."""
        return next((one for one in self._task_statuses if one.task_id == task_id), None)

    def end(self, *, index: int = 0) -> None:
        self._task_statuses[index].task_id = 0

    def clear(self) -> None:
        """Clear the running tasks."""
        for task in self._task_statuses:
            task.task_id = 0

    def count(self, word: str, number: int = 1) -> None:
        with self._lock:
            setattr(self.counts, word, getattr(self.counts, word) + number)

    def totals(self) -> dict[str, int]:
        return {word: getattr(self.counts, word) for word in COUNTED}


# The status of a worker in memory that its processes share.


ALIVE_FOR = 30.0


@with_fields
class WorkerStatus(ctypes.Structure):
    """
    How a worker stands, as its supervisor and its janitor write it.

    ``turned_at`` is when its supervisor last saw to its processes, and ``reached_at`` when
    its janitor last had an answer from the database, or 0; by the monotonic clock. A
    ``leaving`` worker takes no more tasks. ``dropped`` is how many lines of its output were
    dropped, as nobody read them.
    """

    processors: int
    leaving: bool
    dropped: int
    turned_at: float
    reached_at: float

    _statuses: Sequence[ProcessorStatus]

    @classmethod
    def shared(cls, statuses: Sequence[ProcessorStatus] = ()) -> WorkerStatus:
        status = shared(cls)
        status._statuses = statuses
        return status

    @property
    def statuses(self) -> Sequence[ProcessorStatus]:
        """The status of each processor."""
        return self._statuses

    def turn(self, processors: int) -> None:
        """Note that the supervisor is at work, and how many processors it has."""
        self.turned_at = time.monotonic()
        self.processors = processors

    def reach(self) -> None:
        """Note that the database has answered."""
        self.reached_at = time.monotonic()

    @property
    def turned(self) -> float:
        """How many seconds ago its supervisor last saw to its processes."""
        return time.monotonic() - self.turned_at

    @property
    def reached(self) -> float | None:
        """How many seconds ago the database last answered; None for never."""
        return time.monotonic() - self.reached_at if self.reached_at else None

    @property
    def is_live(self) -> bool:
        """Whether its supervisor does its work."""
        return self.turned < ALIVE_FOR

    @property
    def is_ready(self) -> bool:
        """Whether it takes tasks."""
        reached = self.reached is not None and self.reached < ALIVE_FOR
        takes = not (self.leaving or any(status.draining for status in self.statuses))
        return self.is_live and reached and self.processors > 0 and takes

    def facts(self) -> dict[str, object]:
        """Return it for programs; times are in seconds."""
        return {
            "live": self.is_live,
            "ready": self.is_ready,
            "leaving": self.leaving,
            "processors": self.processors,
            "dropped_lines": self.dropped,
            "supervisor_seen": round(self.turned, 3),
            "database_seen": None if self.reached is None else round(self.reached, 3),
        }


# Wake the processors of a supervisor.


LISTENED_FOR = 10.0
TRIES = 20


class Wakeups:
    """
    Wakes one idle processor for a task, never all of them.

    A processor sets ``seeking`` before its last look for tasks. If it is woken during that
    look, it looks again or wakes another, so that no wake-up is lost. Kept ones are the last.

    Kept processors try users of whom nothing was measured while all others are busy, but after
    a task that was not ``short`` none for TRIES times as long: so these hold kept processors for
    a small part of the time.
    """

    def __init__(
        self, processors: Sequence[tuple[ProcessorStatus, Wakeup]] = (), short: float = 0.0
    ) -> None:
        self.processors = processors
        self.short = short
        self.listened_until = shared(ctypes.c_double)
        # How many lanes wait that outrank tasks which may yield: one yields to each of them.
        self.outranking = shared(ctypes.c_double)
        self.tries_from = shared(ctypes.c_double)

    def wake_one(self) -> bool:
        """Wake the first free processor; return whether there was one."""
        for status, wakeup in self.processors:
            if status.is_free:
                status.rung = True
                wakeup.wake()
                return True
        return False

    def drain(self, draining: bool) -> None:
        """Have all processors take no more tasks, or look for tasks again."""
        for status, wakeup in self.processors:
            if status.draining != draining:
                status.draining = draining
                # One that looked in vain may have missed tasks meanwhile.
                status.rung = status.rung or not draining
                wakeup.wake()

    def call(self, holder: int) -> None:
        """Make the processor with this holder check the leases that it holds."""
        for status, _wakeup in self.processors:
            if status.holder == holder:
                status.called = True

    def has_free(self) -> bool:
        return any(status.is_free for status, _wakeup in self.processors)

    def has_free_for_all(self) -> bool:
        return any(status.is_free and not status.kept for status, _wakeup in self.processors)

    def may_yield(self, began_by: float) -> list[TaskStatus]:
        """Return the tasks that may yield and began by this time: themselves, to be written to."""
        tasks = [task for status, _wakeup in self.processors for task in status._task_statuses]
        return [one for one in tasks if one.task_id and one.has_steps and one.since <= began_by]

    def is_outranked(self, status: TaskStatus) -> bool:
        """Return whether a task is to yield now; of the lanes before it one more is served then."""
        if not status.outranked or self.outranking.value <= 0 or self.has_free_for_all():
            return False
        self.outranking.value -= 1
        return True

    def kept_costs(self) -> Costs:
        """Return between which expected costs the tasks are that kept processors take."""
        busy = all(status.kept or status.tasks for status, _wakeup in self.processors)
        tries = busy and time.monotonic() >= self.tries_from.value
        return -self.short if tries else 0.0, self.short

    def free_costs(self) -> Costs | None:
        """Return the same of the processors that are free; None where one takes any task."""
        is_kept = [status.kept for status, _wakeup in self.processors if status.is_free]
        return self.kept_costs() if is_kept and all(is_kept) else None

    def tried(self, seconds: float) -> None:
        """Note how long a kept processor has run a task of a user that was not measured."""
        if seconds >= self.short:
            self.tries_from.value = time.monotonic() + TRIES * seconds

    def is_at_work(self) -> bool:
        """Return whether any task runs."""
        return any(status.tasks for status, _wakeup in self.processors)

    def note_listener(self) -> None:
        """Promise wake-ups for some seconds, during which processors need not poll."""
        self.listened_until.value = time.monotonic() + LISTENED_FOR

    def has_listener(self) -> bool:
        """Return whether a listener sends wake-ups."""
        return time.monotonic() < self.listened_until.value


# Whose tasks the processors of a worker run, and whose take longer than expected.


# In seconds. Tasks that take less can't keep others from a processor.
SLOW = 0.005
# How long a task runs before it is called longer than expected, at the least.
OVERRUN = 0.02


class Crowd:
    """
    How many tasks of which users run in this worker, by their statuses, as of the last look.

    ``running`` counts the tasks of each account that are slow, and ``overrun`` those of the
    accounts of which one was never measured, or has run for twice as long as was expected.
    A worker with one processor does not look: there it is never too late for others.
    """

    def __init__(self, statuses: Sequence[ProcessorStatus], processors: int) -> None:
        self.statuses = statuses
        self.processors = processors if processors > 1 else 0
        self.running: Counter[int] = Counter()
        self.overrun: dict[int, int] = {}
        self.look_at = 0.0 if self.processors else float("inf")

    def look(self, now: float) -> None:
        running: Counter[int] = Counter()
        overrun = set()
        for status in self.statuses:
            for task in status.tasks:
                ran, charge = now - task.since, task.charge
                if not charge or max(ran, charge) >= SLOW:
                    running[task.account] += 1
                if not charge or ran >= max(2 * charge, OVERRUN):
                    overrun.add(task.account)
        self.running = running
        self.overrun = {account: running[account] for account in overrun}
        # Looks at many tasks take no more than a twentieth of the time.
        self.look_at = now + max(SLOW, 20 * (time.monotonic() - now))

    def has_room(self, lease: store.Lease) -> bool:
        """Return whether its user has less than its share of the processors, or may use all."""
        share = lease.share
        return share >= self.processors or not 0 < share <= self.running[account_of(lease)]

    def holds_back(self, lease: store.Lease) -> bool:
        """Return whether a task must wait for room: nobody knows how long it takes."""
        return not self.has_room(lease) and (lease.is_new or account_of(lease) in self.overrun)


def account_of(lease: store.Lease) -> int:
    """Return the lane that is charged for a task: that of its user without limits."""
    return lane_of(lease.queue, lease.user) if lease.lane & 1 else lease.lane


# The state of a database outage in one process.


AGAIN_AFTER = 300.0


class Outage:
    """
    The outage of all links of one process, so that it is logged once and not by each link.

    It is created before the fork, after which each process has its own. All processes share
    ``reconnect_at``: older connections must be replaced. ``errors`` counts those of all links.
    """

    def __init__(self) -> None:
        self.process = "worker"
        self.reconnect_at = shared(ctypes.c_double)
        self.lock = threading.Lock()
        self.links: set[int] = set()
        self.since = 0.0
        self.what: Problem | None = None
        self.logged_at = 0.0
        self.errors = 0

    @property
    def is_on(self) -> bool:
        """Whether an outage was logged and has not ended."""
        return self.since > 0.0

    def reconnect(self) -> None:
        """Make all processes replace their connections, which lead to the wrong server or file."""
        self.reconnect_at.value = time.monotonic()

    def enter(self, link: int) -> None:
        """Count an error of a link, which is failing from now on."""
        with self.lock:
            self.links.add(link)
            self.errors += 1

    def is_news(self, what: Problem, since: float) -> bool:
        """Record an error; return whether to log it: it is new, differs, or has lasted."""
        now = time.monotonic()
        with self.lock:
            same = self.what is not None and self.what.family == what.family
            if self.is_on and same and now - self.logged_at < AGAIN_AFTER:
                return False
            self.since = self.since or since
            self.what, self.logged_at = what, now
            return True

    def leave(self, link: int) -> float | None:
        """Count a link as working; return the seconds of the outage if it ends with this."""
        with self.lock:
            self.links.discard(link)
            if self.links or not self.is_on:
                return None
            if self.what is Problem.READ_ONLY:
                # A link that only reads would not notice that it still uses a standby.
                self.reconnect()
            lasted, self.since, self.what = time.monotonic() - self.since, 0.0, None
            return lasted
