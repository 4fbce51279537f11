from __future__ import annotations

from typing import Any

from huey import SqliteHuey
from huey.contrib.sql_huey import SqlHuey
from peewee import MySQLDatabase, PostgresqlDatabase

from benchmarks.place import Place, this_place
from benchmarks.probe import note


def storage(place: Place) -> Any:
    if place.kind == "sqlite":
        return SqliteHuey("benchmark", filename=place.name)
    if place.kind == "mariadb":
        database = MySQLDatabase(place.name, unix_socket=place.host, user=place.user)
    else:
        database = PostgresqlDatabase(place.name, host=place.host, user=place.user)
    return SqlHuey("benchmark", database=database)


huey = storage(this_place())


@huey.task()
def noop(i: int) -> None:
    note(i)
