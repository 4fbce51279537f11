"""What goes wrong in a run, a family of faults a file."""

from . import clocks, database, network, processes, restarts
from .base import FAULTS, Fault, for_database

__all__ = [
    "FAULTS",
    "Fault",
    "clocks",
    "database",
    "for_database",
    "network",
    "processes",
    "restarts",
]
