from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import Ticket

from ...factories import acquire, after, fail, finish, keys, retry, status, submit, submit_many


class DeadlineTests(TestCase):
    """``expected_at``: among equals in priority the task that is expected first goes first."""

    def test_who_is_expected_earlier_goes_first(self):
        submit("none", now=after(5))
        submit("late", expected_at=after(90))
        submit("soon", expected_at=after(30))
        submit("overdue", expected_at=after(-30))

        self.assertEqual(keys(acquire(4, now=after(5))), ["overdue", "none", "soon", "late"])

    def test_the_priority_comes_before_it(self):
        submit("soon", expected_at=after(1))
        submit("urgent", expected_at=after(90), priority=1)

        self.assertEqual(keys(acquire(2)), ["urgent", "soon"])

    def test_many_at_once_keep_it_too(self):
        late = submit_many(2, expected_at=after(90))
        soon = submit_many(2, expected_at=after(30))

        self.assertEqual(keys(acquire(4)), soon + late)

    def test_it_holds_among_one_users_tasks(self):
        """
        Else whoever is in the greatest hurry gets the whole queue.
        """
        for number in range(3):
            submit(f"ann{number}", user="ann", expected_at=after(-1000))
            submit(f"bob{number}", user="bob")

        self.assertEqual({key[:3] for key in keys(acquire(2))}, {"ann", "bob"})

    def test_a_task_does_not_start_before_its_time_however_early_it_is_expected(self):
        task = submit("later", run_at=60, expected_at=after(10))
        submit("now", now=after(30))

        self.assertEqual(status(task, now=after(59)), "scheduled")
        self.assertEqual(keys(acquire(2, now=after(59))), ["now"])
        self.assertEqual(keys(acquire(2, now=after(60))), ["later"])

    def test_once_due_it_goes_by_the_time_at_which_it_is_expected(self):
        submit("first", now=after(15))
        submit("later", run_at=60, expected_at=after(10))
        submit("last", now=after(30))

        self.assertEqual(keys(acquire(3, now=after(60))), ["later", "first", "last"])

    def test_one_that_is_tried_again_is_still_expected_then(self):
        """
        Its deadline has come no later by its error; one without waits behind what was due.
        """
        submit("plain", now=after(0))
        submit("expected", expected_at=after(1))
        first, second = acquire(2, now=after(1))
        for held in (first, second):
            retry(held, wait=10, now=after(2))
        submit("meanwhile", now=after(5))

        self.assertEqual(keys(acquire(3, now=after(11.9))), ["meanwhile"])
        submit("meanwhile-2", now=after(5))
        self.assertEqual(keys(acquire(3, now=after(12))), ["expected", "meanwhile-2", "plain"])

    def test_one_that_is_given_back_or_put_back_is_so_too(self):
        task = submit("expected", expected_at=after(1))
        [held] = acquire(now=after(1))
        store.settle([held], store.Ending.release(), using="default", now=after(2))
        self.assertEqual(Ticket.objects.get().run_at, after(1))
        [held] = acquire(now=after(3))
        fail(held, now=after(4))

        task.retry(now=after(5))

        self.assertEqual(Ticket.objects.get().run_at, after(1))
        self.assertEqual(keys(acquire(now=after(5))), ["expected"])

    def test_one_that_is_hastened_is_so_too(self):
        task = submit("expected", run_at=600, expected_at=after(700))
        submit("other", now=after(4))

        task.retry(now=after(5))

        self.assertEqual(keys(acquire(2, now=after(5))), ["other", "expected"])

    def test_a_task_that_ended_tells_it_yet(self):
        task = submit("expected", expected_at=30)
        finish(*acquire())

        self.assertEqual(task.metadata().expected_at, after(30))
