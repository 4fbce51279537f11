import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

from django.db import OperationalError, connection
from django.test import SimpleTestCase, TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.models import FairShare, Usage
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.store.database.dialects.base import Problem
from django_perfectqueue.worker import buffers as module
from django_perfectqueue.worker.buffers import INTERVAL, OVERDUE, UsageBuffer
from django_perfectqueue.worker.database.link import Link
from django_perfectqueue.worker.processor.feeder import Feeder

from ...factories import acquire, submit, submit_many
from ...management.running import run_json
from ...waiting import wait_until
from ..workers import WorkerTestCase


def usage(*, kept=True):
    made = UsageBuffer(using="default", kept=kept)
    if kept:
        made.ask_time()
    return made


def held(user="ann", **options):
    submit(user=user, now=None, **options)
    [lease] = acquire(now=None)
    return AcquiredTask(lease)


def begin(books, task):
    books.current[id(task)] = task


def ran(books, task, seconds):
    """Have a task run for so long."""
    begin(books, task)
    books.end(task, task.started + seconds)


def of_users():
    return Usage.objects.filter(type="")


def received():
    return dict(of_users().filter(others=False).values_list("user", "seconds"))


class UsageBufferTests(TestCase):
    def test_what_ran_is_written_together(self):
        books = usage()
        for user in ("ann", "ann", "bob"):
            ran(books, held(user), 2.0)
        with self.assertNumQueries(0):
            self.assertFalse(books.is_due(time.monotonic()))
        books.write()

        rows = {row.user: row for row in of_users()}
        self.assertEqual({user: row.ended for user, row in rows.items()}, {"ann": 2, "bob": 1})
        self.assertAlmostEqual(rows["ann"].seconds, 4.0)

    def test_ten_seconds_of_tasks_cost_a_few_statements(self):
        books = usage()
        tasks = [held(f"user-{number}") for number in range(20)]
        with CaptureQueriesContext(connection) as queries:
            for number in range(2_000):
                ran(books, tasks[number % 20], 0.005)
            books.write()

        self.assertLessEqual(len(queries), 5)
        self.assertEqual(sum(row.ended for row in of_users()), 2_000)

    def test_nothing_is_written_twice(self):
        books = usage()
        ran(books, held(), 2.0)
        books.write()
        with self.assertNumQueries(0):
            books.write()

        self.assertAlmostEqual(received()["ann"], 2.0)

    def test_a_task_that_takes_long_is_booked_as_it_goes(self):
        books = usage()
        task = held()
        task.started -= 3600.0
        begin(books, task)
        books.write()
        self.assertAlmostEqual(received()["ann"], 3600.0, delta=10)
        self.assertEqual(of_users().get().ended, 0)

        books.end(task, task.started + 7200.0)
        ran(books, held("bob"), 1.0)
        books.write()
        self.assertAlmostEqual(received()["ann"], 7200.0)
        self.assertAlmostEqual(received()["bob"], 1.0)
        waits = [sum(getattr(row, f"wait_{n}") for n in range(28)) for row in of_users()]
        self.assertEqual(sum(waits), 2)

    def test_tasks_that_run_at_once_are_booked_one_by_one(self):
        books = usage()
        tasks = [held(user) for user in ("ann", "bob")]
        for task in tasks:
            task.started -= 100.0
            begin(books, task)
        books.write()
        for task, seconds in zip(tasks, (150.0, 200.0), strict=True):
            books.end(task, task.started + seconds)
        books.write()

        self.assertAlmostEqual(received()["ann"], 150.0)
        self.assertAlmostEqual(received()["bob"], 200.0)

    def test_a_wait_is_from_when_it_was_due_by_the_servers_clock(self):
        """
        Though this host's clock is wrong by days.
        """
        submit(user="ann", now=timezone.now() - timedelta(seconds=100))
        [lease] = acquire(now=None)
        with mock.patch("time.time", return_value=0.0):
            books = usage()
            ran(books, AcquiredTask(lease), 1.0)
            books.write()

        [share] = Queue().shares()
        self.assertGreater(share.p50, 64.0)
        self.assertLess(share.p50, 128.0)

    def test_a_task_that_is_due_before_it_is_submitted_has_waited_since_its_submit(self):
        books = usage()
        ran(books, held(run_at=-1_000_000.0), 1.0)
        books.write()
        [share] = Queue().shares()
        self.assertLess(share.p95, 60.0)

    def test_a_task_that_has_yielded_has_waited_before_it_began_and_no_more(self):
        books, task = usage(), held()
        ran(books, task, 1.0)
        task._end(store.Ending.give_way())
        for seconds in (1.0, 100.0):
            [lease] = acquire(now=None)
            task = AcquiredTask(lease)
            begin(books, task)
            task.started -= seconds
            books.write()
            books.end(task, task.started + seconds)
            task._end(store.Ending.give_way())
        books.write()
        waits = [sum(getattr(row, f"wait_{n}") for n in range(28)) for row in Usage.objects.all()]
        self.assertEqual(set(waits), {1})

    def test_what_could_not_be_written_since_the_database_is_away_is_kept(self):
        books = usage()
        ran(books, held(), 2.0)
        with (
            mock.patch.object(store.records, "clock", side_effect=OperationalError),
            self.assertRaises(OperationalError),
        ):
            books.write()
        books.write()

        self.assertAlmostEqual(received()["ann"], 2.0)

    def test_what_may_have_been_written_is_not_written_again(self):
        books = usage()
        ran(books, held(), 2.0)
        written = store.records.add_usage

        def answer_lost(*args, **kwargs):
            written(*args, **kwargs)
            raise OperationalError

        with (
            mock.patch.object(store.records, "add_usage", answer_lost),
            self.assertRaises(OperationalError),
        ):
            books.write()
        books.write()

        self.assertAlmostEqual(received()["ann"], 2.0)

    def test_of_too_many_users_the_smallest_are_others_and_nothing_is_lost(self):
        books = usage()
        for seconds, user in enumerate(("ann", "bob", "cem", "dan"), 1):
            ran(books, held(user), float(seconds))
        with mock.patch.object(module, "MOST_ROWS", 1):
            books.write()
            books.write()

        reported = {row.user or "others": row.seconds for row in of_users()}
        self.assertEqual({user: round(n) for user, n in reported.items()}, {"dan": 4, "others": 6})

    def test_switched_off_it_asks_nothing(self):
        books = usage(kept=False)
        task = held()
        with self.assertNumQueries(0):
            ran(books, task, 2.0)
            self.assertFalse(books.is_due(time.monotonic() + 99))
            books.write()

    def test_two_threads_book_no_second_twice(self):
        books = usage()
        task = held()
        began = time.monotonic() - 1000.0
        going = threading.Event()
        taken = []

        def keep_taking():
            while not going.is_set():
                taken.append(books.take())

        thread = threading.Thread(target=keep_taking)
        thread.start()
        for number in range(2_000):
            task.started = began
            begin(books, task)
            books.end(task, began + 1.0 if number % 2 else time.monotonic())
        going.set()
        thread.join()
        taken.append(books.take())
        tallies = [tally for some in taken for key, tally in some.items() if not key.type]
        ended = sum(tally.ended for tally in tallies)
        waits = sum(sum(tally.waits) for tally in tallies)
        self.assertEqual((ended, waits), (2_000, 2_000))


