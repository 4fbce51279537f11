"""Commands that change tasks that nobody holds."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext_lazy

from .bulk import SelectingCommand


class RevisingCommand(SelectingCommand):
    """A command that takes keys; what is chosen by filters a task of the queue does."""

    all_help = gettext_lazy("Every task that waits or has failed, or only those with --status.")

    def sign(self, keys: Iterable[str], word: str) -> None:
        """Do nothing: the store has recorded it with the change."""
