"""Column types and indexes whose meaning is the same on every database, and rows that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.core.checks import CheckMessage
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.utils.text import capfirst, format_lazy

from django_perfectqueue.lib.durations import EARLIEST, LATEST, LONGEST

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper as Connection
    from django.db.models.sql.compiler import SQLCompiler
    from django.utils.functional import _StrPromise as StrPromise

    AnyField = models.Field[object, object]
    CharField = models.CharField[str, str]
else:
    CharField = models.CharField

Sql = tuple[str, tuple[str | int, ...]]


def in_order(spaces: int, name: StrPromise) -> StrPromise:
    """
    Return the name of a model for the admin, which sorts by it: the most spaces come first.

    A browser does not show them.
    """
    return format_lazy("{}{}", " " * spaces, capfirst(name))


class ExactCharField(CharField):
    """Text that is equal only to itself: case, accents and trailing blanks count."""

    def db_parameters(self, connection: Connection) -> dict[str, str | None]:
        parameters = super().db_parameters(connection)
        parameters["collation"] = exact_collation(connection)
        return parameters


@ExactCharField.register_lookup
class Unindexed(models.Transform):
    """
    The same value, for which SQLite looks in no index; the others know better by statistics.

    Few run ANALYZE on SQLite, and without it a queue passes for small: all its tasks would
    be sorted, to show the first few by their ids.
    """

    lookup_name = "unindexed"
    output_field = ExactCharField()

    def as_sql(  # type: ignore[override]
        self, compiler: SQLCompiler, connection: Connection, **context: object
    ) -> Sql:
        return compiler.compile(self.lhs)

    def as_sqlite(self, compiler: SQLCompiler, connection: Connection, **context: object) -> Sql:
        sql, params = compiler.compile(self.lhs)
        return f"+{sql}", params


def exact_collation(connection: Connection) -> str | None:
    if connection.vendor == "postgresql":
        return "C"
    if connection.vendor == "mysql":
        return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"  # type: ignore[attr-defined]
    return None


class JsonTextField(models.TextField):  # type: ignore[type-arg]
    """A text that is JSON of one of these ``kinds``."""

    def __init__(self, *args: Any, kinds: str = "'array'", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kinds = kinds

    def deconstruct(self) -> tuple[str, str, Sequence[object], dict[str, object]]:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.TextField", args, kwargs


M = TypeVar("M", bound=models.Model)
Bounds = tuple[float, float]

SPAN: Bounds = (0.0, LONGEST)
# Seconds that can be added to a time; a sum that can be added to and shown.
AMOUNT: Bounds = (-1e30, 1e30)


# What holds for the columns of each model that a constraint keeps readable, by their names.
conditions: dict[type[models.Model], dict[str, Any]] = {}


def readable(**bounds: Bounds) -> Callable[[type[M]], type[M]]:
    """
    Give a model a constraint that refuses values which can't be read or counted with.

    These are times that Python does not have, infinite numbers and NaN, numbers out of the
    ``bounds`` of their column, and unknown words.
    """

    def constrain(model: type[M]) -> type[M]:
        known = conditions[model] = {
            field.name: found
            for field in model._meta.local_fields
            if (found := limits_of(field, bounds))
        }
        name = f"{model._meta.db_table}_values"
        constraint = models.CheckConstraint(condition=models.Q(*known.values()), name=name)
        constraints = [*model._meta.constraints, constraint]
        model._meta.constraints = model._meta.original_attrs["constraints"] = constraints
        return model

    return constrain


class Condition(models.Func):
    """A condition whose template may name its value more than once."""

    output_field = models.BooleanField()

    def as_sql(
        self,
        compiler: SQLCompiler,
        connection: Connection,
        function: str | None = None,
        template: str | None = None,
        *joined: str | None,
        **context: Any,
    ) -> Any:
        template = template or self.template
        sql, params = super().as_sql(compiler, connection, function, template, *joined, **context)
        return sql, params * template.count("%(expressions)s")


class IsTime(Condition):
    """Whether a time is one that Python has. SQLite stores any text as a time."""

    template = f"(%(expressions)s BETWEEN '{str(EARLIEST)[:19]}' AND '{str(LATEST)[:19]}')"

    def as_postgresql(self, compiler: SQLCompiler, connection: Connection, **context: Any) -> Any:
        template = f"(%(expressions)s BETWEEN '{EARLIEST}' AND '{LATEST}')"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: SQLCompiler, connection: Connection, **context: Any) -> Any:
        # What is no time, or no day of its month, it writes otherwise; fractions it would round.
        second = "SUBSTR(%(expressions)s,1,19)"
        same = f"DATETIME({second}, '+0 days') IS {second}"
        template = f"({self.template} AND {same} AND %(expressions)s NOT GLOB '*[^0-9:. -]*')"
        return self.as_sql(compiler, connection, template=template, **context)


class IsJson(Condition):
    """Whether a text is null or JSON, and that a list or else, as ``kinds`` says, an object."""

    # SQLite's JSON_TYPE() refuses what is no JSON, and MariaDB's is null.
    template = (
        "(%(expressions)s IS NULL"
        " OR JSON_VALID(%(expressions)s) AND LOWER(JSON_TYPE(%(expressions)s)) IN (%(kinds)s))"
    )

    def as_postgresql(self, compiler: SQLCompiler, connection: Connection, **context: Any) -> Any:
        template = "(JSON_TYPEOF((%(expressions)s)::json) IN (%(kinds)s))"
        return self.as_sql(compiler, connection, template=template, **context)


def limits_of(
    field: AnyField, bounds: dict[str, Bounds]
) -> tuple[str, object] | models.Func | None:
    """
    Return which values of a column can be read, or None where its type decides.

    No list has a number of one digit: Django, which splits the SQL of SQLite's tables at ", ",
    could not introspect them.
    """
    if isinstance(field, models.BooleanField):
        return f"{field.name}__range", (False, True)
    if field.choices and field.name not in bounds:
        words = [word for word, _label in field.flatchoices]
        if words == [*range(len(words))]:
            return f"{field.name}__range", (0, len(words) - 1)
        return f"{field.name}__in", [""] * field.blank + words
    if isinstance(field, models.DateTimeField):
        return IsTime(field.name)
    if isinstance(field, JsonTextField):
        return IsJson(field.name, kinds=field.kinds)
    if isinstance(field, models.JSONField):
        return IsJson(field.name, kinds="'array'" if field.default is list else "'object', 'null'")
    if isinstance(field, models.FloatField) or field.name in bounds:
        return f"{field.name}__range", bounds.get(field.name, AMOUNT)
    return None


def optional_count(
    name: StrPromise, help_text: StrPromise, **given: Any
) -> models.PositiveIntegerField[int | None, int | None]:
    """Return a column that holds a number from 0, or nothing."""
    return models.PositiveIntegerField(name, null=True, blank=True, help_text=help_text, **given)


class ServerNow(models.Func):
    """The database server's clock, read when the statement runs; on SQLite the host's."""

    output_field = models.DateTimeField()
    arity = 0

    def as_sql(  # type: ignore[override]
        self, compiler: SQLCompiler, connection: Connection, **context: object
    ) -> object:
        from django.utils import timezone

        return compiler.compile(models.Value(timezone.now(), output_field=self.output_field))

    def as_postgresql(
        self, compiler: SQLCompiler, connection: Connection, **context: object
    ) -> object:
        # CLOCK_TIMESTAMP() is volatile, and would keep PostgreSQL from using an index.
        return "STATEMENT_TIMESTAMP()", []

    def as_mysql(self, compiler: SQLCompiler, connection: Connection, **context: object) -> object:
        return "UTC_TIMESTAMP(6)", []


class PartialIndex(models.Index):
    """
    An index of the rows with a condition, on the databases named by ``on``.

    Others have no partial indexes, or don't see that a query needs no more than one has.
    They get an index of all rows by the columns of ``whole``, which is ``fields`` by default.
    """

    def __init__(
        self,
        *expressions: Any,
        on: Sequence[str] = ("postgresql", "sqlite"),
        whole: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*expressions, **kwargs)
        self.on = list(on)
        self.whole = list(whole or self.fields)

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


UNDELETABLE = (
    "Tasks, tickets and dead letters can't be deleted so, as it would leave behind what belongs"
    " to them: use the command pq_queue purge, Queue.purge() or Queue.clear()."
)


class UndeletableQuerySet(models.QuerySet[M]):
    """Rows of which one task has several, so that only the store may delete them."""

    def delete(self) -> NoReturn:
        """Refuse: that would leave behind what belongs to them, and their lanes' accounts."""
        raise TypeError(UNDELETABLE)

    delete.queryset_only = True  # type: ignore[attr-defined]


class PartlyIndexed(models.Model):
    class Meta:
        abstract = True

    @classmethod
    def check(cls, **kwargs: object) -> list[CheckMessage]:
        """Leave out W037: a database without partial indexes gets the whole ones, as intended."""
        return [one for one in super().check(**kwargs) if one.id != "models.W037"]


class Undeletable(PartlyIndexed):
    objects = UndeletableQuerySet.as_manager()

    class Meta:
        abstract = True

    def delete(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(UNDELETABLE)
