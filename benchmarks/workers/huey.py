from __future__ import annotations

from typing import Any

from huey import SqliteHuey
from huey.contrib.sql_huey import SqlHuey
from peewee import MySQLDatabase, PostgresqlDatabase

from benchmarks.database import Target, this_target
from benchmarks.probe import note


def storage(target: Target) -> Any:
    if target.kind == "sqlite":
        return SqliteHuey("benchmark", filename=target.name)
    if target.kind == "mariadb":
        database = MySQLDatabase(target.name, unix_socket=target.host, user=target.user)
    else:
        database = PostgresqlDatabase(target.name, host=target.host, user=target.user)
    return SqlHuey("benchmark", database=database)


huey = storage(this_target())


@huey.task()
def noop(i: int) -> None:
    note(i)
