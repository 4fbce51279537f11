"""Pages of a list that may be too long to be counted."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from django.core import paginator
from django.utils.formats import number_format

if TYPE_CHECKING:
    Paginator = paginator.Paginator[object]
else:
    Paginator = paginator.Paginator

COUNTED = 10_000


class AtLeast(int):
    """A number of which only so much was counted: it is shown with a plus."""

    def __str__(self) -> str:
        return f"{number_format(int(self), force_grouping=True)}+"


class BoundedPaginator(Paginator):
    """Counts no further than COUNTED; what lies behind that is for the filters to find."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by().values("pk")[:COUNTED].count())  # type: ignore[attr-defined]

    @property
    def bounded(self) -> bool:
        return self.count >= COUNTED
