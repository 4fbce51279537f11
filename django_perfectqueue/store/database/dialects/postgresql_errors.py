"""What an error of PostgreSQL says, by its code."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, OperationalError

from ..diagnosis import Problem
from .base import Dialect

UNPREPARED = {
    "26000",  # invalid_sql_statement_name: a pooler has changed the server's connection
    "42P05",  # duplicate_prepared_statement: another client has prepared it there
}

# The whole class 08 is lost, too.
LOST = {
    "25006",  # read_only_sql_transaction: the server has become a standby
    "25P03",  # idle_in_transaction_session_timeout
    "40003",  # statement_completion_unknown
    "53300",  # too_many_connections
    "57P01",  # admin_shutdown, and pg_terminate_backend()
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now: it starts, stops or recovers
    "57P05",  # idle_session_timeout
}
# A driver that can't connect gives no code.
REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")

PROBLEMS = {
    "25006": Problem.READ_ONLY,
    "28000": Problem.SHUT_OUT,
    "28P01": Problem.SHUT_OUT,
    "3D000": Problem.SHUT_OUT,
    "3F000": Problem.UNMIGRATED,
    "40001": Problem.LOCKED,  # serialization_failure
    "40P01": Problem.LOCKED,  # deadlock_detected
    "42501": Problem.FORBIDDEN,
    "42703": Problem.UNMIGRATED,
    "42P01": Problem.UNMIGRATED,
    "53100": Problem.FULL,
    "53300": Problem.CROWDED,
    "55P03": Problem.LOCKED,  # lock_not_available
    "57014": Problem.CUT_SHORT,
    "57P01": Problem.STOPPED,
    "57P02": Problem.STOPPED,
    "57P03": Problem.STOPPED,
}
# Where another language is set, these are not found, and the error itself decides.
SAID = {
    "starting up": Problem.STOPPED,
    "shutting down": Problem.STOPPED,
    "recovery": Problem.STOPPED,
    "too many": Problem.CROWDED,
    "connection slots": Problem.CROWDED,
    **dict.fromkeys((*REFUSED, "not permitted"), Problem.SHUT_OUT),
}


class PostgreSQLErrors(Dialect):
    def passes(self, error: Exception) -> bool:
        return state_of(error) in UNPREPARED or super().passes(error)

    def lost(self, error: Exception) -> bool:
        state = state_of(error)
        if state is not None:
            return state in LOST or state.startswith("08")
        if type(error) not in (DatabaseError, InterfaceError, OperationalError):
            return False
        return not any(words in str(error) for words in REFUSED)

    def problem_of(self, error: Exception) -> Problem:
        if (state := state_of(error)) is not None:
            otherwise = Problem.UNREACHABLE if self.lost(error) else Problem.OTHER
            return PROBLEMS.get(state, otherwise)
        if said := [problem for words, problem in SAID.items() if words in str(error)]:
            return said[0]
        return Problem.UNREACHABLE if self.lost(error) else Problem.OTHER


def state_of(error: BaseException) -> str | None:
    """Return the code of an error, as both drivers keep it, if the server sent one."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
