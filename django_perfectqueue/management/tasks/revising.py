"""Commands that change tasks that nobody holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from django.utils.translation import gettext as _

from django_perfectqueue.bulk.selection import ALLOWED

from .bulk import SelectingCommand


class RevisingCommand(SelectingCommand):
    """A command that takes keys; what is chosen by filters a task of the queue does."""

    statuses: ClassVar[Sequence[str]] = ALLOWED["edit"]
    choices = ("all", "type", "user", "group", "tag")

    def all_help(self) -> str:
        return _("Every task that waits or has failed, or only those with --status.")

    def status_help(self) -> str:
        return _("%s (any of these).") % ", ".join(self.statuses)

    def sign(self, keys: Iterable[str], word: str) -> None:
        """Do nothing: the store has recorded it with the change."""
