"""What is larger than the server takes in one statement is refused, and ends no connection."""

from unittest import skipUnless

from django.db import connection
from django.test import TransactionTestCase, override_settings

from django_perfectqueue.exceptions import InvalidResultError, InvalidTaskError
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue

from ...factories import (
    acquire,
    assert_books_balance,
    completion,
    finish_and_acquire,
    submit,
    submit_many,
)
from ...worker.runners import runner_for

MEBIBYTE = 1024 * 1024
LARGE = {"MAX_RESULT_SIZE": 64 * MEBIBYTE, "MAX_PAYLOAD_SIZE": 64 * MEBIBYTE}


@skipUnless(connection.vendor == "mysql", "Others take a gigabyte.")
@override_settings(PERFECTQUEUE=LARGE)
class PacketTests(TransactionTestCase):
    def setUp(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
            [before] = cursor.fetchone()
        self.addCleanup(self.set_packet, before)
        self.set_packet(MEBIBYTE)

    def set_packet(self, size):
        with connection.cursor() as cursor:
            cursor.execute("SET GLOBAL max_allowed_packet = %s", [size])
        connection.close()

    def test_a_result_fails_its_task_at_once(self):
        for result in ("x" * 2 * MEBIBYTE, '"' * 400_000):
            with self.subTest(length=len(result)):
                submit("k1", now=None)
                [task] = Queue().acquire()
                with self.assertLogs("django_perfectqueue.runner", "ERROR"):
                    ending = runner_for(lambda task, result=result: result).run(task)
                row = Queue()["k1"].metadata()
                self.assertEqual((ending.word, row.status), ("failed", "failed"))
                self.assertIn("max_allowed_packet is 1,048,576", row.dead_letter.message)
                Queue().clear()

    def test_who_finishes_a_task_is_notified(self):
        submit(now=None)
        task = Queue().poll()
        with self.assertRaises(InvalidResultError):
            task.finish("x" * 2 * MEBIBYTE)
        with self.assertRaises(InvalidTaskError):
            task.update_data({"rows": "x" * 2 * MEBIBYTE})
        task.finish("short")

    def test_data_is_refused_at_the_door(self):
        long = {"key": "k1", "type": "report", "data": "x" * 2 * MEBIBYTE}
        with self.assertRaisesMessage(InvalidTaskError, "max_allowed_packet"):
            Queue().submit(**long)
        with self.assertRaisesMessage(InvalidTaskError, "max_allowed_packet"):
            Queue().submit_many([{"key": "k2", "type": "report"}, long])
        self.assertFalse(Task.objects.exists())

    def test_results_that_fit_one_by_one_are_stored_together(self):
        submit_many(12, now=None)
        done = [completion(lease, result='"' * 200_000) for lease in acquire(12, now=None)]
        finish_and_acquire(done, now=None, worker="w")

        self.assertEqual(Task.objects.filter(outcome="finished").count(), 12)
        assert_books_balance(self)
