"""What a processor has in hand and has yet to write: leases, completions, journal, usage."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from django.db import Error

from django_perfectqueue import store
from django_perfectqueue.queue import AcquiredTask, note_of
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.usage import MOST_ROWS, all_types_key, type_key
from django_perfectqueue.store.values import Note

from .attempt.surroundings import AttemptEnd, Running
from .shared.status import SLOW, Crowd, account_of


class Hand:
    """
    The batch of leases that wait to run, and the running attempts in their places; for any
    thread. The lock guards each change, and each look at both.

    Those in ``releasing`` are not to run here, but their release has no answer yet.
    ``give_way`` is called where nothing of the batch may begin before the tasks of others.
    """

    def __init__(self, places: int, crowd: Crowd, give_way: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.places = places
        self.crowd = crowd
        self.give_way = give_way
        self.batch: deque[store.Lease] = deque()
        self.releasing: list[store.Lease] = []
        self.going: list[Running | None] = [None] * places
        self.free = list(reversed(range(places)))

    def running(self) -> list[Running]:
        return [one for one in self.going if one is not None]

    def count(self) -> int:
        """Return how many tasks run or wait to run; one that just begins counts once."""
        with self.lock:
            return self.places - len(self.free) + len(self.batch)

    def leases(self) -> list[store.Lease]:
        """Return the leases of the running attempts and of the batch."""
        # Under the lock: one that begins meanwhile would be seen neither here nor there.
        with self.lock:
            running = [one.task.lease for one in self.running() if not one.task.settled]
            return running + list(self.batch)

    def attempt(self, lease: store.Lease) -> Running | None:
        """Return the attempt that runs under a lease, if it has begun."""
        return next((one for one in self.running() if one.task.lease.fence == lease.fence), None)

    def next(self, now: float) -> store.Lease | None:
        """
        Take the lease to run next out of the batch; None where nothing may begin. The caller has
        the lock.
        """
        crowd = self.crowd
        if now >= crowd.look_at:
            crowd.look(now)
        for _lease in range(len(self.batch)):
            lease = self.batch.popleft()
            if crowd.running or lease.charge >= SLOW or lease.is_new:
                if (found := self.with_room(lease)) is None:
                    return None
                lease = found
            if self.places == 1 or not self.runs(lease.task_id):
                return lease
            # An earlier attempt of this task lost its lease, but its handler still runs.
            self.batch.append(lease)
        return None

    def with_room(self, lease: store.Lease) -> store.Lease | None:
        """
        Return this lease, or the next one of a user with less than its share of processors.

        Where there is none, this one begins if it is known how long its tasks take; if not, the
        batch is to be given back.
        """
        if not self.crowd.has_room(lease):
            if other := next(filter(self.crowd.has_room, self.batch), None):
                self.batch.remove(other)
                self.batch.appendleft(lease)
                lease = other
            elif self.crowd.holds_back(lease):
                self.batch.appendleft(lease)
                self.give_way()
                return None
        if lease.share and (lease.is_new or lease.charge >= SLOW):
            # It counts until the next look, as one that the look would count.
            self.crowd.running[account_of(lease)] += 1
        return lease

    def runs(self, task_id: int) -> bool:
        return any(one is not None and one.task.lease.task_id == task_id for one in self.going)

    def add(self, leases: list[store.Lease]) -> None:
        with self.lock:
            self.batch.extend(leases)

    def drop(self, lease: store.Lease) -> bool:
        """Take a lease out of the batch; return False when its task is running already."""
        with self.lock:
            if lease not in self.batch:
                return False
            self.batch.remove(lease)
            return True

    def lay_aside(self) -> list[store.Lease]:
        """Take all out of the batch to be released; return all whose release has no answer."""
        with self.lock:
            self.releasing += self.batch
            self.batch.clear()
            return list(self.releasing)


# Buffer of completions that are not written yet.


LATE = 0.05
MOST_CHARACTERS = 1_000_000

OnWritten = Callable[[Sequence[AttemptEnd]], None]


class Completions:
    """
    Completions that one transaction writes together; they are late ``after`` seconds.

    One thread writes them. After an error the batch goes first the next time. Writing a
    completion twice does no harm.
    """

    def __init__(self, on_written: OnWritten, *, after: float = LATE) -> None:
        self.on_written = on_written
        self.after = after
        self.waiting: deque[AttemptEnd] = deque()
        self.being_written: list[AttemptEnd] = []
        self.characters = 0

    def put(self, ending: AttemptEnd, completion: store.Completion) -> None:
        self.waiting.append(ending)
        if completion.result is not None:
            self.characters += len(completion.result)

    def is_late(self, now: float) -> bool:
        """Return whether to write them without an acquire: the oldest waits, or they are large."""
        late_at = self.late_at()
        return self.characters >= MOST_CHARACTERS or (late_at is not None and now >= late_at)

    def late_at(self) -> float | None:
        """Return when the oldest is late, by the monotonic clock."""
        try:
            oldest = self.waiting[0].completion
        except IndexError:
            return None
        return None if oldest is None else oldest.ended + self.after

    def fences(self) -> set[tuple[int, int]]:
        """Return the fences of the leases of all unwritten completions."""
        return {ending.task.lease.fence for ending in (*self.being_written, *self.waiting)}

    @contextmanager
    def batch(self) -> Iterator[tuple[list[store.Completion], list[store.Completion]]]:
        """
        Hand all completions to a transaction, which adds those that it refuses to the second
        list; keep them when it raises.
        """
        endings, refused = self.take(), list[store.Completion]()
        try:
            yield [done.completion for done in endings if done.completion is not None], refused
        except BaseException:
            self.waiting.extendleft(reversed(endings))
            raise
        finally:
            self.being_written = []
        if endings:
            for ending in endings:
                if refused and ending.completion in refused:
                    ending.word = "preempted"
                else:
                    ending.task.settled = ending.word
            self.on_written(endings)

    def take(self) -> list[AttemptEnd]:
        taken = self.being_written = []
        while self.waiting:
            # Append before popleft: who begins a task looks at both, and must miss none.
            taken.append(self.waiting[0])
            self.waiting.popleft()
        self.characters = 0
        return taken


# Buffer of progress and log lines that are not written yet.


YOUNG = 0.5
MOST = 1_000
SHORTEST, LONGEST = 1.0, 60.0


class JournalBuffer:
    """
    Writes the progress and log lines of all tasks of a processor together.

    A running task is written at most once an ``interval``, and once more at its end. One
    thread writes. A failed write is retried with exponential backoff. Notes of ended tasks
    are limited in number; the oldest are dropped.
    """

    def __init__(
        self, running: Callable[[], list[Running]], *, using: str, interval: float
    ) -> None:
        self.running = running
        self.using = using
        self.interval = interval
        self.left: deque[Note] = deque(maxlen=MOST)
        self.left_at = 0.0
        self.next_look = 0.0
        self.not_before = 0.0
        self.failures = 0

    def keep(self, task: AcquiredTask) -> None:
        """Keep the last note of an attempt that has ended."""
        if (note := note_of(task)) is not None:
            if not self.left:
                self.left_at = time.monotonic()
            self.left.append(note)

    def is_due(self, now: float) -> bool:
        """Return whether a note of a running or an ended task is due."""
        if now < self.not_before:
            return False
        if self.left and now >= self.left_at + LATE:
            return True
        return now >= self.next_look and any(has_news(one.task, now) for one in self.running())

    def hurry(self) -> None:
        """Skip the backoff for the last write."""
        self.not_before = 0.0

    def write(self) -> None:
        """Write all due notes in one statement, unless in a backoff; raise a database error."""
        if time.monotonic() >= self.not_before and (notes := self.take()):
            self.send(notes)

    def take(self) -> list[Note]:
        """Take the notes of ended tasks and the changed ones of running tasks; the last of each."""
        now = time.monotonic()
        notes = [self.left.popleft() for _note in range(len(self.left))]
        if now >= self.next_look:
            changed = [note_of(one.task) for one in self.running() if has_news(one.task, now)]
            notes += [note for note in changed if note is not None]
            self.next_look = now + self.interval
        return list({(note.task_id, note.attempt): note for note in notes}.values())

    def send(self, notes: list[Note]) -> None:
        try:
            store.records.write_journal(notes, using=self.using)
        except Error as error:
            self.failures += 1
            pause = min(LONGEST, SHORTEST * 2.0 ** min(self.failures, 10))
            self.not_before = time.monotonic() + pause
            if store.database.problem_of(error, using=self.using).passes:
                self.left.extendleft(reversed(notes))
            raise
        self.failures = 0


def has_news(task: AcquiredTask, now: float) -> bool:
    """Return whether a running task has a changed note and is not a short one."""
    notes = task.notes
    return notes is not None and notes.changed and now - task.started >= YOUNG


# Buffer of processor time, waiting times and endings that are not written yet.


INTERVAL = 10.0
OVERDUE = 2.0
MOST_ENDED = 1_000


class UsageBuffer:
    """
    The processor time of each user, how long the user's tasks waited, and how they ended;
    and the same of each type.

    It is written every ten seconds, for running tasks as well. A failed write is lost and
    never counted twice, and does not affect tasks. ``ahead`` is by how much the server's
    clock is ahead of this host's, 0 until it was asked.
    """

    def __init__(self, *, using: str, kept: bool) -> None:
        self.using = using
        self.kept = kept
        self.tallies: defaultdict[UsageKey, Tally] = defaultdict(Tally)
        self.ended: list[tuple[str, str, str, list[float], float, float | None, float]] = []
        self.words: list[tuple[str, str, str, str]] = []
        self.current: dict[int, AcquiredTask] = {}
        self.counted_until: dict[int, float] = {}
        self.ahead = 0.0
        self.lock = threading.Lock()
        self.next_write = time.monotonic() + INTERVAL

    def lacks_clock(self) -> bool:
        """Return whether ask_time() must be called before more tasks run."""
        return not self.ahead and bool(self.ended)

    def ask_time(self) -> datetime:
        """Return the server's time; store by how much it is ahead of this host's clock."""
        before = time.monotonic()
        moment = store.records.clock(using=self.using)
        self.ahead = moment.timestamp() - (before + time.monotonic()) / 2
        return moment

    def end(self, task: AcquiredTask, ended: float) -> None:
        """Count the rest of a task's time at its end."""
        with self.lock:
            del self.current[id(task)]
            counted = self.counted_until.pop(id(task), None)
            if not self.kept:
                return
            lease, since, started, waits = task.lease, counted, task.started, list[float]()
            # It may be due before it is submitted. One that goes on has waited before it began.
            due = lease.run_at if lease.run_at > lease.created_at else lease.created_at
            waited = None if lease.goes_on else started - due.timestamp()
            if since is None:
                since, waits = started, [waited] if waited is not None else waits
            names = lease.queue, lease.user, lease.type
            self.ended.append((*names, waits, ended - since, waited, ended - started))
            if len(self.ended) >= MOST_ENDED and self.ahead:
                self.count_ended()

    def count(self, endings: Sequence[AttemptEnd]) -> None:
        """Count how attempts ended, once that is written."""
        if not self.kept:
            return
        words = [
            (lease.queue, lease.user, lease.type, ending.word)
            for ending in endings
            for lease in (ending.task.lease,)
        ]
        with self.lock:
            self.words += words
            if len(self.words) >= MOST_ENDED and self.ahead:
                self.count_ended()

    def count_ended(self) -> None:
        """Add the ended tasks to the tallies, those of a user or a type together."""
        users = defaultdict(list)
        types = defaultdict(list)
        for queue, user, type_, waits, seconds, waited, lasted in self.ended:
            users[queue, user].append((waits, seconds, lasted))
            types[queue, type_].append((waited, lasted))
        self.ended.clear()
        for (queue, user), some in users.items():
            tally = self.tally(queue, user)
            tally.seconds += sum([seconds for _waits, seconds, _lasted in some if seconds > 0.0])
            tally.wait(*[wait + self.ahead for waits, _seconds, _lasted in some for wait in waits])
            tally.run([lasted for _waits, _seconds, lasted in some])
        for (queue, type_), pairs in types.items():
            for key in (all_types_key(queue), type_key(queue, type_)):
                tally = self.tallies[key]
                waits = [waited + self.ahead for waited, _ in pairs if waited is not None]
                tally.wait(*waits)
                tally.run([lasted for _waited, lasted in pairs])
        store.records.count_endings(self.tallies, self.words)
        self.words.clear()

    def tally(self, queue: str, user: str) -> Tally:
        return self.tallies[UsageKey(queue, False, user)]

    def is_due(self, now: float) -> bool:
        return self.kept and now >= self.next_write

    def is_overdue(self, now: float) -> bool:
        """Return whether it is late although tasks run."""
        return self.is_due(now - OVERDUE) and bool(self.current)

    def write(self) -> None:
        """
        Write the tallies; of more than 1,000 users those with the least time as others.

        Raise a database error. The batch is then lost, unless reading the clock failed.
        """
        self.next_write = time.monotonic() + INTERVAL
        if self.kept and (self.tallies or self.ended or self.words or self.current):
            moment = self.ask_time()
            store.records.add_usage(self.take(), using=self.using, at=moment)

    def take(self) -> dict[UsageKey, Tally]:
        with self.lock:
            self.count_current()
            taken = store.records.folded(self.tallies, MOST_ROWS)
            self.tallies.clear()
            return taken

    def count_current(self) -> None:
        """Count ended tasks, and the time of running tasks so far."""
        self.count_ended()
        now = time.monotonic()
        for task in list(self.current.values()):
            tally = self.tally(task.lease.queue, task.lease.user)
            if id(task) not in self.counted_until and not task.lease.goes_on:
                due = max(task.lease.run_at, task.lease.created_at)
                tally.wait(task.started + self.ahead - due.timestamp())
            tally.seconds += max(0.0, now - self.counted_until.get(id(task), task.started))
            self.counted_until[id(task)] = now
