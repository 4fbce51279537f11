"""What a holder may do with a task besides finishing it: retry, release, fail, cancel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypedDict

from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import Attempt, LastEnding, Outcome

from ..database.session import Session
from ..database.transaction import Tries, in_transaction, retry_remembering_commits
from ..lanes.accounts import Accounts
from ..leases.fence import ending_of, hold, hold_all, outcome_of
from ..notify.ring import ring
from ..values import Failure, Lease
from .close import CANCELLED, MOST_COUNTED, EndedAttempt, bury, leave, record

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

P = ParamSpec("P")
Settles = Callable[Concatenate[Lease, P], str]


def settles(*words: str) -> Callable[[Settles[P]], Settles[P]]:
    """
    Repeat a verb that ends an attempt; ``words`` are those that it may return.

    A repetition is refused where the commit before it came through and its answer was
    lost: the word is then read from what that commit has written. The first try of a call
    is refused for good: another call has ended the attempt.
    """

    def decorate(verb: Settles[P]) -> Settles[P]:
        @retry_remembering_commits
        @functools.wraps(verb)
        def settle(tries: Tries, lease: Lease, /, *args: P.args, **kwargs: P.kwargs) -> str:
            is_first = not tries.doubtful
            tries.commits(lease.token)
            try:
                return verb(lease, *args, **kwargs)
            except PreemptedError:
                using, worker = str(kwargs["using"]), str(kwargs.get("worker", ""))
                if is_first or (word := outcome_of(lease, using=using, worker=worker)) not in words:
                    raise
                return word

        return settle

    return decorate


class Attempted(TypedDict, total=False):
    """For how many seconds an attempt ran, where, and when it ended, if that is given."""

    seconds: Required[float]
    using: Required[str]
    worker: str
    now: datetime | None


@dataclass(slots=True)
class HeldAttempt:
    """
    An attempt whose ticket is locked, and which holds its task.

    ``wait`` is for how many seconds the task has been put off, if it was.
    """

    db: Session
    held: EndedAttempt
    cancel_requested: bool
    now: datetime | None
    wait: float | None = None

    def record(self, ending: Attempt.Ending, why: Failure) -> None:
        record(self.db, self.held, ending, why, now=self.now)

    def close(self, outcome: Outcome, why: Failure) -> str:
        held = self.held
        if outcome == Outcome.FAILED:
            held = replace(held, errors=min(held.errors + 1, MOST_COUNTED))
        bury(self.db, [held], outcome, why, now=self.now)
        return outcome.value

    def put_off(self, ending: LastEnding, wait: float) -> str:
        """Put the task back in its line, or cancel it where that was requested."""
        if self.cancel_requested:
            return self.close(Outcome.CANCELLED, CANCELLED)
        leave(self.db, [self.held.task_id], ending, wait=wait, now=self.now)
        self.wait = wait
        return ending.name.lower()


@contextmanager
def held_by(
    lease: Lease, *, seconds: float, using: str, worker: str = "", now: datetime | None = None
) -> Iterator[HeldAttempt]:
    """
    Open a transaction that ends an attempt, and charge its lane for the seconds that it took;
    notify the workers where its task was put off.

    Raise PreemptedError, before anything is written, when the lease has passed on.
    """
    with in_transaction(using) as db:
        cancel, charged = hold(db, lease)
        held = EndedAttempt.of(lease, worker=worker, seconds=seconds)
        attempt = HeldAttempt(db, held, cancel, now)
        yield attempt
        accounts = Accounts(now)
        accounts.end(lease, seconds, charged)
        accounts.write(db)
    if attempt.wait is not None:
        ring(lease.queue, using=using, delay=attempt.wait)


@settles("retried", "cancelled")
def retry(lease: Lease, *, wait: float, why: Failure, **of: Unpack[Attempted]) -> str:
    """
    Put a task back, to be tried again after so many seconds, and count the error.

    Return "retried", or "cancelled" where that was requested. Raise PreemptedError, and write
    nothing, when the lease has passed on.
    """
    with held_by(lease, **of) as attempt:
        attempt.record(Attempt.Ending.RETRIED, why)
        return attempt.put_off(LastEnding.RETRIED, wait)


@settles("failed")
def fail(lease: Lease, *, why: Failure, **of: Unpack[Attempted]) -> str:
    """
    End a task as failed, to be kept until someone acts; return "failed".

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with held_by(lease, **of) as attempt:
        attempt.record(Attempt.Ending.FAILED, why)
        return attempt.close(Outcome.FAILED, why)


@settles("cancelled")
def cancel(
    lease: Lease,
    *,
    why: Failure = CANCELLED,
    grave: Failure | None = None,
    **of: Unpack[Attempted],
) -> str:
    """
    End a running task as cancelled; return "cancelled".

    ``why`` is kept of the attempt, ``grave`` of the task, which by default is the same. Raise
    PreemptedError, and write nothing, when the lease has passed on.
    """
    with held_by(lease, **of) as attempt:
        attempt.record(Attempt.Ending.CANCELLED, why)
        return attempt.close(Outcome.CANCELLED, grave or why)


@settles("snoozed", "cancelled")
def snooze(lease: Lease, *, wait: float, **of: Unpack[Attempted]) -> str:
    """
    Put a task off for so many seconds; it counts as no attempt, but its lane is charged.

    Return "snoozed", or "cancelled" where that was requested. Raise PreemptedError, and write
    nothing, when the lease has passed on.
    """
    with held_by(lease, **of) as attempt:
        return attempt.put_off(LastEnding.SNOOZED, wait)


class Released(NamedTuple):
    """
    What did not simply go back to its line.

    Refused are leases that had passed on, cancelled those whose tasks were to be cancelled.
    """

    refused: list[Lease]
    cancelled: list[Lease]


@retry_remembering_commits
def release(
    tries: Tries,
    leases: Sequence[Lease],
    *,
    using: str,
    delay: float = 0.0,
    seconds: float | None = None,
    worker: str = "",
    now: datetime | None = None,
) -> Released:
    """
    Give tasks back, to be taken again after so many seconds; this counts as no attempt.

    ``seconds`` is for how long they have run, which is charged; None is for tasks that were
    not begun, and charges nothing. One whose cancellation was requested is cancelled; the
    caller announces that.
    """
    is_first = not tries.doubtful
    tries.commits(None)
    with in_transaction(using) as db:
        accounts = Accounts(now)
        found = hold_all(db, leases)
        cancelled = [lease for lease, (cancel, _charged) in found.items() if cancel]
        ids = [lease.task_id for lease, (cancel, _charged) in found.items() if not cancel]
        leave(db, ids, LastEnding.RELEASED, wait=delay, now=now)
        for lease in cancelled:
            held = EndedAttempt.of(lease, worker=worker, seconds=seconds)
            bury(db, [held], Outcome.CANCELLED, CANCELLED, now=now)
        for lease, (_cancel, charged) in found.items():
            accounts.end(lease, seconds, charged)
        accounts.write(db)
        refused = []
        for lease in leases:
            # As in settles(): what a try before this one has released is not refused.
            known = is_first or lease in found
            word = "" if known else ending_of(db, lease, worker)
            if word == Outcome.CANCELLED:
                cancelled.append(lease)
            elif lease not in found and word != "released":
                refused.append(lease)
    for queue in {lease.queue for lease in found}:
        ring(queue, using=using, delay=delay)
    return Released(refused, cancelled)
