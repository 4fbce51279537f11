"""A transaction whose BEGIN goes with its first statement begins and ends like any other."""

from contextlib import suppress
from unittest import mock

from django.db import DatabaseError, Error, connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue.models import Limit
from django_perfectqueue.store.database.transaction import in_transaction

OWN_ID = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
KILL = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}


def names():
    return sorted(Limit.objects.values_list("name", flat=True))


class BegunTests(TransactionTestCase):
    def tearDown(self):
        self.assertTrue(connection.get_autocommit())
        self.assertFalse(connection.in_atomic_block)
        self.assertNotIn("Packet", repr(connection.execute_wrappers))
        self.insert("last")
        connection.close()
        self.assertIn("last", names())

    def insert(self, name):
        Limit.objects.create(scope="queue", name=name)

    def insert_what_is_there(self, name):
        with self.assertRaises(DatabaseError), transaction.atomic():
            self.insert(name)

    def test_nothing_is_sent(self):
        with in_transaction("default"):
            pass

    def test_the_first_statement_fails(self):
        with self.assertRaises(DatabaseError), in_transaction("default") as db:
            db.execute("SELECT nonsense FROM nowhere")
        self.assertEqual(names(), [])

    def test_what_comes_before_an_error_is_undone(self):
        with self.assertRaises(ValueError), in_transaction("default"):
            self.insert("a")
            raise ValueError
        self.assertEqual(names(), [])

    def test_what_comes_after_a_failed_first_statement_is_undone(self):
        self.insert("a")
        with self.assertRaises(ValueError), in_transaction("default"):
            self.insert_what_is_there("a")
            self.insert("b")
            raise ValueError
        self.assertEqual(names(), ["a"])

    def test_what_comes_after_a_failed_savepoint_is_kept(self):
        self.insert("a")
        with in_transaction("default"):
            self.insert_what_is_there("a")
            self.insert("b")
        self.assertEqual(names(), ["a", "b"])

    def test_it_is_undone_on_request(self):
        with in_transaction("default"):
            self.insert("a")
            transaction.set_rollback(True)
        self.assertEqual(names(), [])

    def test_many_come_first(self):
        with self.assertRaises(ValueError), in_transaction("default") as db:
            table = Limit._meta.db_table
            self.insert("a")
            db.cursor.executemany(f"DELETE FROM {table} WHERE name = %s", [("a",), ("b",)])
            raise ValueError
        self.insert("b")
        with self.assertRaises(ValueError), in_transaction("default") as db:
            db.cursor.executemany(f"DELETE FROM {table} WHERE name = %s", [("a",), ("b",)])
            raise ValueError
        self.assertEqual(names(), ["b"])

    def test_the_connection_is_lost_before(self):
        self.insert("a")
        if connection.vendor == "sqlite":
            return
        with connection.cursor() as cursor:
            cursor.execute(OWN_ID[connection.vendor])
            [pid] = cursor.fetchone()
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute(KILL[connection.vendor], [pid])
        other.close()
        with self.assertRaises(Error), in_transaction("default"):
            self.insert("b")
        self.assertEqual(names(), ["a"])

    def test_what_needs_no_answer_goes_before_the_next_statement(self):
        """Whatever that is: of the store, of Django, of many."""
        delete = f"DELETE FROM {Limit._meta.db_table} WHERE name = %(name)s"
        named = f"SELECT COUNT(*) FROM {Limit._meta.db_table} WHERE name <> %(name)s"
        for one in "abcd":
            self.insert(one)
        with in_transaction("default") as db:
            db.unanswered.execute(delete, {"name": "a"})
            db.unanswered.execute(delete, {"name": "b"})
            self.assertEqual(db.rows(named, {"name": "%(name)s"}), [(2,)])
            db.unanswered.execute(delete, {"name": "c"})
            self.assertEqual(names(), ["d"])
            db.unanswered.execute(delete, {"name": "d"})
            insert = f"UPDATE {Limit._meta.db_table} SET name = %s WHERE name = %s"
            db.cursor.executemany(insert, [("e", "d"), ("f", "d")])
            with transaction.atomic():
                self.insert("d")
            db.unanswered.execute(delete, {"name": "d"})
        self.assertEqual(names(), [])

    def test_what_needs_no_answer_is_sent_at_the_end(self):
        self.insert("a")
        with in_transaction("default") as db:
            db.unanswered.execute(f"DELETE FROM {Limit._meta.db_table}")
        self.assertEqual(names(), [])

    def test_what_needs_no_answer_is_undone(self):
        self.insert("a")
        for error in (ValueError, None):
            with self.subTest(error), suppress(ValueError), in_transaction("default") as db:
                names()
                db.unanswered.execute(f"DELETE FROM {Limit._meta.db_table}")
                if error:
                    raise error
                transaction.set_rollback(True)
            self.assertEqual(names(), ["a"])

    def test_what_needs_no_answer_is_undone_with_its_savepoint(self):
        """Where it fails with the next statement, or waits; it is never sent again."""
        self.insert("a")
        for text in ("SELECT nonsense FROM nowhere", f"DELETE FROM {Limit._meta.db_table}"):
            for fails in (True, False):
                with self.subTest(text, fails=fails), in_transaction("default") as db:
                    with suppress(DatabaseError, ValueError), transaction.atomic():
                        db.unanswered.execute(text)
                        if fails:
                            self.insert("a")
                        raise ValueError
                    self.assertEqual(names(), ["a"])

    def test_an_error_of_what_needs_no_answer_undoes_all(self):
        self.insert("a")
        for ask in (names, lambda: None):
            for first in ("nonsense", "name"):
                with self.assertRaises(DatabaseError), in_transaction("default") as db:
                    db.unanswered.execute(f"DELETE FROM {Limit._meta.db_table}")
                    db.unanswered.execute(f"SELECT {first} FROM nowhere")
                    db.unanswered.execute(f"DELETE FROM {Limit._meta.db_table}")
                    ask()
                self.assertEqual(names(), ["a"])

    def test_hooks_run_once(self):
        hook = mock.Mock()
        with in_transaction("default"):
            transaction.on_commit(hook)
            self.insert("a")
            hook.assert_not_called()
        hook.assert_called_once_with()
