"""One task is finished by itself, in a transaction of its own."""

import json
import threading
from contextlib import suppress
from unittest import mock, skipIf, skipUnless

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import TransactionTestCase

from django_perfectqueue.models import Account, Task, Ticket
from django_perfectqueue.store.database.dialects.postgresql_server import BEGIN

from ...factories import acquire, assert_books_balance, finish, retry, running
from ...waiting import wait_until
from .test_submit import hurried, locked

WAITING = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
HARD = """it's 100 %, 50%(x)s; a \\ "word"; ö"""


class UndoneError(Exception):
    pass


class FinishAloneTests(TransactionTestCase):
    def test_it_closes_the_task_with_its_result_and_charges_the_lane(self):
        _task, held = running(user="ann")
        before = Account.objects.get()
        self.assertEqual(finish(held, result=json.dumps(HARD), seconds=2.0), [])

        row, lane = Task.objects.get(), Account.objects.get()
        self.assertEqual((row.outcome, row.result), ("finished", HARD))
        self.assertAlmostEqual((row.ended_at - row.started_at).total_seconds(), 2, delta=0.01)
        self.assertAlmostEqual(lane.virtual_time - before.virtual_time, 2.0 - held.charge)
        self.assertEqual((lane.running, Ticket.objects.count()), (0, 0))
        assert_books_balance(self)

    def test_what_another_attempt_holds_is_refused_and_stays_as_it_is(self):
        _task, first = running(user="ann")
        retry(first)
        [second] = acquire()
        before = Account.objects.values().get()
        self.assertEqual([done.lease for done in finish(first)], [first])

        self.assertEqual(Task.objects.get().outcome, "")
        self.assertEqual(Account.objects.values().get(), before)
        self.assertEqual(finish(second), [])
        assert_books_balance(self)

    def test_one_that_was_finished_before_is_not_finished_again(self):
        _task, held = running(user="ann")
        finish(held, result="1")
        self.assertEqual(finish(held, result="2"), [])
        self.assertEqual(Task.objects.get().result, 1)
        assert_books_balance(self)

    def test_a_task_whose_lane_is_gone_is_finished(self):
        _task, held = running(user="ann")
        Account.objects.all().delete()
        self.assertEqual(finish(held), [])
        self.assertEqual(Task.objects.get().outcome, "finished")

    def test_an_error_in_between_undoes_all_of_it(self):
        _task, held = running(user="ann")

        def charge_fails(execute, sql, *others):
            if "UPDATE" in sql and "perfectqueue_account" in sql:
                raise IntegrityError("The lane can't be charged.")
            return execute(sql, *others)

        with connection.execute_wrapper(charge_fails), self.assertRaises(IntegrityError):
            finish(held)
        self.assertEqual((Task.objects.get().outcome, Ticket.objects.count()), ("", 1))
        self.assertEqual(finish(held), [])
        assert_books_balance(self)

    @skipIf(connection.vendor == "sqlite", "SQLite has no server.")
    def test_an_error_in_the_first_statement_leaves_the_connection_good(self):
        if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
            self.skipTest("MySQL ends no DELETE for its time.")
        _task, held = running(user="ann")
        with hurried(), locked("perfectqueue_ticket"), self.assertRaises(DatabaseError):
            finish(held)
        self.assertTrue(connection.get_autocommit())
        self.assertEqual(finish(held), [])
        assert_books_balance(self)

    @skipUnless(connection.vendor == "postgresql", "The log of MariaDB's driver has it.")
    def test_begin_goes_with_the_first_statement(self):
        _task, held = running(user="ann")

        def finish_it():
            finish(held)
            connection.close()

        def is_waiting():
            with connection.cursor() as cursor:
                cursor.execute(WAITING)
                begun = f"{BEGIN}; \nWITH"
                return [query[: len(begun)] for (query,) in cursor.fetchall()] == [begun]

        thread = threading.Thread(target=finish_it)
        with locked("perfectqueue_ticket"):
            thread.start()
            wait_until(is_waiting)
        thread.join()
        self.assertEqual(Task.objects.get().outcome, "finished")

    def test_a_callers_transaction_undoes_it(self):
        _task, held = running(user="ann")
        with suppress(UndoneError), transaction.atomic():
            self.assertEqual(finish(held), [])
            raise UndoneError
        self.assertEqual((Task.objects.get().outcome, Ticket.objects.count()), ("", 1))

    @skipIf(connection.vendor == "sqlite", "atomic() commits there, where autocommit is off.")
    def test_a_caller_without_autocommit_commits_by_itself(self):
        _task, held = running(user="ann")
        transaction.set_autocommit(False)
        self.addCleanup(transaction.set_autocommit, True)
        for undo, outcome in ((transaction.rollback, ""), (transaction.commit, "finished")):
            # The caller has begun a transaction.
            self.assertEqual(Task.objects.count(), 1)
            self.assertEqual(finish(held), [])
            undo()
            self.assertEqual(Task.objects.get().outcome, outcome)
            transaction.rollback()

    @skipIf(connection.vendor == "sqlite", "SQLite has no server.")
    def test_a_driver_that_takes_one_statement_at_once_gets_one(self):
        if connection.vendor == "postgresql" and not is_psycopg3:
            self.skipTest("psycopg2 binds no parameters on the server.")
        one = {"postgresql": {"server_side_binding": True}, "mysql": {"multi_statements": False}}
        options = {**connection.settings_dict["OPTIONS"], **one[connection.vendor]}
        connection.close()
        self.addCleanup(connection.close)
        with mock.patch.dict(connection.settings_dict, OPTIONS=options):
            _task, held = running(user="ann")
            self.assertEqual(finish(held), [])
        assert_books_balance(self)
