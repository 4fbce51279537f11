"""What a handler raises to say what becomes of its task: retry, snooze, discard."""

from __future__ import annotations

from datetime import timedelta

from .exceptions import InvalidTaskError
from .lib.checks import span
from .lib.durations import seconds_of

SHORTEST_WAIT = 1.0


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
    stored as the attempt's. Raise InvalidTaskError where ``after`` is no length of time.
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

    Raise InvalidTaskError, which names ``who`` waits, where it is no length of time.
    """
    if isinstance(after, timedelta):
        after = after.total_seconds()
    if isinstance(after, int | float) and after < 0:
        return 0.0
    name = who if isinstance(who, str) else type(who).__name__
    return seconds_of(span().require(f"The wait of {name}", after, InvalidTaskError)) or 0.0
