import time

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.attempt.surroundings import AttemptEnd
from django_perfectqueue.worker.buffers import Completions

from ...factories import submit_many


class CompletionsTests(TestCase):
    def setUp(self):
        self.posted = []
        self.completions = Completions(self.posted.extend)
        self.keys = submit_many(3, now=None)
        self.tasks = Queue().acquire(3)
        for task in self.tasks:
            self.put(task)

    def put(self, task, result=None):
        completion = task.completion(result)
        self.completions.put(AttemptEnd("finished", task, None, 0.0, completion), completion)

    def post(self):
        with self.completions.batch() as (done, refused):
            refused += store.finish(done, using="default")

    def test_all_are_written_together(self):
        self.post()
        self.assertEqual([ending.word for ending in self.posted], ["finished"] * 3)
        self.assertEqual({task.settled for task in self.tasks}, {"finished"})
        self.assertEqual(len(Queue()), 0)

    def test_what_was_refused_is_listed_apart(self):
        Queue()[self.tasks[1].key].force_finish()
        self.post()
        self.assertEqual(
            [ending.word for ending in self.posted], ["finished", "preempted", "finished"]
        )
        self.assertEqual(self.tasks[1].settled, "")

    def test_what_could_not_be_written_goes_first_the_next_time(self):
        """
        A handler that has returned must not run again for a database that was away.
        """
        with self.assertRaises(OSError), self.completions.batch():
            raise OSError
        self.assertEqual(self.posted, [])
        self.assertEqual(self.completions.fences(), {task.lease.fence for task in self.tasks})
        with self.completions.batch() as (done, _refused):
            self.assertEqual([one.lease.key for one in done], self.keys)

    def test_it_is_late_when_the_oldest_has_waited_for_fifty_milliseconds(self):
        now = time.monotonic()
        self.assertFalse(self.completions.is_late(now))
        self.assertTrue(self.completions.is_late(now + 0.06))
        self.post()
        self.assertFalse(self.completions.is_late(now + 0.06))

    def test_large_results_do_not_pile_up(self):
        """
        A database refuses a statement of too many megabytes, and would refuse it for ever.
        """
        self.post()
        self.put(self.tasks[0], result="x" * 1_000_000)
        self.assertTrue(self.completions.is_late(time.monotonic()))
