"""One task is finished by itself, in a transaction of its own."""

import json
from unittest import mock, skipUnless

from django.db import OperationalError, connection
from django.test import TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.models import Lane, Limit, Task, Ticket
from django_perfectqueue.store.database.dialects import mysql

from ...factories import acquire, assert_books_balance, finish, retry, running, submit

HARD = """it's 100 %, 50%(x)s; a \\ "word"; ö"""


class FinishAloneTests(TransactionTestCase):
    def test_it_closes_the_task_with_its_result_and_charges_the_lane(self):
        _task, held = running(user="ann")
        before = Lane.objects.get()
        self.assertEqual(finish(held, result=json.dumps(HARD), seconds=2.0), [])

        row, lane = Task.objects.get(), Lane.objects.get()
        self.assertEqual((row.outcome, row.result), ("finished", HARD))
        self.assertAlmostEqual((row.ended_at - row.started_at).total_seconds(), 2, delta=0.01)
        self.assertAlmostEqual(lane.virtual_time - before.virtual_time, 2.0 - held.charge)
        self.assertEqual((lane.running, Ticket.objects.count()), (0, 0))
        assert_books_balance(self)

    def test_what_another_attempt_holds_is_refused_and_stays_as_it_is(self):
        _task, first = running(user="ann")
        retry(first)
        [second] = acquire()
        before = Lane.objects.values().get()
        self.assertEqual([done.lease for done in finish(first)], [first])

        self.assertEqual(Task.objects.get().outcome, "")
        self.assertEqual(Lane.objects.values().get(), before)
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
        Lane.objects.all().delete()
        self.assertEqual(finish(held), [])
        self.assertEqual(Task.objects.get().outcome, "finished")

    def test_lanes_with_limits_get_a_copy_of_the_account(self):
        _task, held = running(user="ann")
        Limit.objects.create(scope="name", name="smtp", max_running=1)
        store.forget_limits("default")
        self.addCleanup(store.forget_limits, "default")
        submit(user="ann", limits=["smtp"])
        finish(held, seconds=2.0)

        own, copy = Lane.objects.order_by("gate").values_list("virtual_time", "running")
        self.assertEqual(own, copy)
        self.assertEqual(own[1], 0)

    @skipUnless(connection.vendor == "mysql", "Others send one statement, or have no server.")
    def test_a_driver_that_takes_one_statement_at_once_gets_one(self):
        options = {**connection.settings_dict["OPTIONS"], "multi_statements": False}
        connection.close()
        self.addCleanup(connection.close)
        with mock.patch.dict(connection.settings_dict, OPTIONS=options):
            _task, held = running(user="ann")
            self.assertEqual(finish(held), [])
        assert_books_balance(self)

    @skipUnless(connection.vendor == "mysql", "Others send one statement, or have no server.")
    def test_an_error_in_between_undoes_all_of_it(self):
        _task, held = running(user="ann")
        send = mysql.in_one_packet

        def interrupted(*terms):
            results = send(*terms)
            for _statement in range(3):
                yield next(results)
            raise OperationalError(1213, "Deadlock found")

        with mock.patch.object(mysql, "in_one_packet", interrupted):
            with self.assertRaises(OperationalError), store.one_call():
                finish(held)
            self.assertEqual(Task.objects.get().outcome, "")
        self.assertEqual(Ticket.objects.count(), 1)
        self.assertEqual(finish(held), [])
        assert_books_balance(self)
