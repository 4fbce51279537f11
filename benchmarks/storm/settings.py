"""The settings of every process of a storm."""

import os

from benchmarks.chaos.settings import *  # noqa: F403
from benchmarks.chaos.settings import DATABASES
from benchmarks.storm.terms import ISOLATION

if level := os.environ.get(ISOLATION):
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    is_mysql = DATABASES["default"]["ENGINE"].endswith("mysql")
    spelled = level if is_mysql else IsolationLevel[level.upper().replace(" ", "_")]
    DATABASES["default"].setdefault("OPTIONS", {})["isolation_level"] = spelled
