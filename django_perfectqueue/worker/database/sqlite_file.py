"""The file of a SQLite database, which may be replaced while workers have it open."""

from __future__ import annotations

import os

from django.db import connections


class DatabaseFile:
    """
    Notices that another file has taken the place of the one that is open.

    Who has it open would go on with the old one for ever, and nobody else would see it.
    """

    def __init__(self, using: str) -> None:
        is_file = connections[using].vendor == "sqlite"
        self.name = str(connections[using].settings_dict["NAME"]) if is_file else ""
        self.known = self.identity()

    def was_replaced(self) -> bool:
        """Tell, once, that there is another file than before."""
        before, now = self.known, self.identity()
        self.known = now or before
        return bool(before and now and before != now)

    def identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.name)
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino
