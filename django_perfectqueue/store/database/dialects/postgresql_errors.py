"""What an error of PostgreSQL says, by its code."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, OperationalError

from ..diagnosis import Ailment
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

AILMENTS = {
    "25006": Ailment.READ_ONLY,
    "28000": Ailment.SHUT_OUT,
    "28P01": Ailment.SHUT_OUT,
    "3D000": Ailment.SHUT_OUT,
    "3F000": Ailment.UNMIGRATED,
    "40001": Ailment.LOCKED,  # serialization_failure
    "40P01": Ailment.LOCKED,  # deadlock_detected
    "42501": Ailment.FORBIDDEN,
    "42703": Ailment.UNMIGRATED,
    "42P01": Ailment.UNMIGRATED,
    "53100": Ailment.FULL,
    "53300": Ailment.CROWDED,
    "55P03": Ailment.LOCKED,  # lock_not_available
    "57014": Ailment.CUT_SHORT,
    "57P01": Ailment.STOPPED,
    "57P02": Ailment.STOPPED,
    "57P03": Ailment.STOPPED,
}
# Where another language is set, these are not found, and the error itself decides.
SAID = {
    "starting up": Ailment.STOPPED,
    "shutting down": Ailment.STOPPED,
    "recovery": Ailment.STOPPED,
    "too many": Ailment.CROWDED,
    "connection slots": Ailment.CROWDED,
    **dict.fromkeys((*REFUSED, "not permitted"), Ailment.SHUT_OUT),
}


class PostgreSQLErrors(Dialect):
    def passes(self, error: Exception) -> bool:
        state = state_of(error) or ""
        return state in UNPREPARED or AILMENTS.get(state) == Ailment.LOCKED

    def lost(self, error: Exception) -> bool:
        state = state_of(error)
        if state is not None:
            return state in LOST or state.startswith("08")
        if type(error) not in (DatabaseError, InterfaceError, OperationalError):
            return False
        return not any(words in str(error) for words in REFUSED)

    def ailment(self, error: Exception) -> Ailment:
        if (state := state_of(error)) is not None:
            otherwise = Ailment.UNREACHABLE if self.lost(error) else Ailment.OTHER
            return AILMENTS.get(state, otherwise)
        if said := [ailment for words, ailment in SAID.items() if words in str(error)]:
            return said[0]
        return Ailment.UNREACHABLE if self.lost(error) else Ailment.OTHER


def state_of(error: BaseException) -> str | None:
    """Return the code of an error, as both drivers keep it, if the server sent one."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
