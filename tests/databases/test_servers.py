from __future__ import annotations

import signal
import subprocess
import sys
import time
import unittest

from django.contrib.auth.models import Group
from django.db import connection
from django.test import TestCase, TransactionTestCase

from . import SQLite, UnavailableError, die_with_parent, environment_for, server_like
from .environment import kind_of
from .lifetime import is_alive
from .server import DATABASE

SHOW_GROUPS = """
import django
django.setup()
from django.contrib.auth.models import Group
print(*Group.objects.values_list("name", flat=True))
"""

START_AND_BE_KILLED = """
import os, sys
from tests.databases.environment import SERVERS
server = SERVERS[sys.argv[1]]()
server.start()
print(server.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def python(script: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        preexec_fn=die_with_parent(),
    )


class EnvironmentTests(TransactionTestCase):
    def test_a_process_of_a_test_works_on_the_test_database(self):
        """
        What a worker does in a process of its own can be seen by the test that started it.
        """
        Group.objects.create(name="here")
        shown = python(SHOW_GROUPS, env=environment_for(connection))
        self.assertEqual((shown.stdout, shown.stderr), ("here\n", ""))


class ServerTests(TestCase):
    def setUp(self):
        try:
            self.server = server_like(connection, durable=True)
            self.server.require()
        except UnavailableError as error:
            raise unittest.SkipTest(str(error)) from error
        if isinstance(self.server, SQLite):
            self.skipTest("There is no server to kill.")

    def test_a_durable_server_keeps_what_it_confirmed_when_killed(self):
        with self.server as server:
            self.execute("CREATE TABLE kept (number integer)")
            self.execute("INSERT INTO kept VALUES (1)")
            server.kill()
            self.assertFalse(server.answers())
            server.start()
            self.assertEqual(self.execute("SELECT number FROM kept"), [(1,)])

    def test_a_server_and_its_folder_go_when_the_block_is_left(self):
        with self.server as server:
            pid, folder = server.process.pid, server.folder
        self.assertFalse(is_alive(pid))
        self.assertFalse(folder.exists())

    def test_a_server_does_not_outlive_the_process_that_made_it(self):
        ended = python(START_AND_BE_KILLED, kind_of(connection), env=environment_for(connection))
        self.assertEqual(ended.returncode, -signal.SIGKILL, ended.stderr)
        deadline = time.monotonic() + 10.0
        while is_alive(int(ended.stdout)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def execute(self, statement: str) -> list[tuple[int]]:
        link = self.server.connect(DATABASE)
        try:
            cursor = link.cursor()
            cursor.execute(statement)
            rows = list(cursor.fetchall()) if cursor.description else []
            link.commit()
        finally:
            link.close()
        return rows
