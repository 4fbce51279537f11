"""What can go wrong, one situation a class; and what a handler may raise to say what is next."""

from __future__ import annotations

from datetime import timedelta

from django.db import ProgrammingError
from django.db.transaction import TransactionManagementError

from .spans import seconds_of

SHORTEST_WAIT = 1.0


class PerfectQueueError(Exception):
    """The base of every error that this package raises."""


class IdempotentError(Exception):
    """
    Marks an error that a caller who repeats itself may ignore.

    What it asked for has been done already.
    """


class ConfigError(PerfectQueueError):
    """A setting, an option or a handler is not as it must be."""


class NotMigratedError(PerfectQueueError, ProgrammingError):
    """
    The database lacks a table or a column of this release: run ``manage.py migrate``.

    It is a ProgrammingError of Django's as well, which is what the database raised.
    """


class TaskError(PerfectQueueError):
    """The base of errors about one task."""


class InvalidTaskError(TaskError, ValueError):
    """What was submitted can't be a task: a bad key, type, time or payload."""


class InvalidResultError(InvalidTaskError):
    """What a handler has returned can't be stored: the codec can't write it, or it is too large."""


class PayloadError(TaskError):
    """A stored payload can't be read back."""


class NotFoundError(TaskError):
    """No task has this key in this queue."""


class AlreadyExistsError(TaskError, IdempotentError):
    """A task with this key is in the queue, or finished and still retained."""


class AlreadyFinishedError(TaskError, IdempotentError):
    """The task has ended: it can't be finished, retried or cancelled again."""


class PreemptedError(TaskError):
    """The lease ran out, and the task now belongs to another processor."""


class CancelRequestedError(TaskError):
    """Someone has asked for this running task to stop."""


class TimeLimitError(TaskError):
    """The attempt has run for longer than its time limit."""


class LostError(TaskError):
    """
    The process that ran the task died, or its lease ran out.

    Never raised: a class for what TaskResult.errors tells of such an attempt.
    """


class ExpiredError(TaskError):
    """
    The task's time had passed before it could start.

    Never raised: a class for what TaskResult.errors tells of such a task.
    """


class TaskFailedError(TaskError):
    """
    The task that was waited for has ended, and has not finished.

    ``status`` is how it ended, ``error`` the class of the error or a word such as "lost",
    and ``message`` what that said.
    """

    def __init__(self, key: str = "", status: str = "", error: str = "", message: str = "") -> None:
        super().__init__(key, status, error, message)
        self.key = key
        self.status = status
        self.error = error
        self.message = message

    def __str__(self) -> str:
        why = ": ".join(part for part in (self.error, self.message) if part)
        return f"Task '{self.key}' is {self.status}" + (f". {why}" if why else ".")


class TaskCancelledError(TaskFailedError):
    """The task that was waited for was cancelled."""


class TaskExpiredError(TaskFailedError):
    """The task that was waited for had expired before it could start."""


class WaitTimeoutError(TaskError, TimeoutError):
    """A task has not ended in the time that was given to wait for it; it goes on."""


class WaitInTransactionError(TaskError, TransactionManagementError):
    """In an open transaction a task can't be waited for: its end might never be seen there."""


class NotSupportedError(TaskError):
    """The task is in a state in which this can't be done."""


class UnknownTypeError(TaskError):
    """No handler is routed for a task of this type."""


class CommandFailedError(TaskError):
    """
    An external program has not done its task, by its exit code or the signal that ended it.

    ``code`` is that exit code, negative for a signal.
    """

    def __init__(self, message: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CommandNotFoundError(TaskError):
    """An external program is not there, or can't be executed."""


class UndefinedDecisionError(PerfectQueueError):
    """A decider has no method for this decision."""


class ProcessStopError(PerfectQueueError):
    """The processor is to stop."""


class GracefulProcessStopError(ProcessStopError):
    """The processor stops once its running task has ended."""


class ImmediateProcessStopError(ProcessStopError):
    """The processor stops now, whatever is running."""


class Verdict(Exception):  # noqa: N818
    """
    What a handler may raise to say what is to become of its task.

    The base of Retry, Snooze and Discard. None of them is an error of the program: they
    are logged in a line, without a traceback.
    """

    reason = ""

    def __str__(self) -> str:
        return str(self.reason)


class Retry(Verdict):
    """
    The task is to be tried again, which counts as an error.

    ``after`` is a timedelta, seconds or a span such as ``"5m30s"``; None is the usual wait.
    When its attempts are spent it fails. With ``raise Retry() from error`` that error is
    told as the attempt's. Raise InvalidTaskError where ``after`` is no length of time.
    """

    after: float | None = None

    def __init__(self, after: timedelta | float | str | None = None, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after = None if after is None else wait_of(self, after)
        self.reason = str(reason)


class Snooze(Verdict):
    """
    The task is put off; this counts as no attempt and as no error.

    It waits for a second at least. Nothing bounds how often, but the task's
    ``expires_at``. Raise InvalidTaskError where ``after`` is no length of time.
    """

    after: float = SHORTEST_WAIT

    def __init__(self, after: timedelta | float | str) -> None:
        super().__init__(after)
        self.after = max(SHORTEST_WAIT, wait_of(self, after))


class Discard(Verdict):
    """
    The task is to end without finishing and without being tried again.

    It is cancelled, with the reason in its dead letter, in the group *discarded*.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


def wait_of(who: object, after: timedelta | float | str) -> float:
    """
    Return the seconds of a wait; what is below 0 has passed, and is 0.

    Raise InvalidTaskError, which tells ``who`` waits, where it is no length of time.
    """
    if isinstance(after, timedelta):
        after = after.total_seconds()
    is_past = isinstance(after, int | float) and after < 0
    seconds = 0.0 if is_past else seconds_of(after)
    if seconds is None:
        name = who if isinstance(who, str) else type(who).__name__
        raise InvalidTaskError(
            f"{name} waits for a timedelta, seconds or a span such as '5m30s', not {after!r}."
        )
    return seconds
