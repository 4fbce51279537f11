"""Workers with a database server of their own, which may be maltreated."""

import contextlib
import os
import signal
import sqlite3
import unittest
from copy import deepcopy
from unittest import mock

from django.core.management import call_command
from django.db import connection, connections
from environ import Env

from django_perfectqueue.queue import Queue

from ..databases import MariaDB, SQLite, UnavailableError, server_like
from ..databases.lifetime import children
from ..databases.server import DATABASE
from .workers import Worker, WorkerTestCase

PASSWORD = "s3cret-w0rd"


class OwnServerCase(WorkerTestCase):
    """
    The worker is a plain user of the server ``self.server``; this process is its master,
    over the alias ``own``.
    """

    def setUp(self):
        super().setUp()
        try:
            self.server = server_like(connection, durable=True)
            self.server.require()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        self.addCleanup(self.server.remove)
        self.server.start()
        connections.databases["own"] = self.settings()
        type(self).databases |= {"own"}
        self.addCleanup(self.forget_alias)
        self.own = connections["own"]
        self.queue = Queue(using="own")
        if not isinstance(self.server, SQLite):
            self.let_in_user()

    def settings(self):
        given = deepcopy(connection.settings_dict) | Env.db_url_config(self.server.url)
        found = given["OPTIONS"]
        given["HOST"] = found.pop("unix_socket", None) or found.pop("host", None) or given["HOST"]
        given["OPTIONS"] = connection.settings_dict["OPTIONS"] | found
        given["OPTIONS"].pop("host", None)
        return given

    def forget_alias(self):
        type(self).databases -= {"own"}
        connections["own"].close()
        del connections["own"], connections.databases["own"]

    def let_in_user(self):
        url = self.server.url
        if isinstance(self.server, MariaDB):
            self.execute(
                f"CREATE USER app@localhost IDENTIFIED BY '{PASSWORD}'",
                f"GRANT ALL ON {DATABASE}.* TO app@localhost",
            )
            as_app = url.replace("root@", f"app:{PASSWORD}@")
        else:
            self.execute(
                "CREATE ROLE app LOGIN",
                "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app",
                "ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO app",
            )
            as_app = url.replace("postgres@", f"app:{PASSWORD}@")
        patch = mock.patch.object(type(self.server), "url", as_app)
        patch.start()
        self.addCleanup(patch.stop)

    def execute(self, *statements):
        """Run statements as the master of the server; return the rows of the last."""
        with self.own.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def migrate(self):
        call_command("migrate", database="own", verbosity=0, skip_checks=True)

    def worker(self, *arguments, **settings):
        worker = Worker(self.folder, *arguments, database=self.server, **settings)
        self.addCleanup(worker.end)
        return worker

    def submit(self, key, type="wait", *, data=None, **options):
        given = {"diary": str(self.diary), "until": str(self.gate), **(data or {})}
        return self.queue.submit(key, type, given, **options)

    def status(self, key):
        return self.queue[key].metadata().status

    def hang_up(self):
        """Have the server end every connection of the worker's."""
        if isinstance(self.server, MariaDB):
            rows = self.execute("SELECT id FROM information_schema.processlist WHERE user = 'app'")
            for (number,) in rows:
                with contextlib.suppress(Exception):
                    self.execute(f"KILL {number}")
        else:
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"
            )

    def freeze(self, signum=signal.SIGSTOP):
        """Have the server neither answer nor hang up."""
        if not self.server.is_running:
            return
        pid = self.server.process.pid
        for process in (pid, *children(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signum)

    def thaw(self):
        self.freeze(signal.SIGCONT)

    def replace_file(self):
        """Put a copy in the place of SQLite's file."""
        copy = self.server.file.with_suffix(".copy")
        with contextlib.closing(sqlite3.connect(self.server.file)) as link:
            link.execute("VACUUM INTO ?", [str(copy)])
        self.own.close()
        for name in ("-wal", "-shm"):
            self.server.file.with_name(self.server.file.name + name).unlink(missing_ok=True)
        copy.replace(self.server.file)
