"""What an error of MySQL or MariaDB says, by its number."""

from __future__ import annotations

from django.db import IntegrityError

from ..diagnosis import Problem
from .base import Dialect

DUPLICATE_ENTRY = 1062

LOST = {
    0,  # the driver's own, for a connection that it has closed
    1040,  # too many connections
    1047,  # Galera: the node is not ready
    1053,  # the server shuts down
    1077,
    1079,
    1080,
    1152,  # aborted
    1158,  # network errors, as the server sees them
    1159,
    1160,
    1161,
    1180,  # error during COMMIT: Galera has lost the node
    1184,
    1290,  # read-only: the server has become a replica
    1792,
    1836,
    1927,  # MariaDB: killed
    2002,  # can't connect
    2003,
    2005,
    2006,  # gone away
    2012,
    2013,  # lost
    2055,
    3169,  # MySQL: killed
    4031,  # idle for too long
}

PROBLEMS = {
    **dict.fromkeys((1040, 1203, 1226), Problem.CROWDED),
    **dict.fromkeys((1053, 1077, 1079, 1080, 1927), Problem.STOPPED),
    **dict.fromkeys((1290, 1792, 1836), Problem.READ_ONLY),
    **dict.fromkeys((3, 1021, 1114), Problem.FULL),
    **dict.fromkeys((1044, 1045, 1049, 1698, 3118, 4151), Problem.SHUT_OUT),
    **dict.fromkeys((1054, 1146), Problem.UNMIGRATED),
    **dict.fromkeys((1142, 1143, 1227, 1370), Problem.FORBIDDEN),
    **dict.fromkeys((1020, 1205, 1213, 3101), Problem.LOCKED),
    **dict.fromkeys((1317, 1969, 3024), Problem.CUT_SHORT),
}


class MySQLErrors(Dialect):
    def lost(self, error: Exception) -> bool:
        return number_of(error) in LOST

    def problem_of(self, error: Exception) -> Problem:
        otherwise = Problem.UNREACHABLE if self.lost(error) else Problem.OTHER
        return PROBLEMS.get(number_of(error) or 0, otherwise)


def is_taken(error: BaseException) -> bool:
    """Return whether an error says that a key is taken."""
    return isinstance(error, IntegrityError) and number_of(error) == DUPLICATE_ENTRY


def number_of(error: Exception) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None
