"""What can go wrong, one situation a class; and what a handler may raise to say what is next."""

from __future__ import annotations

from django.db import ProgrammingError
from django.db.transaction import TransactionManagementError


class PerfectQueueError(Exception):
    """The base of every error that this package raises."""


class IdempotentError(Exception):
    """
    Marks an error that a caller may ignore when it repeats a call.

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


class InvalidScheduleError(PerfectQueueError, ValueError):
    """What was given can't be a schedule: its timing, its type or one of its terms."""


class InvalidResultError(InvalidTaskError):
    """
    What a handler or a step has returned can't be stored: the codec can't write it, or it is
    too large.
    """


class PayloadError(TaskError):
    """A stored payload can't be read back."""


class NotFoundError(TaskError):
    """No task has this key in this queue, or no schedule this name."""


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

    Never raised: the class that TaskResult.errors names for such an attempt.
    """


class ExpiredError(TaskError):
    """
    The task's time had passed before it could start.

    Never raised: the class that TaskResult.errors names for such a task.
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


class BatchEndedError(TaskError):
    """A batch has ended or was cancelled: no task can be added to it."""


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
