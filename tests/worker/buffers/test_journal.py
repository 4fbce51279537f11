import logging
import threading
import time
from contextlib import contextmanager
from unittest import mock

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

import django_perfectqueue as pq
from django_perfectqueue import store
from django_perfectqueue.conf import Options
from django_perfectqueue.models import Journal
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.store.database.dialects.base import Problem
from django_perfectqueue.store.values import Note
from django_perfectqueue.worker import buffers
from django_perfectqueue.worker.attempt import surroundings
from django_perfectqueue.worker.attempt.surroundings import Running
from django_perfectqueue.worker.buffers import YOUNG, JournalBuffer

from ...factories import acquire, submit
from ...waiting import wait_until
from ..crews import ConcurrentTestCase

logger = logging.getLogger("shop.reports")
TABLE = "perfectqueue_journal"


@contextmanager
def undone():
    """Open a transaction that is rolled back; on SQLite nobody else could write meanwhile."""
    if connection.vendor == "sqlite":
        yield
        return
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


class JournalBufferTests(TestCase):
    def setUp(self):
        self.going = []
        self.journal = JournalBuffer(lambda: self.going, using="default", interval=1.0)

    def task(self, *, runs=True):
        submit(now=None)
        [lease] = acquire(now=None)
        task = AcquiredTask(lease)
        task.started -= YOUNG
        if runs:
            self.going.append(Running(task))
        return task

    def reported(self):
        return list(Journal.objects.values_list("progress", flat=True))

    def test_all_that_run_are_written_in_one_statement_an_interval(self):
        tasks = [self.task() for _task in range(20)]
        self.assertFalse(self.journal.is_due(time.monotonic()))
        for task in tasks:
            task.progress(0.1)
        self.assertTrue(self.journal.is_due(time.monotonic()))
        with self.assertNumQueries(1):
            self.journal.write()
        for task in tasks:
            task.progress(0.2)
        now = time.monotonic()
        self.assertFalse(self.journal.is_due(now))
        self.assertTrue(self.journal.is_due(now + 1.0))
        with self.assertNumQueries(0):
            self.journal.write()
        self.assertEqual(self.reported(), [0.1] * 20)

    def test_one_that_tells_nothing_more_is_not_written_again(self):
        task = self.task()
        task.progress(0.1)
        self.journal.write()
        self.assertFalse(self.journal.is_due(time.monotonic() + 60))

    def test_one_that_has_just_begun_may_end_before_it_is_worth_a_connection(self):
        task = self.task()
        task.progress(0.1)
        task.started = time.monotonic() + 60
        self.assertFalse(self.journal.is_due(time.monotonic()))

    def test_what_has_ended_waits_for_no_interval(self):
        self.journal.next_look = float("inf")
        task = self.task(runs=False)
        task.progress(1.0)
        self.journal.keep(task)
        self.assertTrue(self.journal.is_due(time.monotonic() + 1))
        with self.assertNumQueries(1):
            self.journal.write()
        self.assertEqual(self.reported(), [1.0])

    def fail_once(self, error):
        with (
            mock.patch.object(store.records, "write_journal", side_effect=error),
            self.assertRaises(type(error)),
        ):
            self.journal.write()

    def test_what_could_not_be_written_is_written_later_and_only_once(self):
        task = self.task()
        task.progress(0.1)
        with mock.patch.object(store.database, "problem_of", return_value=Problem.UNREACHABLE):
            self.fail_once(InterfaceError("gone"))
        task.progress(1.0)
        self.going.clear()
        self.journal.keep(task)
        with self.assertNumQueries(0):
            self.journal.write()
        self.journal.not_before = 0.0
        with self.assertNumQueries(1):
            self.journal.write()
        self.assertEqual(self.reported(), [1.0])

    def test_what_was_reported_last_holds_though_it_was_kept_while_the_first_was_sent(self):
        task = self.task()
        task.progress(0.1)

        def fail(notes, *, using):
            task.progress(1.0)
            self.journal.keep(task)
            raise InterfaceError("gone")

        with (
            mock.patch.object(store.database, "problem_of", return_value=Problem.UNREACHABLE),
            mock.patch.object(store.records, "write_journal", fail),
            self.assertRaises(InterfaceError),
        ):
            self.journal.write()
        self.journal.not_before = 0.0
        self.journal.write()
        self.assertEqual(self.reported(), [1.0])

    def test_the_first_that_waits_is_written_in_time_whatever_comes_after_it(self):
        with mock.patch.object(buffers.time, "monotonic", return_value=100.0) as clock:
            for clock.return_value in (100.0, 100.0 + buffers.LATE):
                task = self.task(runs=False)
                task.progress(1.0)
                self.journal.keep(task)
            self.assertTrue(self.journal.is_due(clock.return_value))

    def test_what_will_never_be_written_holds_up_nothing(self):
        task = self.task(runs=False)
        task.progress(0.1)
        self.journal.keep(task)
        with mock.patch.object(store.database, "problem_of", return_value=Problem.OTHER):
            self.fail_once(DatabaseError("no such table"))
        self.assertEqual(len(self.journal.left), 0)
        self.assertGreater(self.journal.not_before, time.monotonic())

    def test_it_is_tried_ever_less_often(self):
        pauses = []
        for _time in range(10):
            self.journal.left.append(Note(task_id=1, key="k", attempt=1))
            self.journal.not_before = 0.0
            self.fail_once(DatabaseError("full"))
            pauses.append(self.journal.not_before - time.monotonic())
        self.assertEqual([round(pause) for pause in pauses], [2, 4, 8, 16, 32] + 5 * [60])

    def test_after_it_went_well_it_is_tried_as_soon_as_ever(self):
        self.journal.failures = 7
        self.journal.left.append(Note(task_id=1, key="k", attempt=1))
        self.journal.write()
        self.assertEqual(self.journal.failures, 0)


