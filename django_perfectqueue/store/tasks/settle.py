"""What a holder may do with tasks besides finishing them, and write while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from django.db import Error, connections, transaction

from django_perfectqueue.models import Attempt, LastEnding, Outcome

from ..database.dialects import dialect_of
from ..database.transaction import (
    Session,
    Tries,
    in_transaction,
    retry_remembering_commits,
    retry_transaction,
)
from ..lanes.accounts import Accounts
from ..leases import RENEW, ending_of, lock_leases, locked_lease
from ..notify.ring import notify_workers
from ..values import Failure, Lease, Now, Wait
from .close import CANCELLED, EndedAttempt, add_dead_letters, leave, record
from .steps import open_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    How an attempt ends that has not finished its task; ``word`` says it.

    The task ends with an ``outcome``, and ``letter`` in its dead letter; with None it goes back
    to its line, due after ``wait`` seconds. ``why`` is kept of the attempt; None keeps no
    record, and the attempt does not count. With ``opens`` the task waits for that, outside of its
    line.
    """

    word: str
    outcome: Outcome | None = None
    wait: float = 0.0
    why: Failure | None = None
    letter: Failure = CANCELLED
    opens: Wait | None = None

    @classmethod
    def retry(cls, wait: float, why: Failure) -> Ending:
        """Count an error, and try the task again after so many seconds."""
        return cls(word="retried", wait=wait, why=why)

    @classmethod
    def snooze(cls, wait: float) -> Ending:
        """Put the task off for so many seconds."""
        return cls(word="snoozed", wait=wait)

    @classmethod
    def release(cls, wait: float = 0.0) -> Ending:
        """Give the task back, to be taken again after so many seconds; it keeps its place."""
        return cls(word="released", wait=wait)

    @classmethod
    def give_way(cls) -> Ending:
        """Give the task back between two steps, as other lanes come first."""
        return cls(word="yielded")

    @classmethod
    def fail(cls, why: Failure) -> Ending:
        """End the task as failed, to be kept until someone acts."""
        return cls(word="failed", outcome=Outcome.FAILED, why=why, letter=why)

    @classmethod
    def cancel(cls, why: Failure = CANCELLED) -> Ending:
        """End the task as cancelled."""
        return cls(word="cancelled", outcome=Outcome.CANCELLED, why=why, letter=why)

    @classmethod
    def discard(cls, why: Failure, letter: Failure) -> Ending:
        """End the task as cancelled, though nobody has asked for that."""
        return cls(word="discarded", outcome=Outcome.CANCELLED, why=why, letter=letter)

    @property
    def stored(self) -> str:
        """The word that the rows of a task say."""
        return self.outcome.value if self.outcome else self.word


@retry_remembering_commits
def settle(
    tries: Tries,
    leases: Sequence[Lease],
    ending: Ending,
    *,
    using: str,
    seconds: float | None = None,
    worker: str = "",
    now: Now = None,
) -> dict[Lease, str]:
    """
    End attempts, and return the word for each; leases that have passed on are not among them.

    ``seconds`` is for how long each of them has run, which is charged. None and 0 are for tasks
    that were not begun: these charge nothing, and 0 is kept as a start, by which ending_of()
    knows who has ended them. A task that was to go back to its line is cancelled where that was
    requested; the caller announces that.
    """
    # The first try of a call is refused for good: another call has ended the attempt.
    tried = {fence for note in tries for fence in note}
    tries.append([lease.fence for lease in leases])
    with in_transaction(using, now=now) as db:
        found = lock_leases(db, leases)
        words = {
            lease: "cancelled" if cancel and not ending.outcome else ending.word
            for lease, (cancel, _charged) in found.items()
        }
        write(db, words, ending, worker=worker, seconds=seconds)
        accounts = Accounts()
        for lease, (_cancel, charged) in found.items():
            accounts.end(lease, seconds or None, charged)
            if words[lease] == "yielded":
                accounts.yielded.add(lease.lane)
        accounts.write(db)
        # The commit of a try before this one may have come through without an answer.
        missed = [lease for lease in leases if lease not in found and lease.fence in tried]
        for lease in missed:
            word = ending_of(db, lease, worker)
            if word == ending.stored:
                words[lease] = ending.word
            elif word == "cancelled" and not ending.outcome:
                words[lease] = word
    if not ending.outcome:
        for queue in {lease.queue for lease in found}:
            notify_workers(queue, using=using, delay=ending.wait)
    return words


