"""Indexes of some rows only, on the databases that make use of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement


def without_partial_indexes(found: list[CheckMessage]) -> list[CheckMessage]:
    """Leave out W037: a database without partial indexes gets the whole ones, as intended."""
    return [one for one in found if one.id != "models.W037"]


class PartialIndex(models.Index):
    """
    An index of the rows with a condition, on the databases named by ``on``.

    Others have no partial indexes, or don't see that a query needs no more than one has.
    They get an index of all rows by the columns of ``whole``.
    """

    def __init__(
        self, *expressions: Any, on: Sequence[str], whole: Sequence[str], **kwargs: Any
    ) -> None:
        super().__init__(*expressions, **kwargs)
        self.on = list(on)
        self.whole = list(whole)

    def deconstruct(self) -> tuple[str, Sequence[object], dict[str, object]]:
        path, expressions, kwargs = super().deconstruct()
        return path, expressions, {**kwargs, "on": self.on, "whole": self.whole}

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: object,
    ) -> Statement:
        if schema_editor.connection.vendor in self.on:
            return super().create_sql(model, schema_editor, using, **kwargs)
        whole = models.Index(fields=self.whole, name=self.name)
        return whole.create_sql(model, schema_editor, using, **kwargs)
