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
    """
    A setting, an option or a handler is not as it must be.

    For example an unknown name in ``PERFECTQUEUE``, a route that leads nowhere, two handlers for
    one type, or a weight of 0.
    """


class NotMigratedError(PerfectQueueError, ProgrammingError):
    """
    The database lacks a table or a column of this release: run ``manage.py migrate``.

    It is a ProgrammingError of Django's as well, which is what the database raised.
    """


class TaskError(PerfectQueueError):
    """The base of errors about one task."""


class InvalidTaskError(TaskError, ValueError):
    """
    What was submitted can't be a task.

    For example a key that is empty or longer than 255 characters, a time without a time zone, or
    data that JSON cannot hold or that are over MAX_PAYLOAD_SIZE. A key, or the name of a batch,
    that cannot be stored is refused where it is looked up, too.
    """


class InvalidScheduleError(PerfectQueueError, ValueError):
    """What was given can't be a schedule: its timing, its type or one of its terms."""


class InvalidResultError(InvalidTaskError):
    """
    What a handler or a step has returned can't be stored: the codec can't write it, or it is
    larger than MAX_RESULT_SIZE. The task fails at once.
    """


class PayloadError(TaskError):
    """
    Stored data can't be read: no codec of CODECS reads them, no key decrypts them, or someone
    changed them. The task fails.
    """


class NotFoundError(TaskError):
    """
    No schedule has this name, or no task this key in this queue: it was never submitted, was
    rolled back, or is purged.
    """


class AlreadyExistsError(TaskError, IdempotentError):
    """
    A task with this key is in the queue, or has ended and is retained; or the task has a signal of
    this name.

    Ignore it in a repeated submit, use ``on_conflict="ignore"`` or ``"replace"``, or choose
    another key.
    """


class AlreadyFinishedError(TaskError, IdempotentError):
    """
    The task has ended: it can't be cancelled, force-finished or settled, nor retried if it is
    finished.
    """


class PreemptedError(TaskError):
    """
    The attempt is no longer current: its lease ran out, someone ended the task, or you let it go.

    The message says where the task stands. Stop working on it; in a handler let the error pass.
    """


class CancelRequestedError(TaskError):
    """
    Someone has asked for this running task to stop.

    Tidy up and let it pass; the task is then cancelled. A handler that catches it and returns has
    finished; one that goes on is ended by force after TASK_KILL_WAIT.
    """


class YieldedError(BaseException):
    """
    The task goes back to its line between two steps, as others come first: let it pass.

    No ``Exception``, so that a handler which catches those of its steps does not catch this.
    """


class SuspendedError(BaseException):
    """
    The task waits for a time or a signal, without a processor: let it pass.

    No ``Exception``, as YieldedError is none.
    """


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
    """
    Waiting in an open transaction is refused: the end of the task might never be visible there.
    So are ``yield_()``, which would undo the transaction, and the waits of a task.

    Wait or yield after the ``atomic`` block; in a TestCase, run the task first.
    """


class BatchEndedError(TaskError):
    """
    A batch has ended or was cancelled: no task can be added to it until one of its tasks is put
    back.
    """


class NotSupportedError(TaskError):
    """Not possible in this status, such as a retry of a running task or its replacement."""


class UnknownTypeError(TaskError):
    """No handler is routed for a task of this type."""


class CommandFailedError(TaskError):
    """
    An external program failed.

    ``code`` is its exit code, negative for a signal. The message has the end of its standard error.
    """

    def __init__(self, message: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CommandNotFoundError(TaskError):
    """An external program is missing or not executable; its task fails at once."""


class UndefinedDecisionError(PerfectQueueError):
    """A decider has no method for this decision."""


class ProcessStopError(PerfectQueueError):
    """
    The base of the two reasons for which a processor stops.

    A handler that raises one has its task released, and its processor is replaced.
    """


class GracefulProcessStopError(ProcessStopError):
    """The processor stops after its running task; by default the handler goes on."""


class ImmediateProcessStopError(ProcessStopError):
    """The processor stops now; by default it is raised in the handler."""
