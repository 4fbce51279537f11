"""What a holder may do with tasks besides finishing them, as values, and the verb that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_perfectqueue.models import Attempt, LastEnding, Outcome

from ..database.session import Session
from ..database.transaction import Tries, in_transaction, retry_remembering_commits
from ..lanes.accounts import Accounts
from ..leases.fence import ending_of, lock_leases
from ..notify.ring import notify_workers
from ..values import Failure, Lease
from .close import CANCELLED, EndedAttempt, add_dead_letters, leave, record


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    How an attempt ends that has not finished its task; ``word`` says it.

    The task ends with an ``outcome``, and ``letter`` in its dead letter; with None it goes back
    to its line, due after ``wait`` seconds. ``why`` is kept of the attempt; None keeps no
    record, and the attempt does not count.
    """

    word: str
    outcome: Outcome | None = None
    wait: float = 0.0
    why: Failure | None = None
    letter: Failure = CANCELLED

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
    now: datetime | None = None,
) -> dict[Lease, str]:
    """
    End attempts, and return the word for each; leases that have passed on are not among them.

    ``seconds`` is for how long each of them has run, which is charged; None is for tasks that
    were not begun, and charges nothing. A task that was to go back to its line is cancelled
    where that was requested; the caller announces that.
    """
    # The first try of a call is refused for good: another call has ended the attempt.
    tried = {fence for note in tries for fence in note}
    tries.append([lease.fence for lease in leases])
    with in_transaction(using) as db:
        found = lock_leases(db, leases)
        words = {
            lease: "cancelled" if cancel and not ending.outcome else ending.word
            for lease, (cancel, _charged) in found.items()
        }
        write(db, words, ending, worker=worker, seconds=seconds, now=now)
        accounts = Accounts(now)
        for lease, (_cancel, charged) in found.items():
            accounts.end(lease, seconds, charged)
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
    db: Session,
    words: Mapping[Lease, str],
    ending: Ending,
    *,
    worker: str,
    seconds: float | None,
    now: datetime | None,
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
            record(db, attempt, kind, ending.why, now=now)
    if ending.outcome:
        add_dead_letters(db, list(ended.values()), ending.outcome, ending.letter, now=now)
        return
    stopped = [one for lease, one in ended.items() if words[lease] == "cancelled"]
    add_dead_letters(db, stopped, Outcome.CANCELLED, CANCELLED, now=now)
    back = [lease.task_id for lease, word in words.items() if word != "cancelled"]
    leave(db, back, LastEnding[ending.word.upper()], wait=ending.wait, now=now)
