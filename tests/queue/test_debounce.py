"""Submits of one key that are merged into one run."""

import json
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError
from django_perfectqueue.models import DebouncedSubmit, State, Task, Ticket
from django_perfectqueue.queue import Queue

from ..examples import each_moment
from ..factories import elsewhere
from ..management.running import refused, run, run_json
from ..store.dependencies.test_deaths import run_and_die
from ..waiting import wait_until

NOW = timezone.now().replace(microsecond=0)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def submit(number, seconds=0, **options):
    options = {"debounce": 120, "at_most": 600, "now": at(seconds), **options}
    return Queue().submit("index-7", "index", {"n": number}, **options)


def runs():
    """Return the number of each run's last submit, when it is due, and how many are merged."""
    return [
        (task.data["n"], round((task.run_at - NOW).total_seconds()), task.merged)
        for task in Task.objects.order_by("pk")
    ]


class MergeTests(TransactionTestCase):
    def test_submits_are_one_run_with_the_last_data_some_time_after_the_last(self):
        for number in range(4):
            task = submit(number, 100 * number)
        self.assertEqual(runs(), [(3, 420, 4)])
        self.assertEqual(DebouncedSubmit.objects.count(), 0)
        self.assertIsNone(Queue().poll(now=at(419)))
        running = Queue().poll(now=at(421))
        self.assertEqual((running.data, running.key, task.key), ({"n": 3}, "index-7", "index-7"))
        self.assertEqual(task.metadata().created_at, NOW)

    def test_a_key_that_looks_like_one_of_a_run_holds_up_no_submit(self):
        for last in ("zzzzzzzzzzzzzzz", 15 * "9", "000000000900000", "8999999999999 9", 15 * "0"):
            with self.subTest(last):
                Queue().submit(f"index-7~0{last}", "index", {"n": "other"}).force_finish()
                for number in range(3):
                    submit(number)
                    Queue().poll(now=at(200)).finish()
                self.assertEqual(DebouncedSubmit.objects.count(), 0)
                Queue().clear()
                Queue().purge(older_than=0)
        for last in ("8" + 14 * "9", "1" + 14 * "0"):
            with self.assertRaisesMessage(InvalidTaskError, "like that of a far later task"):
                Queue().submit(f"index-7~0{last}", "index", {})

    def test_it_starts_so_long_after_the_first_at_the_latest(self):
        for number in range(12):
            submit(number, 100 * number)
        # What comes later is merged into it as long as it waits.
        self.assertEqual(runs(), [(11, 600, 12)])
        self.assertEqual(Queue().poll(now=at(601)).data, {"n": 11})

    def test_one_that_is_due_keeps_its_place_in_line_and_gets_the_last_data(self):
        for number in range(7):
            submit(number, 100 * number - 2000)
        store.schedules.fire_due_timers(using="default")
        submit(7, -1350)
        self.assertEqual(Ticket.objects.get().state, State.WAITING)
        self.assertEqual(Queue().poll().data, {"n": 7})

    def test_without_a_bound_it_waits_for_the_last(self):
        for number in range(12):
            submit(number, 100 * number, at_most=None)
        self.assertEqual(runs(), [(11, 1220, 12)])

    def test_while_it_runs_one_more_run_follows(self):
        first = submit(0)
        running = Queue().poll(now=at(121))
        again = [submit(number, 121 + number) for number in range(1, 4)]
        self.assertEqual(runs(), [(0, 120, 1), (3, 244, 3)])
        running.finish()
        self.assertEqual(first.metadata().status, "finished")
        self.assertEqual(len({task.key for task in again}), 1)
        self.assertNotEqual(again[0].key, first.key)
        Queue().poll(now=at(245)).finish()
        submit(4, 300)
        self.assertEqual(len(runs()), 3)

    def test_the_first_runs_at_once_and_one_more_if_others_come(self):
        for number in range(4):
            submit(number, number, leading=True)
        self.assertEqual(runs(), [(0, 0, 1), (3, 123, 3)])
        Queue().poll(now=at(0)).finish()
        self.assertIsNone(Queue().poll(now=at(122)))
        submit(4, 122, leading=True)
        self.assertEqual(runs()[1:], [(4, 242, 4)])
        running = Queue().poll(now=at(243))
        submit(5, 250, leading=True)
        self.assertEqual(runs()[2:], [(5, 370, 1)])
        running.finish()
        Queue().poll(now=at(371)).finish()
        submit(6, 600, leading=True)
        self.assertEqual(runs()[3:], [(6, 600, 1)])

    def test_one_alone_runs_once(self):
        submit(0, leading=True)
        Queue().poll(now=at(0)).finish()
        self.assertIsNone(Queue().poll(now=at(9999)))

    def test_its_first_run_may_have_yet_to_begin(self):
        submit(0, leading=True)
        submit(1, 60, leading=True)
        submit(2, 110, leading=True)
        self.assertEqual(runs(), [(0, 0, 1), (2, 230, 2)])

    def test_other_words_are_of_the_first(self):
        one = {"user": "ann", "priority": 3, "tags": ["red"], "limits": ["mail"], "time_limit": 9}
        submit(0, **one)
        task = submit(1, user="bob")
        row = task.metadata()
        self.assertEqual(
            (row.user, row.priority, row.limits, row.time_limit), ("ann", 3, "mail", 9)
        )
        self.assertEqual(task.tags, ["red"])

    def test_a_task_submitted_otherwise_is_left_as_it_is(self):
        Queue().submit("index-7", "index", {"n": -1}, now=NOW)
        submit(0), submit(1)
        self.assertEqual(runs(), [(-1, 0, None), (1, 120, 2)])

    def test_one_that_is_retried_or_cancelled_is_followed_by_another(self):
        submit(0)
        Queue().poll(now=at(121)).retry(1000)
        submit(1, 130).cancel_request()
        submit(2, 140)
        self.assertEqual([run[0] for run in runs()], [0, 1, 2])

    def test_many_at_once_beside_others(self):
        given = [
            {"key": f"k{n % 3}", "type": "index", "data": {"n": n}, "debounce": "2m"}
            for n in range(30)
        ]
        given.append({"key": "plain", "type": "index", "data": {"n": -1}})
        Queue().submit_many(given, now=NOW)
        self.assertEqual(
            sorted(runs()), [(-1, 0, None), (27, 120, 10), (28, 120, 10), (29, 120, 10)]
        )

    def test_its_key_may_be_made_of_its_data(self):
        for page in (7, 8, 7):
            terms = {"debounce": "2m", "unique_by": ["page"]}
            Queue().submit(None, "index", {"page": page, "n": page}, now=NOW, **terms)
        self.assertEqual(runs(), [(7, 120, 2), (8, 120, 1)])

    def test_what_makes_no_sense_is_refused(self):
        for options in (
            {"debounce": 0},
            {"debounce": "soon"},
            {"debounce": None, "at_most": 600},
            {"debounce": None, "at_most": None, "leading": True},
            {"leading": 7},
            {"run_at": "1h"},
            {"after": ["a"]},
            {"unique": "waiting"},
            {"expires_at": "1h"},
        ):
            with self.subTest(options), self.assertRaises(InvalidTaskError):
                submit(0, **options)
        with self.assertRaises(InvalidTaskError):
            Queue().submit(None, "index", debounce="2m")
        with Queue().batch("b") as batch, self.assertRaises(InvalidTaskError):
            batch.submit("index-7", "index", debounce="2m")
        self.assertFalse(DebouncedSubmit.objects.exists() or Task.objects.exists())

    def test_clear_forgets_what_has_yet_to_be_merged(self):
        with transaction.atomic():
            submit(0)
            Queue().clear()
        self.assertEqual(runs(), [])

    def test_the_command_submits_and_shows_how_many_are_merged(self):
        terms = ("--debounce", "2m", "--at-most", "10m")
        for number in range(3):
            run("pq_submit", "index-7", "index", f'{{"n": {number}}}', *terms)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            line = {"key": "index-7", "type": "index", "data": {"n": 3}, "debounce": "2m"}
            file.write(json.dumps({**line, "at_most": "10m"}))
            file.flush()
            run("pq_submit", "--file", file.name)
        self.assertEqual([(run[0], run[2]) for run in runs()], [(3, 4)])
        self.assertRegex(run("pq_task", "show", "index-7"), r"merged submits +4\n")
        self.assertEqual(run_json("pq_task", "show", "index-7")[0]["merged"], 4)
        run("pq_submit", "b", "index", '{"n": 1}', "--debounce", "2m", "--leading")
        self.assertEqual(Queue()["b"].metadata().status, "waiting")
        self.assertIn("debounce", refused(self, "pq_submit", "c", "index", "{}", "--leading"))

    async def test_async_twins_take_it(self):
        for number in range(3):
            task = await Queue().asubmit("a", "index", {"n": number}, debounce="2m")
        self.assertEqual((await task.ametadata()).data, {"n": 2})