class ProcessorTests(ConcurrentTestCase):
    """The same of all kinds of processors: what handlers report reaches the table."""

    def reported(self):
        return {row.task.key: row for row in Journal.objects.select_related("task")}

    def statements(self, queries):
        return [query["sql"] for query in queries if TABLE in query["sql"]]

    def test_a_task_that_tells_nothing_costs_nothing(self):
        processor = self.processor("thread", {"report": lambda task: None})
        self.submit(*["report"] * 100)
        with CaptureQueriesContext(connection) as queries:
            self.work(processor)
        self.assertEqual(self.statements(queries), [])
        self.assertEqual(set(self.statuses().values()), {"finished"})

    @mock.patch.object(buffers, "LATE", 60.0)
    def test_a_hundred_that_tell_cost_one_statement_a_batch_more(self):
        processor = self.processor("thread", {"report": lambda task: task.progress(1.0)})
        processor.prefetch.fixed = 100
        processor.completions.after = 60.0
        self.submit(*["report"] * 100)
        with CaptureQueriesContext(connection) as queries:
            self.work(processor)
        self.assertEqual(len(self.statements(queries)), 1)
        self.assertEqual(len(self.reported()), 100)

    def test_at_its_end_a_processor_writes_what_it_could_not_write_just_now(self):
        def report(task):
            task.progress(1.0)
            processor.journal.not_before = float("inf")

        processor = self.processor("process", {"report": report})
        self.submit("report")
        self.work(processor)
        self.assertEqual(len(self.reported()), 1)

    @mock.patch.object(buffers, "YOUNG", 0.0)
    def test_how_far_they_are_is_seen_while_they_run_and_when_they_have_ended(self):
        for kind in ("process", "thread", "async"):
            with self.subTest(kind):
                Queue().clear()
                gate, inner = threading.Event(), threading.Event()

                def function(task, gate=gate):
                    with undone():
                        pq.progress(0.4, "waiting")
                        pq.log("Here.")
                        gate.wait(60)
                    task.progress(1.0, "done")

                async def coroutine(task, gate=gate, inner=inner):
                    pq.progress(0.4, "waiting")
                    await sync_to_async(lambda: pq.log("There."))()
                    await sync_to_async(gate.wait, thread_sensitive=False)(60)
                    pq.progress(1.0, "done")

                routes = {"function": function, "coroutine": coroutine}
                with mock.patch.object(Options, "JOURNAL_INTERVAL", 0.01):
                    processor = self.processor(kind, routes)
                keys = self.submit("function", "coroutine")

                looked = []

                def look(gate=gate, looked=looked, count=1 if kind == "process" else 2):
                    def seen():
                        rows = Journal.objects.filter(progress=0.4, stage="waiting")
                        return rows.count() >= count

                    try:
                        wait_until(seen)
                        looked.append(True)
                    finally:
                        gate.set()
                        connection.close()

                self.beside(look)
                self.work(processor)
                self.assertTrue(looked)
                reported = self.reported()
                self.assertEqual(sorted(reported), sorted(keys))
                for row in reported.values():
                    self.assertEqual((row.progress, row.stage), (1.0, "done"))
                texts = [line.text for key in keys for line in reported[key].log]
                self.assertEqual(texts, ["Here.", "There."])

    def test_what_an_attempt_has_logged_stays_with_it(self):
        def report(task):
            logger.warning("Attempt %d.", task.attempt)
            if task.attempt == 1:
                task.retry(0)

        for kind in ("process", "thread"):
            with self.subTest(kind):
                Queue().clear()
                processor = self.processor(kind, {"report": report})
                self.submit("report")
                surroundings.begin("INFO")
                with mock.patch.object(logging.lastResort, "handle"):
                    self.work(processor)
                rows = Journal.objects.order_by("number")
                self.assertEqual(
                    [[line.text for line in row.log] for row in rows],
                    [["Attempt 1."], ["Attempt 2."]],
                )

    def test_that_it_can_not_be_written_is_no_tasks_trouble(self):
        for kind in ("process", "thread", "async"):
            with self.subTest(kind):
                Queue().clear()
                processor = self.processor(kind, {"report": lambda task: task.progress(1.0)})
                self.submit(*["report"] * 5)
                with (
                    mock.patch.object(
                        store.records, "write_journal", side_effect=DatabaseError("no table")
                    ),
                    mock.patch.object(store.database, "problem_of", return_value=Problem.OTHER),
                    self.assertLogs("django_perfectqueue.database", "WARNING") as log,
                ):
                    self.work(processor)
                self.assertIn("The journal of tasks can't be written", log.output[0])
                self.assertEqual(set(self.statuses().values()), {"finished"})
                self.assertEqual(self.reported(), {})