class TroubleTests(SimpleTestCase):
    def test_that_it_can_not_be_written_is_no_tasks_trouble(self):
        books = mock.Mock(write=mock.Mock(side_effect=OperationalError("disk full")))
        link = Link("default", mock.Mock(), lambda: 0.0)
        processor = SimpleNamespace(usage=books, link=link)

        with (
            mock.patch.object(link, "connect"),
            mock.patch.object(link, "problem_of", return_value=Problem.OTHER),
            mock.patch("django_perfectqueue.worker.database.link.discard") as discard,
            self.assertLogs("django_perfectqueue.database", "WARNING") as logs,
        ):
            Feeder.write_usage(processor)
        discard.assert_called_once()
        self.assertIn("tasks go on. database=default process=worker pid=", logs.output[0])
        self.assertIn("error=OperationalError: disk full", logs.output[0])


class OverdueTests(TestCase):
    def test_it_is_written_while_a_task_takes_long(self):
        books = usage()
        begin(books, held())
        due = books.next_write + OVERDUE
        self.assertFalse(books.is_overdue(due - 1))
        self.assertTrue(books.is_overdue(due + 1))

    def test_between_tasks_it_is_written_sooner(self):
        books = usage()
        self.assertTrue(books.is_due(time.monotonic() + INTERVAL))
        self.assertFalse(books.is_overdue(books.next_write + OVERDUE + 1))


class SharesTests(WorkerTestCase):
    """What real workers give is what is reported."""

    def reported(self):
        [found] = run_json("pq_user", "report", "--over", "hour")
        return {share["user"]: share for share in found["shares"]}

    def test_two_users_get_what_their_weights_say(self):
        FairShare.objects.create(user="gold", weight=3)
        for user in ("basic", "gold"):
            submit_many(1_500, user=user, type="spend", data={"seconds": 0.005}, now=None)
        worker = self.worker("--processors", "2").ready()

        def both_waited_and_many_ran():
            waited = of_users().filter(eager__gt=0).values("user").distinct().count()
            # So many that what one task takes while the machine stands still is made up for.
            return waited == 2 and len(Queue().list().in_status("finished")[:1_200]) == 1_200

        wait_until(both_waited_and_many_ran)
        worker.process.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)

        shares = self.reported()
        self.assertAlmostEqual(shares["gold"]["received"], 0.75, delta=0.04)
        self.assertAlmostEqual(shares["gold"]["entitled"], 0.75, delta=0.01)
        self.assertAlmostEqual(shares["basic"]["received"], 0.25, delta=0.04)
        self.assertEqual(
            sum(share["tasks"] for share in shares.values()),
            Queue().list().in_status("finished").count(),
        )
        self.assertIsNotNone(shares["gold"]["p95"])

    def test_every_attempt_counts_however_it_ended(self):
        self.submit("retried-and-failed", "fail", user="ann")
        self.submit("finished", "echo", user="ann")
        self.burst()

        self.assertEqual(self.reported()["ann"]["tasks"], 3)

    def test_switched_off_nothing_is_kept(self):
        self.submit("k1", "echo", user="ann")
        self.burst(USAGE_TIME=0)

        self.assertFalse(Usage.objects.exists())
