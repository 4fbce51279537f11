"""What may ail a database."""

from __future__ import annotations

from enum import Enum


class Problem(Enum):
    """
    Why a database does not do what it is asked, in words that end a sentence.

    ``passes`` is whether it may be over by itself; else someone has to change something.
    """

    UNREACHABLE = "it can't be reached", True
    STOPPED = "it stops, starts or recovers", True
    CROWDED = "it has no connection to spare", True
    READ_ONLY = "it takes no writes", True
    FULL = "its disk is full", True
    SILENT = "it did not answer within DATABASE_TIMEOUT", True
    LOCKED = "others hold its locks for too long", True
    CUT_SHORT = "it broke a statement off, by a limit of its own or as someone asked", True
    SHUT_OUT = "it lets the worker not in: see its name, user and password in DATABASES", False
    UNMIGRATED = "a table or a column is missing: run manage.py migrate", False
    FORBIDDEN = "its user lacks a right: grant it", False
    OTHER = "it refuses a statement", False

    def __init__(self, words: str, passes: bool) -> None:
        self.words = words
        self.passes = passes

    @property
    def family(self) -> Problem:
        """The kind under which it is logged: a server that goes down raises many errors."""
        gone = (Problem.STOPPED, Problem.SILENT)
        return Problem.UNREACHABLE if self in gone else self