def write(
    db: Session, words: Mapping[Lease, str], ending: Ending, *, worker: str, seconds: float | None
) -> None:
    """Write the rows of attempts that end, each with its word."""
    more = int(ending.outcome == Outcome.FAILED)
    ended = {
        lease: EndedAttempt.of(lease, worker=worker, seconds=seconds, errors=more)
        for lease in words
    }
    if ending.why:
        kind = Attempt.Ending(ending.stored)
        for attempt in ended.values():
            record(db, attempt, kind, ending.why)
    if ending.outcome:
        add_dead_letters(db, list(ended.values()), ending.outcome, ending.letter)
        return
    stopped = [one for lease, one in ended.items() if words[lease] == "cancelled"]
    add_dead_letters(db, stopped, Outcome.CANCELLED, CANCELLED)
    back = [lease for lease, word in words.items() if word != "cancelled"]
    last, ids = LastEnding[ending.word.upper()], [lease.task_id for lease in back]
    if (wait := ending.opens) is None:
        leave(db, ids, last, wait=ending.wait)
        return
    leave(db, ids, last, wait=0.0, opens=wait)
    for lease in back:
        open_wait(db, lease, wait)


# A transaction that a handler's writes share with the end of its task.


class AtomicTransaction:
    """
    The transaction begins before the handler, and is committed or rolled back once after it.

    While the handler runs, the server's idle-in-transaction timeout is raised to the
    handler's time limit. ``hasten()`` restores it for the closing statements, which take
    locks that others need. Inside of a transaction that is open already it is a savepoint.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.dialect = dialect_of(using)
        self.connection = connections[using]
        self.open: ExitStack | None = None
        self.closing = ExitStack()
        self.wire: object = None
        self.is_outermost = True
        self.depth = 0
        self.as_before: str | None = None
        self.hooks: list[Any] = []

    @property
    def is_alone(self) -> bool:
        """Whether it keeps all others from writing to this database."""
        return self.open is not None and self.dialect.one_writer

    def begin(self, *, still: float | None) -> None:
        """Open it; it may be idle for ``still`` seconds, or with None for ever."""
        self.is_outermost = not self.connection.in_atomic_block
        with ExitStack() as stack:
            stack.enter_context(self.dialect.atomic(self.connection))
            with self.connection.cursor() as cursor:
                self.as_before = self.dialect.set_idle_timeout(cursor, still)
            stack.push(self.closing)
            self.wire = self.connection.connection
            self.depth = len(self.connection.atomic_blocks)
            self.open = stack.pop_all()

    def hasten(self) -> None:
        """Restore the server's idle-in-transaction timeout for the statements that close it."""
        starts = [self.as_before] if self.as_before else []
        self.closing.enter_context(self.dialect.filled(self.connection, starts))

    def check(self) -> None:
        """Raise TransactionManagementError where a block within it is open: no commit would do."""
        if len(self.connection.atomic_blocks) != self.depth:
            raise transaction.TransactionManagementError(
                "An atomic handler has left a transaction open that it had begun."
            )

    def commit(self) -> None:
        """Commit; call_hooks() then calls what was given to on_commit()."""
        assert self.open is not None
        if self.is_outermost:
            self.hooks, self.connection.run_on_commit = self.connection.run_on_commit, []
            if not self.connection.needs_rollback:
                self.dialect.commit_before_disk(self.connection)
        stack, self.open = self.open, None
        stack.close()

    def roll_back(self) -> None:
        """Undo everything, and close the connection where that can't be done."""
        if self.open is not None:
            stack, self.open = self.open, None
            with contextlib.suppress(Error):
                transaction.set_rollback(True, using=self.using)
                stack.close()
        if self.as_before is not None and self.connection.connection is self.wire:
            self.as_before = None
            with contextlib.suppress(Error), self.connection.cursor() as cursor:
                self.dialect.reset_idle_timeout(cursor)

    def abandon(self) -> None:
        """Forget the transaction: the caller closes the connection."""
        # What waits to be sent is not.
        self.connection.needs_rollback = True
        self.closing.close()
        self.open = self.as_before = None

    def call_hooks(self) -> None:
        """Call what was given to on_commit(), after the commit."""
        if self.hooks:
            self.connection.run_on_commit, self.hooks = self.hooks, []
            self.connection.run_and_clear_commit_hooks()

    def was_cut_off(self, error: BaseException) -> bool:
        """Return whether it was rolled back because its connection was lost."""
        gone = self.connection.connection is not self.wire
        return isinstance(error, Error) and gone and self.dialect.lost(error)

    def lost_a_race(self, error: BaseException) -> bool:
        """Return whether it lost against another transaction, and may succeed when repeated."""
        return isinstance(error, Error) and self.dialect.passes(error)


# Write what a handler changes of a held task while it runs: its payload.


UPDATE = 'UPDATE "perfectqueue_task" SET "data" = %(payload)s WHERE "id" = %(task_id)s'


@retry_transaction
def update_payload(
    lease: Lease, payload: str, *, alive_time: float, using: str, now: Now = None
) -> Lease:
    """
    Write a held task's payload, and renew its lease; return the lease as it is then.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with locked_lease(lease, using=using, now=now) as db:
        db.execute(RENEW, after={"until": alive_time}, ids=[lease.task_id], tokens=[lease.token])
        db.execute(UPDATE, {"task_id": lease.task_id, "payload": payload})
    return lease._replace(payload=payload)
