import threading

from django.contrib.auth.models import Permission
from django.db import connection, connections, transaction
from django.test import TransactionTestCase

from django_perfectqueue.models import Attempt, Task

from ..factories import fail, running, submit
from .emptying import empty


class EmptyingTests(TransactionTestCase):
    def test_it_leaves_no_rows_but_those_of_the_migrations(self):
        permissions = Permission.objects.count()
        _task, lease = running()
        fail(lease)
        empty(connection)
        self.assertFalse(Task.objects.exists() or Attempt.objects.exists())
        self.assertGreater(permissions, 0)
        self.assertEqual(Permission.objects.count(), permissions)

    def test_it_waits_for_a_commit_that_is_under_way(self):
        written, order = threading.Event(), []

        def write():
            with transaction.atomic():
                submit("k1")
                written.set()
                emptying.join(0.3)
                order.append("committed")
            connections.close_all()

        def clear():
            written.wait()
            empty(connection)
            order.append("emptied")
            connections.close_all()

        emptying, writing = threading.Thread(target=clear), threading.Thread(target=write)
        emptying.start()
        writing.start()
        writing.join()
        emptying.join()
        self.assertEqual(order, ["committed", "emptied"])
        self.assertFalse(Task.objects.exists())
