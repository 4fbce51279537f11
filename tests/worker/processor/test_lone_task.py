"""What a task costs that comes while a processor rests."""

from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_perfectqueue.queue import Queue

from ..crews import ConcurrentTestCase

MOST = {"postgresql": 3, "sqlite": 9, "mysql": 11}
FRAMES = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "SET ")


class LoneTaskTests(ConcurrentTestCase):
    def setUp(self):
        self.after = []
        self.one = self.processor("process", {"run": self.run_task}, burst=False)
        self.one.open()
        self.addCleanup(self.one.runner.event_loop.close)
        self.submit("run")
        self.attend()
        self.attend()

    def run_task(self, task):
        for act in self.after:
            act()

    def attend(self, *, rested=False):
        """Acquire and run, as work() does; return the keys."""
        self.one.rested = rested
        taken = self.one.acquire()
        self.one.batch.extend(taken)
        self.one.run_batch()
        return [lease.key for lease in taken]

    def submit_more(self, *keys):
        for key in keys:
            Queue().submit(key, "run")

    def test_it_takes_few_statements(self):
        self.submit_more("lone")
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(self.attend(rested=True), ["lone"])
            self.assertEqual(self.attend(), [])
        sent = [query["sql"] for query in queries if not query["sql"].startswith(FRAMES)]
        self.assertLessEqual(len(sent), MOST[connection.vendor], sent)
        self.assertEqual(set(self.statuses().values()), {"finished"})

    def test_what_comes_while_it_runs_is_taken_at_once(self):
        self.submit_more("lone")
        self.after = [lambda: self.submit_more("next")]
        self.assertEqual(self.attend(rested=True), ["lone"])
        self.after = []
        self.assertEqual(self.attend(), ["next"])

    def test_what_is_due_by_then_is_taken_at_once(self):
        self.submit_more("lone", "behind")
        self.one.prefetch.fixed = 0
        self.assertEqual(self.attend(rested=True), ["lone"])
        self.assertEqual(self.attend(), ["behind"])
