"""Who stands still in a transaction must not hold up the others for longer than a lease."""

import time

from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.test import TransactionTestCase, tag

from django_perfectqueue import store
from django_perfectqueue.models import FairShare
from django_perfectqueue.worker.database.link import end_idle_transactions

from ...databases.environment import kind_of

SOON = 1.0
CAN_END = ("postgresql", "mariadb")


class IdleTransactionTests(TransactionTestCase):
    def setUp(self):
        if kind_of(connection) not in CAN_END:
            self.skipTest(f"{connection.display_name} does not end idle transactions.")
        self.other = connections.create_connection("default")
        self.addCleanup(self.other.close)

    def lock(self):
        """Lock a row on another connection, and leave the transaction open."""
        FairShare.objects.get_or_create(user="ann")
        self.other.set_autocommit(False)
        with self.other.cursor() as cursor:
            cursor.execute("UPDATE perfectqueue_fairshare SET weight = 2")

    def test_its_locks_go_when_it_has_stood_still(self):
        store.database.end_idle_transactions(self.other, after=SOON)
        self.lock()
        before = time.monotonic()
        with transaction.atomic():
            share = FairShare.objects.select_for_update().get()
        self.assertEqual(share.weight, 1)
        self.assertGreaterEqual(time.monotonic() - before, SOON / 2)
        with self.assertRaises(DatabaseError), self.other.cursor() as cursor:
            cursor.execute("SELECT 1")

    def test_a_time_that_the_project_has_set_is_left(self):
        reported = {
            "postgresql": ("SET idle_in_transaction_session_timeout = 77000", "77s"),
            "mariadb": ("SET SESSION idle_transaction_timeout = 77", 77),
        }
        asked = {
            "postgresql": "SHOW idle_in_transaction_session_timeout",
            "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
        }
        kind = kind_of(connection)
        set_it, expected = reported[kind]
        with self.other.cursor() as cursor:
            cursor.execute(set_it)
            store.database.end_idle_transactions(self.other, after=SOON)
            cursor.execute(asked[kind])
            self.assertEqual(cursor.fetchone()[0], expected)

    @tag("thorough")
    def test_a_worker_tells_it_on_every_connection_that_it_makes(self):
        self.addCleanup(connection_created.disconnect, dispatch_uid="perfectqueue.idle")
        end_idle_transactions("default", 2 * SOON)
        for _time in range(2):
            self.other.close()
            self.lock()
            with transaction.atomic():
                self.assertEqual(FairShare.objects.select_for_update().get().weight, 1)
