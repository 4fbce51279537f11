"""A worker's ways to its database, and what is reported of their troubles."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock, skipUnless

from django.db import Error, OperationalError, connection, connections
from django.test import SimpleTestCase, TransactionTestCase, skipUnlessDBFeature

from django_perfectqueue import store
from django_perfectqueue.application import Registry
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.database import Problem
from django_perfectqueue.store.database.dialects import DIALECTS
from django_perfectqueue.worker.database import link as connecting
from django_perfectqueue.worker.database.link import LEAST, Link, Watchdog
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.shared.status import Outage

from ...databases.proxy import proxied
from ...factories import assert_books_balance
from ...waiting import wait_until

LOG = "django_perfectqueue.database"


class LinkCase(TransactionTestCase):
    def setUp(self):
        self.wakeup = Wakeup()
        self.addCleanup(self.wakeup.close)
        self.outage = Outage()
        self.problem_of = Problem.UNREACHABLE
        self.addCleanup(connection.close)

    def link(self):
        link = Link("default", self.wakeup, lambda: float("inf"), outage=self.outage)
        self.addCleanup(link.close_handle)
        return link

    def ail(self, link, times=1, error="gone"):
        """Have calls fail, as they do one after another while the database is away."""
        with mock.patch.object(link, "problem_of", return_value=self.problem_of):
            for _time in range(times):
                link.trouble(OperationalError(error))
                link.pause()

    def do(self, link):
        link.once(lambda: None)


class TellingTests(LinkCase):
    def test_one_line_tells_for_all_and_one_when_the_last_is_through(self):
        links = [self.link() for _number in range(5)]
        with self.assertLogs(LOG, "WARNING") as log:
            for link in links:
                self.ail(link, 3)
            for link in links:
                self.do(link)
            self.do(self.link())
        gone, back = log.output
        self.assertRegex(gone, r"^ERROR.*The database is away: it can't be reached\.")
        self.assertIn("Tasks are kept", gone)
        self.assertRegex(back, r"^WARNING.*The database is back. .* seconds=0\.\d$")

    def test_another_reason_is_reported_and_the_same_after_a_while(self):
        link = self.link()
        with self.assertLogs(LOG, "WARNING") as log:
            self.ail(link, 3)
            self.problem_of = Problem.READ_ONLY
            self.ail(link, 3)
            with mock.patch("django_perfectqueue.worker.shared.status.AGAIN_AFTER", 0.0):
                self.ail(link)
        _first, second, third = log.output
        self.assertIn("The database is still away: it takes no writes", second)
        self.assertIn("The database is still away: it takes no writes", third)

    def test_what_only_a_person_can_mend_is_reported_with_what_helps(self):
        self.problem_of = Problem.UNMIGRATED
        link = self.link()
        with self.assertLogs(LOG, "ERROR") as log:
            self.ail(link, 2)
        self.assertIn("The database can't be used: ", log.output[0])
        self.assertIn("run manage.py migrate", log.output[0])

    def test_a_connection_that_was_only_made_anew_is_no_outage(self):
        link = self.link()
        with self.assertLogs(LOG, "INFO") as log:
            for _call in range(3):
                self.ail(link)
                self.do(link)
        [line] = log.output
        self.assertIn(f"INFO:{LOG}:A call to the database failed and was repeated", line)

    def test_a_refusal_is_an_answer_too(self):
        def refuse():
            raise PreemptedError

        link = self.link()
        with self.assertLogs(LOG, "WARNING") as log:
            self.ail(link, 2)
            with self.assertRaises(PreemptedError):
                link.once(refuse)
        self.assertIn("The database is back", log.output[-1])
        self.assertFalse(self.outage.is_on or link.away_since)

    def test_each_process_says_so_once_and_by_its_name(self):
        """What ails one need not ail another, and a line names which."""
        self.outage.process = "processor 3"
        with self.assertLogs(LOG, "WARNING") as log:
            if not (child := os.fork()):
                self.ail(self.link(), 3)
                os._exit(0)
            os.waitpid(child, 0)
            connection.close()
            self.ail(link := self.link(), 3)
            self.do(link)
        gone, back = log.output
        self.assertIn("process=processor 3 ", gone)
        self.assertIn("process=processor 3 ", back)

    def test_a_password_is_not_reported(self):
        entry = connection.settings_dict
        with (
            mock.patch.dict(entry, {"PASSWORD": "s3cret"}),
            self.assertLogs(LOG, "DEBUG") as log,
        ):
            self.ail(self.link(), 2, error="postgres://me:s3cret@db/mysite")
        self.assertNotIn("s3cret", "".join(log.output))

    def test_once_a_server_takes_writes_again_all_make_new_connections(self):
        """Those who only read have not noticed that theirs leads to a standby."""
        reader, writer = self.link(), self.link()
        self.do(reader)
        before = connection.connection
        self.problem_of = Problem.READ_ONLY
        with self.assertLogs(LOG, "WARNING"), ThreadPoolExecutor(1) as pool:
            pool.submit(self.ail, writer, 2).result()
            self.do(reader)
            self.assertIs(connection.connection, before)
            pool.submit(self.do, writer).result()
            pool.submit(connections.close_all).result()
        self.do(reader)
        self.assertIsNot(connection.connection, before)


class AilmentTests(SimpleTestCase):
    def test_what_each_database_says(self):
        said = {
            "postgresql": [
                ("57P01", "", Problem.STOPPED),
                ("25006", "", Problem.READ_ONLY),
                ("53100", "", Problem.FULL),
                ("53300", "", Problem.CROWDED),
                ("42P01", "", Problem.UNMIGRATED),
                ("42501", "", Problem.FORBIDDEN),
                ("57014", "", Problem.CUT_SHORT),
                ("08006", "", Problem.UNREACHABLE),
                ("22003", "", Problem.OTHER),
                (None, "FATAL:  the database system is starting up", Problem.STOPPED),
                (None, "FATAL:  sorry, too many clients already", Problem.CROWDED),
                (None, 'password authentication failed for user "me"', Problem.SHUT_OUT),
                (None, "server closed the connection unexpectedly", Problem.UNREACHABLE),
            ],
            "mysql": [
                (1040, "", Problem.CROWDED),
                (1053, "", Problem.STOPPED),
                (1290, "", Problem.READ_ONLY),
                (1836, "", Problem.READ_ONLY),
                (1021, "", Problem.FULL),
                (1114, "", Problem.FULL),
                (1045, "", Problem.SHUT_OUT),
                (1146, "", Problem.UNMIGRATED),
                (1142, "", Problem.FORBIDDEN),
                (2013, "", Problem.UNREACHABLE),
                (1264, "", Problem.OTHER),
            ],
            "sqlite": [
                (None, "database is locked", Problem.LOCKED),
                (None, "database or disk is full", Problem.FULL),
                (None, "attempt to write a readonly database", Problem.READ_ONLY),
                (None, "unable to open database file", Problem.UNREACHABLE),
                (None, "no such table: perfectqueue_task", Problem.UNMIGRATED),
                (None, 'near "x": syntax error', Problem.OTHER),
            ],
        }
        for vendor, cases in said.items():
            for code, words, expected in cases:
                with self.subTest(vendor, code=code, words=words):
                    error = OperationalError(*[part for part in (code, words) if part])
                    error.__cause__ = SimpleNamespaceError(code) if vendor == "postgresql" else None
                    self.assertIs(DIALECTS[vendor].problem_of(error), expected)


class SimpleNamespaceError(Exception):
    def __init__(self, code):
        self.pgcode = code


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class SilenceTests(LinkCase):
    """The network drops everything, and nobody hangs up."""

    def watch(self, link, timeout=0.4):
        watch, ended = Watchdog([link], timeout), threading.Event()

        def look():
            while not ended.wait(timeout / 2):
                watch.look(time.monotonic())

        thread = threading.Thread(target=look)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(ended.set)

    def test_who_waits_for_an_answer_that_does_not_come_connects_anew(self):
        with proxied(connection) as proxy, self.assertLogs(LOG, "DEBUG") as log:
            connection.settings_dict["OPTIONS"]["connect_timeout"] = 2
            link = self.link()
            self.watch(link)
            link.retry_until_done(self.look)
            proxy.silent = True

            def hear_again():
                wait_until(lambda: link.away_since)
                proxy.silent = False

            threading.Thread(target=hear_again).start()
            self.assertIsNotNone(link.retry_until_done(self.look))
        self.assertIn("it did not answer within DATABASE_TIMEOUT", log.output[0])

    def look(self):
        return store.look(["default"], using="default")

    def test_who_waits_for_a_lock_for_too_long_leaves_nothing_waiting_at_the_server(self):
        """MariaDB's InnoDB ends such a waiting by itself, after 50 seconds."""
        Queue().submit("k1", "report", {})
        locked, done = threading.Event(), threading.Event()

        def hold():
            try:
                with connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute("SELECT id FROM perfectqueue_task FOR UPDATE")
                    locked.set()
                    done.wait(30)
                    cursor.execute("ROLLBACK")
            finally:
                connection.close()

        link = self.link()
        self.watch(link)
        with ThreadPoolExecutor(1) as pool:
            holder = pool.submit(hold)
            self.assertTrue(locked.wait(10))
            began = time.monotonic()
            with self.assertRaises(Error) as caught:
                link.once(lambda: Task.objects.update(worker="me"))
            link.trouble(caught.exception)
            self.assertIs(link.what, Problem.SILENT)
            self.assertLess(time.monotonic() - began, 10)
            if connection.vendor == "postgresql":
                wait_until(self.nobody_waits)
            done.set()
            holder.result()

    def nobody_waits(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return cursor.fetchone()[0] == 0

    def test_each_call_is_asked_about_before_it_is_cut(self):
        link = self.link()
        self.do(link)
        link.socket_handle.cancel_sent = True
        link.once(lambda: self.assertFalse(link.socket_handle.cancel_sent))

    def test_leases_outlast_the_waiting(self):
        for timeout, alive_time, expected in (
            (30.0, 300.0, 30.0),
            (30.0, 40.0, 10.0),
            (30.0, 1.0, LEAST),
            (None, 1.0, None),
        ):
            options = SimpleNamespace(DATABASE_TIMEOUT=timeout, ALIVE_TIME=alive_time)
            plan = Plan(dispatch=Registry, queues=(), using="default", options=options)
            self.assertEqual(plan.timeout, expected)


class ConnectingTests(SimpleTestCase):
    databases = {"default"}  # what holds differs with its kind

    def connected(self, **options):
        """Return a TCP connection as a worker has set it up."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            line = socket.create_connection(server.getsockname())
        self.addCleanup(line.close)
        entry = SimpleNamespace(connection=line, settings_dict={"OPTIONS": options})
        connecting.keep_alive(None, entry)
        return line

    def test_a_host_that_dies_is_noticed_within_a_minute(self):
        line = self.connected()
        self.assertEqual(line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            self.assertEqual(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 30)

    def test_what_the_project_has_set_stays(self):
        line = self.connected(keepalives_idle=500)
        self.assertEqual(line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 0)
        with self.prepared({"connect_timeout": 77}) as options:
            self.assertEqual(options["connect_timeout"], 77)

    def test_connecting_has_an_end(self):
        with self.prepared({}) as options:
            given = options.get("connect_timeout")
        self.assertEqual(given, None if connection.vendor == "sqlite" else 5)

    def test_helpers_keep_few_statements_of_sqlite(self):
        options = dict(connection.settings_dict["OPTIONS"])
        with mock.patch.dict(connection.settings_dict, {"OPTIONS": options}):
            connecting.keep_few_statements("default")
            own = connection.copy()
            own.connect()
            own.close()
        kept = options.get("cached_statements")
        self.assertEqual(kept, 16 if connection.vendor == "sqlite" else None)

    @contextmanager
    def prepared(self, options):
        with mock.patch.dict(connection.settings_dict, {"OPTIONS": options}):
            connecting.prepare("default")
            connecting.connection_created.disconnect(dispatch_uid=connecting.ID)
            yield options


@skipUnless(connection.vendor == "sqlite", "A page limit stands for a full disk.")
class DiskFullTests(LinkCase):
    def fill(self):
        with connection.cursor() as cursor:
            # What other tests have deleted is room as well.
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA max_page_count = 1")

    def test_a_submit_raises_and_leaves_nothing_half_written(self):
        self.fill()
        with self.assertRaisesMessage(OperationalError, "disk is full"):
            Queue().submit("k1", "report", {"text": "x" * 900_000})
        connection.close()
        self.assertEqual(Task.objects.count(), 0)
        assert_books_balance(self)

    def test_a_worker_waits_until_there_is_room(self):
        """Its connection is made anew for each try, so here there is room at the second."""
        self.fill()
        link = self.link()
        with self.assertLogs(LOG, "DEBUG") as log:
            link.retry_until_done(lambda: Queue().submit("k1", "report", {"text": "x" * 900_000}))
        self.assertIn("its disk is full", log.output[0])
        self.assertEqual(Task.objects.count(), 1)