class TransactionTests(TransactionTestCase):
    def test_nothing_is_there_before_the_commit_or_after_a_rollback(self):
        with transaction.atomic():
            task = submit(0)
            submit(1)
            self.assertEqual(runs(), [])
            with self.assertRaises(NotFoundError):
                task.metadata()
            transaction.set_rollback(True)
        self.assertEqual((runs(), DebouncedSubmit.objects.count()), ([], 0))
        with transaction.atomic():
            task = submit(2)
            submit(3, 10)
        self.assertEqual(runs(), [(3, 130, 2)])
        self.assertEqual(task.metadata().data, {"n": 3})

    def test_an_open_transaction_holds_up_no_other_submit_of_the_key(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")
        submit(0)
        with transaction.atomic():
            submit(1, 10)
            elsewhere(lambda: submit(2, 20))
            self.assertEqual(elsewhere(runs), [(2, 140, 2)])
            elsewhere(lambda: Queue().poll(now=at(141)).finish())
            elsewhere(lambda: submit(3, 150))
        # It is committed last, and merged into what waits then.
        self.assertEqual(runs(), [(2, 140, 2), (1, 130, 2)])

    def test_what_a_program_leaves_that_dies_after_its_commit_is_found(self):
        task = Queue().submit("index-7", "index", {"n": -1}, now=NOW, debounce="2m")
        with transaction.atomic():
            submit(0, 10)
            connection.run_on_commit.clear()
        self.assertEqual((task.metadata().data, DebouncedSubmit.objects.count()), ({"n": -1}, 1))
        store.records.follow(using="default")
        self.assertEqual((runs(), DebouncedSubmit.objects.count()), ([(0, 130, 2)], 0))

    def test_one_that_can_not_be_read_holds_up_no_other(self):
        damaged = ('{"x', "[]", '{"limits": [], "tags": [], "new": 1}', "{}")
        with transaction.atomic():
            for key in "abcdef":
                Queue().submit(key, "index", {"secret": "s3cret"}, debounce="2m", now=NOW)
            for key, terms in zip("abcd", damaged, strict=True):
                DebouncedSubmit.objects.filter(key=key).update(terms=terms)
            with self.assertLogs("django_perfectqueue", "ERROR") as logs:
                store.records.follow(using="default", now=NOW)
        self.assertEqual([task.key for task in Queue().list().order_by("key")], ["e", "f"])
        self.assertEqual(len(logs.output), 4)
        self.assertIn("key=a", logs.output[0])
        self.assertNotIn("s3cret", str(logs.output))
        # A program that can read it merges it.
        self.assertEqual(DebouncedSubmit.objects.count(), 4)

    def test_many_at_once_are_one_run(self):
        def act(number):
            try:
                return submit(number, leading=number % 2 == 0 and is_leading).key
            finally:
                connection.close()

        for is_leading in (False, True):
            with self.subTest(is_leading):
                Queue().clear()
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(act, range(40)))
                store.records.follow(using="default")
                found = runs()
                self.assertEqual(sum(run[2] for run in found), 40)
                self.assertLessEqual(len(found), 1 + is_leading)

    def test_runs_begin_and_end_in_the_middle_of_a_storm(self):
        stop, all_submitted = timezone.now() + timedelta(seconds=1.5), threading.Event()

        def submits(name):
            number = 0
            while timezone.now() < stop:
                number += 1
                Queue().submit("s", "index", {"n": number, "of": name}, debounce=0.01, at_most=0.05)
            connection.close()
            return number

        def works():
            seen = []
            while not all_submitted.is_set() or Queue().list().live().exists():
                if task := Queue().poll():
                    seen.append(task.data)
                    task.finish()
            connection.close()
            return seen

        with ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(works) for _ in range(2)]
            callers = [pool.submit(submits, name) for name in range(2)]
            try:
                counts = [caller.result(60) for caller in callers]
            finally:
                all_submitted.set()
            seen = [data for worker in workers for data in worker.result(60)]
        self.assertEqual(sum(run.merged for run in Task.objects.all()), sum(counts))
        self.assertEqual(len(seen), Task.objects.count())
        self.assertFalse(Queue().list().live().exists() or DebouncedSubmit.objects.exists())
        # The last of what was submitted is in the last run.
        last = Task.objects.order_by("pk").last().data
        self.assertEqual(last["n"], counts[last["of"]])


class DeathTests(TransactionTestCase):
    def test_who_dies_at_any_step_costs_no_submit_that_was_committed(self):
        for is_leading in (False, True):
            for moment in each_moment():
                with self.subTest(is_leading=is_leading, moment=moment):
                    submit(0, leading=is_leading)
                    lived = run_and_die(lambda: submit(1, 10, leading=is_leading), moment)  # noqa: B023
                    wait_until(lambda: elsewhere(self.is_merged))
                    submit(2, 20, leading=is_leading)
                    found = runs()
                    self.assertEqual(len(found), 1 + is_leading)
                    self.assertIn(sum(run[2] for run in found), (3,) if lived else (2, 3))
                    self.assertEqual(found[-1][:2], (2, 140))
                    Queue().clear()
                if lived:
                    break

    def is_merged(self):
        """A server may take a moment to see that a client is gone, and what it held is free."""
        store.records.follow(using="default")
        return not DebouncedSubmit.objects.exists()


class TestCaseTests(TestCase):
    def test_a_sweep_finds_them_where_the_commit_never_comes(self):
        submit(0), submit(1)
        Queue().poll()
        self.assertEqual(runs(), [(1, 120, 2)])
