"""One worker that lives through all that can ail its database."""

import signal
import time

from django.test import tag

from ...databases import MariaDB, SQLite
from ...waiting import wait_until
from ..own_server import PASSWORD, OwnServerCase

LONG = 60.0
BACK_WITHIN = 2.0
SLACK = 5.0  # for a machine that has other things to do


@tag("thorough")
class OutageTests(OwnServerCase):
    """
    All the while a task runs, which has nothing to do with the database, and whose lease
    holds. For each trouble each process of the worker says at most once that it is there and
    once that it is over, and the worker is back at work within two seconds.
    """

    def setUp(self):
        super().setUp()
        self.number = 0
        self.read = 0

    def new_lines(self):
        return self.lively.errors[self.read :].splitlines()

    def lines_with(self, words):
        return [line for line in self.new_lines() if words in line]

    def each_has_said_both(self):
        """Return whether each process that said it was away has said that it is back, once."""
        away, back = map(self.processes_that_say, ("Tasks are kept", "The database is back"))
        self.assertEqual(len(away), len(set(away)), self.new_lines())
        return sorted(away) == sorted(back)

    def processes_that_say(self, words):
        return [line.split("process=")[1].split(" pid=")[0] for line in self.lines_with(words)]

    def reported(self, words):
        def is_reported():
            return bool(self.lines_with(words))

        try:
            wait_until(is_reported, within=LONG)
        except AssertionError as error:
            raise AssertionError(f"{error}: {words}\n{self.lively.errors}") from None

    def outage(self, words, begin, end, *, stir=False):
        """Have a trouble begin and end; ``stir`` submits what lets the worker notice it."""
        with self.subTest(words):
            self.read = len(self.lively.errors)
            begin()
            try:
                if stir:
                    self.submit_note()
                self.reported(words)
            finally:
                end()
            mended = time.monotonic()
            self.reported("The database is back")
            self.assertLess(time.monotonic() - mended, BACK_WITHIN + SLACK)
            self.submit_note()
            self.wait_for_note("ran", self.number, within=LONG)
            wait_until(self.each_has_said_both, within=LONG)
            self.assertEqual(self.lines_with("Traceback"), [])

    def submit_note(self):
        self.number += 1
        self.submit(f"n{self.number}", "note")

    def test_a_worker_lives_through_all_of_them(self):
        self.lively = self.worker(
            "--wait-for-database",
            "60",
            PROCESSORS=2,
            DATABASE_TIMEOUT=2.0,
            TASK_PREFETCH=0,
            OPTIONS={"timeout": 1} if self.own.vendor == "sqlite" else {"connect_timeout": 2},
        )
        self.reported("Waiting up to 60 s. The database 'default' is not migrated.")
        self.migrate()
        self.submit("long")
        self.wait_for_note("start", within=LONG)
        self.outage("run manage.py migrate", self.take_table_away, self.put_table_back)
        if isinstance(self.server, SQLite):
            self.live_through_file_troubles()
        else:
            self.live_through_server_troubles()
        wait_until(lambda: self.status("long") == "finished", within=LONG)
        self.assertEqual(len(self.notes("start")), 1)
        self.assertNotIn(PASSWORD, self.lively.errors)
        self.lively.send(signal.SIGTERM)
        self.assertEqual(self.lively.wait(LONG), 0, self.lively.errors)

    def take_table_away(self):
        self.execute("ALTER TABLE perfectqueue_ticket RENAME TO hidden")

    def put_table_back(self):
        self.execute("ALTER TABLE hidden RENAME TO perfectqueue_ticket")

    def live_through_server_troubles(self):
        self.read = len(self.lively.errors)
        self.hang_up()
        self.submit_note()
        self.wait_for_note("ran", self.number, within=LONG)
        self.assertEqual(self.lines_with("The database"), [], "Each only made a new connection.")

        self.outage("The database is away", self.server.stop, self.start_server)
        self.outage("it takes no writes", self.forbid_writes, self.allow_writes, stir=True)
        self.outage("it has no connection to spare", self.crowd, self.make_room)
        self.outage("it refuses the login", self.shut_out, self.let_in)
        self.addCleanup(self.thaw)
        self.outage("The database is away", self.freeze, self.thaw)
        self.outage("The database is away", self.kill_server_and_end_task, self.start_server)

    def kill_server_and_end_task(self):
        """Why should it start again, which has nothing to do with the database?"""
        self.server.kill()
        self.open_gate()
        self.wait_for_note("end")

    def start_server(self):
        self.server.start()
        self.own.close()

    def forbid_writes(self):
        if self.is_mariadb:
            self.execute("SET GLOBAL read_only = 1")
        else:
            self.execute(
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM SET default_transaction_read_only = on",
                "SELECT pg_reload_conf()",
            )

    def allow_writes(self):
        if self.is_mariadb:
            self.execute("SET GLOBAL read_only = 0")
        else:
            self.execute(
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            )

    def crowd(self):
        self.change_user("WITH MAX_USER_CONNECTIONS 1", "CONNECTION LIMIT 0")
        self.hang_up()

    def make_room(self):
        self.change_user("WITH MAX_USER_CONNECTIONS 0", "CONNECTION LIMIT -1")

    def shut_out(self):
        self.change_user("ACCOUNT LOCK", "NOLOGIN")
        self.hang_up()

    def let_in(self):
        self.change_user("ACCOUNT UNLOCK", "LOGIN")

    def change_user(self, on_mariadb, on_postgresql):
        if self.is_mariadb:
            self.execute(f"ALTER USER app@localhost {on_mariadb}")
        else:
            self.execute(f"ALTER ROLE app {on_postgresql}")

    @property
    def is_mariadb(self):
        return isinstance(self.server, MariaDB)

    def live_through_file_troubles(self):
        self.outage("others hold its locks", self.lock, self.unlock)
        self.read = len(self.lively.errors)
        self.replace_file()
        self.reported("The database's file was replaced")
        self.submit_note()
        self.wait_for_note("ran", self.number, within=LONG)
        self.open_gate()

    def lock(self):
        self.execute("BEGIN IMMEDIATE")

    def unlock(self):
        self.execute("ROLLBACK")
