"""Keys that are free again before the row of their task is gone."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from threading import Barrier
from unittest import skipIf

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError, NotSupportedError
from django_perfectqueue.queue import Queue

from ..factories import elsewhere
from ..management.running import refused, run, run_json
from ..waiting import LONG
from . import test_held_up


def submit(unique="waiting", **options):
    return Queue().submit("index-7", "index", {"page": 7}, unique=unique, **options)


def keys():
    return list(Queue().list().order_by("pk").values_list("key", flat=True))


class UniqueTests(TestCase):
    def test_a_key_is_taken_while_its_task_waits_and_free_once_it_has_started(self):
        first = submit()
        self.assertEqual(first.key, "index-7")
        with self.assertRaisesRegex(AlreadyExistsError, "'index-7'"):
            submit()
        self.assertEqual(submit(on_conflict="ignore"), first)
        running = Queue().poll()
        second = submit()
        self.assertEqual(second.key, f"index-7~{first.id:016}")
        self.assertEqual(submit(on_conflict="ignore"), second)
        self.assertEqual(first.metadata().status, "running")
        running.finish()
        with self.assertRaises(AlreadyExistsError):
            submit()
        self.assertEqual(first.metadata().status, "finished")
        Queue().poll().finish()
        self.assertEqual(submit().key, f"index-7~{second.id:016}")
        self.assertEqual(len(keys()), 3)

    def test_a_key_that_only_looks_like_a_later_one_takes_none(self):
        for number, last in enumerate(("zzzzzzzzzzzzzzz", 15 * " ", 14 * "1" + "x", 15 * "9")):
            name = f"name-{number}"
            with self.subTest(last):
                Queue().submit(f"{name}~0{last}", "index", {})
                tasks = []
                for _repeat in range(3):
                    tasks.append(Queue().submit(name, "index", {}, unique="live"))
                    with self.assertRaises(AlreadyExistsError):
                        Queue().submit(name, "index", {}, unique="live")
                    tasks[-1].force_finish()
                later = [f"{name}~{task.id:016}" for task in tasks[:2]]
                self.assertEqual([task.key for task in tasks], [name, *later])

    def test_a_task_whose_key_is_of_another_database_has_later_ones(self):
        Queue().submit("index-7~0000000000900000", "index", {}).force_finish()
        for number in (900_001, 900_002, 900_003):
            task = submit()
            self.assertEqual(task.key, f"index-7~{number:016}")
            task.force_finish()

    def test_one_that_is_tried_again_has_started(self):
        submit()
        Queue().poll().retry(60)
        submit()
        with self.assertRaises(AlreadyExistsError):
            submit()

    def test_a_key_is_taken_until_its_task_has_ended(self):
        for end in ("finish", "fail", "cancel_request"):
            with self.subTest(end):
                task = submit("live")
                running = Queue().poll()
                with self.assertRaises(AlreadyExistsError):
                    submit("live")
                if end == "cancel_request":
                    running.release()
                    task.cancel_request()
                else:
                    getattr(running, end)(*(["no"] if end == "fail" else []))
        self.assertNotEqual(submit("live"), task)

    def test_of_its_dead_tasks_the_last_is_retried_and_no_other(self):
        dead = []
        for _repeat in range(3):
            dead.append(submit("live"))
            Queue().poll().fail("broken")

        with self.assertRaisesMessage(
            NotSupportedError, f"A later task has its key: retry '{dead[2].key}'."
        ):
            dead[0].retry()
        said = refused(self, "pq_task", "retry", "--status", "failed", "--yes")
        self.assertIn("1 task will be tried again.", said)
        self.assertIn("Tasks that are left: 2. They have changed, have a later task of", said)
        said = refused(self, "pq_task", "retry", dead[1].key, "--queue", "default")
        self.assertIn("A later task has its key", said)
        said = refused(self, "pq_task", "retry", "--key-prefix", "index-7", "--first", "1", "--yes")
        self.assertIn("0 tasks will be tried again.", said)
        statuses = [task.metadata().status for task in dead]
        self.assertEqual(statuses, ["failed", "failed", "waiting"])
        with self.assertRaises(AlreadyExistsError):
            submit("live")

    def test_a_dead_task_whose_key_only_looks_like_a_later_one_is_retried(self):
        for key in ("a~0000000000000005\n", "b~0000000000000005", "c~0900000000000005"):
            task = Queue().submit(key, "index", unique="live")
            Queue().poll().fail("broken")
            task.retry()
            self.assertEqual(task.metadata().status, "waiting", key)
            Queue().poll().finish()

    def test_the_dead_tasks_of_other_keys_are_all_retried(self):
        for options in ({"unique": "waiting"}, {"unique_for": 0.001}, {}):
            with self.subTest(options):
                dead = []
                for number in range(2):
                    name = "other" if options else f"other-{number}"
                    dead.append(Queue().submit(name, "index", **options))
                    Queue().poll().fail("broken")
                for task in dead:
                    task.retry()
                self.assertEqual({task.metadata().status for task in dead}, {"waiting"})
                Queue().clear()

    def test_without_it_a_key_is_taken_as_long_as_its_row_is_there(self):
        submit()
        Queue().poll().finish()
        with self.assertRaises(AlreadyExistsError):
            submit(None)

    def test_a_scheduled_or_blocked_task_waits(self):
        Queue().submit("before", "report")
        for name, options in (("a", {"run_at": "1h"}), ("b", {"after": ["before"]})):
            Queue().submit(name, "index", unique="waiting", **options)
            with self.subTest(options), self.assertRaises(AlreadyExistsError):
                Queue().submit(name, "index", unique="waiting")

    def test_it_is_free_so_long_after_its_submit(self):
        now = timezone.now()
        submit(None, unique_for="10m", now=now)
        with self.assertRaises(AlreadyExistsError):
            submit(None, unique_for="10m", now=now + timedelta(minutes=9))
        Queue().poll(now=now).finish()
        with self.assertRaises(AlreadyExistsError):
            submit(None, unique_for="10m", now=now + timedelta(minutes=9))
        submit(None, unique_for="10m", now=now + timedelta(minutes=11))
        with self.assertRaises(AlreadyExistsError):
            submit(None, unique_for="10m", now=now + timedelta(minutes=20))
        self.assertEqual(len(keys()), 2)

    def test_the_oldest_may_be_gone(self):
        submit(), Queue().poll().finish()
        second = submit()
        Queue().purge("0s")
        self.assertEqual(keys(), [second.key])
        with self.assertRaises(AlreadyExistsError):
            submit()
        Queue().poll().finish()
        Queue().purge("0s")
        self.assertEqual(submit().key, "index-7")

    def test_keys_that_begin_alike_are_others(self):
        for key in ("index", "index-7", "index-70", "index-7~", "index-7~backup", "ind"):
            Queue().submit(key, "index", unique="waiting")
        self.assertEqual(len(keys()), 6)

    def test_keys_that_look_like_those_behind_a_name_are_others(self):
        for name, other in (
            ("ann", "ann~0"),
            ("a!_%", "a!_%~0é"),
            ("a!_%", "a!_%~1"),
            ("x", "x~01"),
        ):
            with self.subTest(other=other):
                Queue().submit(other, "index", unique="live").cancel_request()
                first = Queue().submit(name, "index", unique="live", on_conflict="ignore")
                with self.assertRaises(AlreadyExistsError):
                    Queue().submit(name, "index", unique="live")
                first.cancel_request()
                second = Queue().submit(name, "index", unique="live")
                self.assertEqual(second.key, f"{name}~{first.metadata().pk:016}")
                with self.assertRaises(AlreadyExistsError):
                    Queue().submit(name, "index", unique="live")
                second.cancel_request()

    def test_many_at_once(self):
        given = [{"key": f"k{n % 120}", "type": "index", "unique": "waiting"} for n in range(240)]
        self.assertEqual(Queue().submit_many(given, on_conflict="ignore"), 120)
        with self.assertRaises(AlreadyExistsError):
            Queue().submit_many([*given[:120], {"key": "other", "type": "index"}])
        for task in Queue().acquire(60):
            task.finish()
        more = [*given, {"key": "other", "type": "index"}, {"key": "k119", "type": "index"}]
        self.assertEqual(Queue().submit_many(more, on_conflict="ignore"), 61)
        for task in Queue().acquire(200):
            task.finish()
        self.assertEqual(Queue().submit_many(given[:120]), 120)
        with self.assertRaisesRegex(AlreadyExistsError, "other"):
            Queue().submit_many([{"key": "n", "type": "n", "unique": "live"}, more[-2]])
        self.assertFalse(Queue()["n"].exists())

    def test_with_tags_parents_and_in_a_batch(self):
        with Queue().batch("b") as batch:
            first = batch.submit("index-7", "index", unique="live", tags=["red"])
            Queue().poll().finish()
            second = batch.submit("index-7", "index", unique="live", after=[first], tags=["blue"])
        self.assertEqual((first.tags, second.tags), (["red"], ["blue"]))
        self.assertEqual(batch.progress().total, 2)
        with self.assertRaises(AlreadyExistsError):
            batch.then("index-7", "index", unique="waiting")
        Queue().poll().finish()
        callback = batch.then("index-7", "index", unique="waiting")
        self.assertEqual(callback.key, f"index-7~{second.id:016}")
        self.assertEqual(callback.metadata().type, "index")

    def test_what_waits_for_one_of_the_same_call_waits_for_the_new_one(self):
        given = [
            {"key": "index-7", "type": "index", "unique": "live"},
            {"key": "mail", "type": "mail", "after": ["index-7"]},
        ]
        first = submit("live")
        Queue().poll().finish()
        Queue().submit_many(given)
        self.assertEqual(Queue()["mail"].metadata().status, "blocked")
        Queue().purge("0s")
        Queue().poll().finish()
        Queue().poll().finish()
        self.assertFalse(first.exists())
        given[1]["key"] = "again"
        Queue().submit_many(given)
        given[1]["key"] = "once more"
        # It waits for the one that holds the name.
        Queue().submit_many(given, on_conflict="ignore")
        self.assertEqual(Queue()["again"].metadata().status, "blocked")
        self.assertEqual(Queue()["once more"].metadata().status, "blocked")
        Queue().poll().finish()
        self.assertEqual({task.key for task in Queue().acquire(3)}, {"again", "once more"})

    def test_what_makes_no_sense_is_refused(self):
        for options in (
            {"unique": "running"},
            {"unique": ""},
            {"unique_for": "soon"},
            {"unique_for": 0},
            {"unique_by": ["page"]},
            {"on_conflict": "replace"},
        ):
            with self.subTest(options), self.assertRaises(InvalidTaskError):
                submit(**options)
        for key in (None, "x" * 239):
            with self.subTest(key), self.assertRaises(InvalidTaskError):
                Queue().submit(key, "index", unique="live")
        with self.assertRaises(InvalidTaskError):
            Queue().chain([{"key": "a", "type": "index", "unique": "live"}])
        self.assertEqual(keys(), [])
        Queue().submit("x" * 238, "index", unique="live")
        Queue().poll().finish()
        self.assertEqual(len(Queue().submit("x" * 238, "index", unique="live").key), 255)


class ArgumentTests(TestCase):
    def bill(self, data, by=("account",), type_="bill", **options):
        return Queue().submit(None, type_, data, unique_by=by, **options)

    def test_a_key_is_made_of_the_type_and_arguments(self):
        one = self.bill({"account": {"id": 7, "of": "acme"}, "at": 1})
        self.assertRegex(one.key, "^bill:[0-9a-f]{32}$")
        with self.assertRaises(AlreadyExistsError):
            self.bill({"at": 2, "account": {"of": "acme", "id": 7}})
        self.bill({"account": 8})
        self.bill({"account": 7}, type_="mail")
        self.bill({"account": None})
        self.assertEqual(len(keys()), 4)

    def test_it_is_the_same_in_every_process(self):
        key = self.bill({"account": 7}).key
        self.assertEqual(key, "bill:2baaf7be7ac9b2a6264fcf605ad96587")

    def test_all_data_can_make_it(self):
        self.bill({"a": 1, "b": [1, 2]}, True, unique="waiting")
        for by in (True, []):
            with self.assertRaises(AlreadyExistsError):
                self.bill({"b": (1, 2), "a": 1}, by, unique="waiting")
        self.bill("text", True)
        self.bill(None, True)
        Queue().poll().finish()
        self.bill({"a": 1, "b": [1, 2]}, True, unique="waiting")

    def test_data_without_the_name_is_refused(self):
        for data in ({}, None, [7], {"Account": 7}):
            with self.subTest(data), self.assertRaisesRegex(InvalidTaskError, "account"):
                self.bill(data)
        for by in ("account", 7, [["account"]], [None]):
            with self.subTest(by), self.assertRaises(InvalidTaskError):
                self.bill({"account": 7}, by)
        with self.assertRaisesRegex(InvalidTaskError, "unique_by makes the key"):
            Queue().submit("a", "bill", {"account": 7}, unique_by=["account"])

    @override_settings(
        PERFECTQUEUE={"CODECS": ["django_perfectqueue.payload.codecs.PickleCodec"]},
    )
    def test_data_that_json_can_not_hold_makes_no_key(self):
        for account in (timezone.now(), {1: 2, "b": 3}, {(1, 2): 3}):
            with self.subTest(account), self.assertRaisesRegex(InvalidTaskError, "JSON"):
                self.bill({"account": account})

    def test_it_costs_one_look_whether_or_not_there_was_another(self):
        def cost(**options):
            with CaptureQueriesContext(connection) as queries:
                Queue().submit("k", "index", **options)
            return len(queries)

        for _is_first_of_all in (True, False):
            plain = cost()
            Queue()["k"].cancel_request()
            Queue().clear()
        for _run in range(3):
            self.assertEqual(cost(unique="waiting"), plain + 1)
            Queue().poll().finish()


class DoorTests(TestCase):
    def test_the_command_submits_and_names_it(self):
        options = ("index-7", "index", "{}", "--unique", "waiting")
        first = run_json("pq_submit", *options)
        self.assertEqual(first[0]["key"], "index-7")
        self.assertIn("already has", refused(self, "pq_submit", *options, code=3))
        self.assertIn("ignored", run("pq_submit", *options, "--on-conflict", "ignore"))
        Queue().poll().finish()
        self.assertRegex(run("pq_submit", *options), r"'index-7~\d{16}' is submitted")
        run("pq_submit", "b", "index", "{}", "--unique-for", "10m")
        self.assertIn(
            "already", refused(self, "pq_submit", "b", "index", "{}", "--unique-for", "1h", code=3)
        )
        replaced = ("pq_submit", *options, "--on-conflict", "replace")
        self.assertIn("is not for a task that is unique", refused(self, *replaced))

    def test_lines_of_a_file_may_be_unique(self):
        line = {"key": None, "type": "bill", "data": {"account": 7}, "unique_by": ["account"]}
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(f"{json.dumps(line)}\n" * 3)
            file.flush()
            run("pq_submit", "--file", file.name, "--on-conflict", "ignore")
        self.assertEqual(len(keys()), 1)

    async def test_async_twins_take_it(self):
        first = await Queue().asubmit("a", "index", unique="live")
        again = await Queue().asubmit("a", "index", unique="live", on_conflict="ignore")
        self.assertEqual(first, again)


class OldSnapshotTests(test_held_up.OldSnapshotTests):
    test_a_replaced_parent_is_waited_for_anew = None
    test_a_cleared_parent_cancels_what_waits_for_it = None

    def test_the_task_that_has_the_key_now_is_found(self):
        submit()
        for is_free in (False, True):
            with self.subTest(is_free), transaction.atomic():
                keys()
                elsewhere(lambda: Queue().poll().finish())
                for _run in range(3):
                    elsewhere(lambda: [submit(), Queue().poll().finish()])
                last = elsewhere(submit)
                if is_free:
                    elsewhere(lambda: Queue().poll().finish())
                    last = submit()
                self.assertEqual(submit(on_conflict="ignore"), last)
        self.assertEqual(last.metadata().status, "waiting")


class CommittedTests(TransactionTestCase):
    def submitted(self, **options):
        """Submit on this connection; return the key, or nothing where another has it."""
        try:
            return submit(**options).key
        except AlreadyExistsError:
            return ""

    def test_of_many_at_once_one_is_stored_for_each_that_starts(self):
        def storm(count):
            with ThreadPoolExecutor(4) as pool:

                def act(_number):
                    try:
                        return self.submitted()
                    finally:
                        connection.close()

                return [key for key in pool.map(act, range(count)) if key]

        for number in range(1, 4):
            self.assertEqual(len(storm(12)), 1)
            Queue().poll()
            self.assertEqual(len(keys()), number)

    def test_tasks_start_and_end_in_the_middle_of_a_storm(self):
        stop = timezone.now() + timedelta(seconds=1.5)

        def submits(kind):
            stored = []
            while timezone.now() < stop:
                with suppress(AlreadyExistsError):
                    stored.append(Queue().submit(kind, "index", unique=kind).key)
            connection.close()
            return stored

        def runs():
            while timezone.now() < stop:
                if task := Queue().poll():
                    task.finish()
            connection.close()

        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(runs) for _ in range(2)]
            stored = [pool.submit(submits, kind) for kind in ("waiting", "live") * 2]
            given = [key for one in stored for key in one.result(60)]
            [one.result(60) for one in running]
        self.assertEqual(sorted(given), sorted(keys()))
        for kind in ("waiting", "live"):
            # Each follows another one, in one chain without a gap.
            chain = Queue().list().filter(key__startswith=kind).order_by("pk")
            chain = list(chain.values_list("pk", "key", "ticket"))
            self.assertEqual(chain[0][1], kind)
            for (before, *_), (_id, key, _ticket) in pairwise(chain):
                self.assertEqual(key, f"{kind}~{before:016}")
            self.assertFalse([one for one in chain[:-1] if one[2]])

    def test_a_running_task_ends_while_the_transaction_of_the_next_is_open(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")
        submit()
        running = Queue().poll()
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                submit()
                elsewhere(running.heartbeat)
                elsewhere(running.finish)
                elsewhere(lambda: Queue().submit("index-70", "index", unique="waiting"))
                other = pool.submit(elsewhere, self.submitted)
                self.assertFalse(wait([other], timeout=0.3).done)
                transaction.set_rollback(True)
            self.assertTrue(other.result(10))

    def test_a_retry_and_a_submit_at_the_same_moment_make_one_live(self):
        """Of the two, one commits first, and the other finds what that did."""
        for number in range(20):
            with self.subTest(number):
                dead = self.dead()
                start = Barrier(2)

                def act(verb, start=start):
                    start.wait(LONG)
                    try:
                        return verb()
                    except (AlreadyExistsError, NotSupportedError) as error:
                        return error
                    finally:
                        connection.close()

                with ThreadPoolExecutor(2) as pool:
                    verbs = (dead.retry, lambda: submit("live"))
                    results = [one.result(LONG) for one in [pool.submit(act, v) for v in verbs]]
                live = Queue().list().filter(ticket__isnull=False)
                self.assertEqual(live.count(), 1, results)
                self.assertEqual(len([one for one in results if isinstance(one, Exception)]), 1)
                Queue().clear()

    @skipIf(connection.vendor == "sqlite", "SQLite has one writer: the other waits.")
    def test_a_retry_waits_for_a_submit_that_has_yet_to_commit(self):
        dead = self.dead()
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                last = submit("live")
                retry = pool.submit(elsewhere, dead.retry)
                self.assertFalse(wait([retry], timeout=0.3).done)
            with self.assertRaisesMessage(NotSupportedError, f"retry '{last.key}'"):
                retry.result(LONG)
        self.assertEqual(dead.metadata().status, "failed")

    def dead(self):
        task = submit("live")
        Queue().poll().fail("broken")
        return task

    def test_who_began_to_read_before_sees_who_has_the_key_now(self):
        submit()
        with transaction.atomic():
            if connection.vendor != "sqlite":
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
            keys()
            if connection.vendor != "sqlite":
                elsewhere(lambda: Queue().poll().finish())
                elsewhere(lambda: [submit(), Queue().poll().finish(), submit()])
                self.assertEqual(self.submitted(), "")
                elsewhere(lambda: Queue().poll().finish())
            else:
                Queue().poll().finish()
            self.assertTrue(self.submitted())
