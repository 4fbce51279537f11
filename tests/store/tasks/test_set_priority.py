from asgiref.sync import async_to_sync
from django.test import TestCase, TransactionTestCase

from django_perfectqueue.exceptions import AlreadyFinishedError, InvalidTaskError, NotFoundError
from django_perfectqueue.models import Task, Ticket
from django_perfectqueue.queue import Queue

from ...factories import acquire, after, failed, finish, keys, retry, running, status, submit


class ReprioritizeTests(TestCase):
    def test_a_task_that_waits_changes_its_place(self):
        first = submit("first")
        submit("second", now=after(1))
        third = submit("third", now=after(2))

        third.set_priority(1)
        first.set_priority(-1)

        self.assertEqual(keys(acquire(3, now=after(3))), ["third", "second", "first"])

    def test_its_row_tells_the_new_priority(self):
        task = submit(priority=3)

        task.set_priority(-2_147_483_647)

        self.assertEqual(task.metadata().priority, -2_147_483_647)
        self.assertEqual(Ticket.objects.get().rank, 2_147_483_647)

    def test_it_holds_for_a_task_that_waits_for_its_time(self):
        later = submit("later", run_at=60)
        submit("now", now=after(1))
        later.set_priority(1)

        self.assertEqual(status(later, now=after(2)), "scheduled")
        self.assertEqual(keys(acquire(2, now=after(60))), ["later", "now"])

    def test_a_running_task_goes_on_and_has_it_when_it_is_tried_again(self):
        task, held = running("first")
        task.set_priority(5)
        self.assertEqual(status(task), "running")

        submit("second", now=after(1))
        retry(held, wait=1, now=after(2))

        self.assertEqual(keys(acquire(2, now=after(3))), ["first", "second"])

    def test_a_task_that_has_finished_keeps_the_priority_that_it_had(self):
        task, held = running("k1")
        task.set_priority(5)
        finish(held)
        with self.assertRaisesMessage(AlreadyFinishedError, "Task 'k1' has ended: it is finished."):
            task.set_priority(6)

        self.assertEqual(task.metadata().priority, 5)

    def test_a_task_that_has_failed_has_ended(self):
        task = failed("k1")

        with self.assertRaisesMessage(AlreadyFinishedError, "it is failed"):
            task.set_priority(6)
        self.assertEqual(Task.objects.get().priority, 0)

    def test_a_task_that_is_not_there(self):
        with self.assertRaisesMessage(NotFoundError, "no task with the key 'k1'"):
            Queue()["k1"].set_priority(1)

    def test_what_is_no_priority_is_refused(self):
        task = submit()
        for value in (True, 1.5, "1", 2**31, None):
            with self.subTest(value), self.assertRaises(InvalidTaskError):
                task.set_priority(value)


class TwinTests(TransactionTestCase):
    def test_it_has_an_async_twin(self):
        async_to_sync(submit().aset_priority)(4)

        self.assertEqual(Task.objects.get().priority, 4)
