"""Connections that are lost, and commits whose answers are."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial, wraps
from unittest import mock, skipUnless

from django.db import Error, IntegrityError, OperationalError, connection, transaction
from django.test import SimpleTestCase, TransactionTestCase, skipUnlessDBFeature, tag
from environ import Env

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    PreemptedError,
    SuspendedError,
)
from django_perfectqueue.models import (
    Account,
    Attempt,
    Hold,
    Lane,
    Limit,
    Outcome,
    Step,
    Task,
    Ticket,
)
from django_perfectqueue.queue import Queue, submission_of
from django_perfectqueue.store.database import transaction as patience
from django_perfectqueue.store.database.dialects import DIALECTS, postgresql_server
from django_perfectqueue.store.tasks.close import Loss

from ...databases import UnavailableError, environment_for, server_like
from ...databases.proxy import proxied
from ...factories import (
    assert_books_balance,
    elsewhere,
    finish_and_acquire,
    purge,
    submit,
    submit_many,
)
from ...waiting import wait_until

LOG = "django_perfectqueue.database"
ALL = {outcome.value: 0.0 for outcome in Outcome}
WAYS = ("before", "after", "late")


def each_way(test):
    """Run a test once for each way of losing a commit, each time with nothing stored."""

    @wraps(test)
    def run(self):
        for way in WAYS:
            with self.subTest(way), proxied(connection) as self.proxy:
                test(self, way)
                assert_books_balance(self)
            Queue().clear()
            Attempt.objects.all().delete()

    return run


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class LostCommitTests(TransactionTestCase):
    """
    The connection breaks just before a COMMIT reaches the server, just after, or while
    the server has yet to hear of it.
    """

    def setUp(self):
        self.queue = Queue()

    @contextmanager
    def lost(self, way):
        self.proxy.cuts = 0
        with self.assertLogs(LOG, "WARNING") as log:
            self.proxy.cut(way)
            yield
        self.assertEqual(self.proxy.cuts, 1)
        self.assertEqual(len(log.output), 1)
        self.assertIn("The connection to the database is lost; trying again.", log.output[0])

    def meanwhile(self, act):
        """Have someone act between the first try and the second."""
        drop = patience.drop

        def drop_and_act(*args):
            drop(*args)
            elsewhere(act)

        return mock.patch.object(patience, "drop", drop_and_act)

    def taken(self, count=1):
        """Submit tasks, and take them by the proxy."""
        submit_many(count, now=None, data={})
        tasks = self.queue.acquire(count)
        self.assertEqual(len(tasks), count)
        return tasks

    @each_way
    def test_a_submit_stores_its_task_once(self, way):
        with self.lost(way):
            self.queue.submit("k1", "report", {"a": 1})
        self.assertEqual(Task.objects.get().data, {"a": 1})
        self.assertEqual(Ticket.objects.count(), 1)

    @each_way
    def test_a_key_that_another_has_is_still_refused(self, way):
        """Even one whose task is the same in all but its id."""
        submit("k1", now=None)
        with self.lost(way), self.assertRaises(AlreadyExistsError):
            self.queue.submit("k1", "report", {})
        self.assertEqual(Task.objects.count(), 1)

    @each_way
    def test_a_submit_whose_task_has_run_meanwhile_is_not_refused(self, way):
        def run():
            for task in Queue().acquire(1):
                task.finish()

        with self.meanwhile(run), self.lost(way):
            self.queue.submit("k1", "report", {"a": 1})
        self.assertEqual(Task.objects.count(), 1)

    @each_way
    def test_many_are_stored_once(self, way):
        tasks = [{"key": f"k{number}", "type": "report"} for number in range(5)]
        with self.lost(way):
            self.assertEqual(self.queue.submit_many(tasks), 5)
        self.assertEqual((Task.objects.count(), Ticket.objects.count()), (5, 5))

    @each_way
    def test_a_child_is_stored_once_and_joined(self, way):
        [task] = self.taken()
        with self.lost(way):
            child = task.run("mail", "report")
        self.assertEqual((Task.objects.count(), Step.objects.count()), (2, 1))
        self.assertTrue(child.exists())
        with self.lost(way), self.assertRaises(SuspendedError):
            task.join(child)
        self.assertEqual(Queue()[task.key].metadata().status, "blocked")
        child.force_finish()
        [task] = self.queue.acquire(1)
        with self.lost(way):
            self.assertEqual(task.join(child), [None])

    @each_way
    def test_many_parts_are_stored_once(self, way):
        tasks = [{"key": f"k{number}", "type": "report"} for number in range(5)]
        self.assertEqual(Task.objects.count(), 0)
        with mock.patch.object(store.tasks.submit, "CHUNK", 2), self.lost(way):
            self.assertEqual(self.queue.submit_many(iter(tasks)), 5)
        self.assertEqual((Task.objects.count(), Ticket.objects.count()), (5, 5))

    @each_way
    def test_many_but_those_that_are_there_are_stored_once(self, way):
        submit("k2", now=None)
        tasks = [{"key": f"k{number}", "type": "report"} for number in range(5)]
        with self.lost(way):
            self.assertEqual(self.queue.submit_many(tasks, on_conflict="ignore"), 4)
        self.assertEqual((Task.objects.count(), Ticket.objects.count()), (5, 5))

    @each_way
    def test_a_task_is_replaced_once(self, way):
        submit("k1", data=1, now=None)
        given = submission_of(self.queue, "k1", "report", 2)
        with self.lost(way):
            store.replace([given], using="default")
        self.assertEqual(Task.objects.get().data, 2)

    @each_way
    def test_what_was_acquired_is_returned(self, way):
        """Else it would be leased to nobody, and count a crash when that lapses."""
        submit_many(3, now=None)
        store.schedules.fire_due_timers(using="default")
        with self.lost(way):
            tasks = self.queue.acquire(3)
        self.assertEqual(len(tasks), 3)
        for task in tasks:
            task.heartbeat()
        self.assertEqual(set(Ticket.objects.values_list("attempt", flat=True)), {1})
        for task in tasks:
            task.finish()

    @each_way
    def test_a_finish_is_stored_once(self, way):
        [task] = self.taken()
        with self.lost(way):
            task.finish({"rows": 3})
        self.assertEqual(task.settled, "finished")
        self.assertEqual(Task.objects.get().result, {"rows": 3})

    @each_way
    def test_a_finish_of_what_was_taken_away_is_refused(self, way):
        [task] = self.taken()
        Queue()[task.key].force_finish()
        with self.lost(way), self.assertRaises(PreemptedError):
            task.finish()

    @each_way
    def test_what_is_finished_with_an_acquire_is_so_once(self, way):
        [task] = self.taken()
        submit("next", now=None)
        with self.lost(way):
            leases, refused = finish_and_acquire(
                [task.completion()], holder=task.lease.holder, now=None
            )
        self.assertEqual(([lease.key for lease in leases], refused), (["next"], []))
        self.assertEqual(Queue()[task.key].metadata().status, "finished")

    @each_way
    def test_a_retry_counts_one_error(self, way):
        [task] = self.taken()
        with self.lost(way):
            task.retry(60)
        self.assertEqual(task.settled, "retried")
        self.assertEqual(Ticket.objects.get().errors, 1)
        self.assertEqual(Attempt.objects.count(), 1)

    @each_way
    def test_a_retry_of_what_is_to_be_cancelled_tells_so(self, way):
        [task] = self.taken()
        Queue()[task.key].cancel_request()
        with self.lost(way):
            task.retry(60)
        self.assertEqual(task.settled, "cancelled")

    @each_way
    def test_a_retry_that_the_next_attempt_has_followed_is_not_refused(self, way):
        [task] = self.taken()
        with self.meanwhile(self.take_at_once), self.lost(way):
            task.retry(0)
        self.assertEqual((task.settled, Ticket.objects.get().errors), ("retried", 1))

    def take_at_once(self):
        Queue().acquire()

    @each_way
    def test_a_failure_and_a_cancel_are_stored_once(self, way):
        for verb, status in (("fail", "failed"), ("cancel", "cancelled"), ("discard", "cancelled")):
            [task] = self.taken()
            with self.lost(way):
                getattr(task, verb)()
            self.assertEqual(Queue()[task.key].metadata().status, status)
            self.assertEqual(Attempt.objects.filter(task__key=task.key).count(), 1)

    @each_way
    def test_a_snooze_is_stored_once(self, way):
        [task] = self.taken()
        with self.lost(way):
            task.snooze(60)
        self.assertEqual((task.settled, Ticket.objects.get().errors), ("snoozed", 0))

        Ticket.objects.update(state=0, timer_at=None)
        [task] = Queue().acquire()
        Queue()[task.key].cancel_request()
        with self.lost(way):
            task.snooze(60)
        self.assertEqual(task.settled, "cancelled")

    @each_way
    def test_a_release_is_stored_once(self, way):
        [task] = self.taken()
        with self.lost(way):
            task._end(store.Ending.release())
        self.assertEqual(task.settled, "released")
        [again] = Queue().acquire()
        self.assertEqual((again.attempt, again.lease.attempt), (1, 2))

    def test_what_others_end_meanwhile_is_refused(self):
        """Someone may act between the commit that failed and the next try."""
        verbs = ("retry", "fail", "cancel", "release")
        for verb in verbs:
            with self.subTest(verb), proxied(connection) as self.proxy:
                [task] = self.taken()

                with (
                    self.meanwhile(Queue()[task.key].force_finish),
                    self.lost("before"),
                    self.assertRaises(PreemptedError),
                ):
                    getattr(task, verb)()
            Queue().clear()

    def test_an_end_that_was_purged_before_it_is_repeated_is_refused_as_deleted(self):
        """From what is left nobody can know how the task has ended."""
        for verb in ("finish", "fail", "cancel"):
            with self.subTest(verb), proxied(connection) as self.proxy:
                [task] = self.taken()
                refused = self.assertRaisesRegex(PreemptedError, "it was deleted")
                with self.meanwhile(lambda: purge(ALL)), self.lost("after"), refused:
                    getattr(task, verb)()
            self.assertEqual(Task.objects.count(), 0)
            assert_books_balance(self)

    @each_way
    def test_data_are_updated(self, way):
        [task] = self.taken()
        with self.lost(way):
            task.update_data({"page": 2})
        self.assertEqual(Task.objects.get().data, {"page": 2})
        task.heartbeat()

    def test_an_edit_is_refused_where_the_lease_has_passed_on_before_it_is_repeated(self):
        with proxied(connection) as self.proxy:
            [task] = self.taken()
            given = {"using": "default", "alive_time": 300.0, "loss": Loss()}
            give_back = partial(store.upkeep.give_back, task.lease.holder, **given)
            refused = self.assertRaises(PreemptedError)
            with self.meanwhile(give_back), self.lost("after"), refused:
                task.update_data({"page": 2})
        self.assertEqual(Task.objects.get().data, {"page": 2})

    @each_way
    def test_people_steer_once(self, way):
        submit_many(2, now=None)
        first, second = Task.objects.order_by("id")
        with self.lost(way):
            self.queue[first.key].force_finish()
        self.assertEqual(Queue()[first.key].metadata().status, "finished")
        with self.lost(way):
            self.assertTrue(self.queue[second.key].cancel_request())
        self.assertEqual(Queue()[second.key].metadata().status, "cancelled")
        with self.lost(way):
            self.queue[second.key].retry()
        self.assertEqual(Queue()[second.key].metadata().status, "waiting")
        with self.lost(way):
            self.queue[second.key].set_priority(7)
        self.assertEqual(Queue()[second.key].metadata().priority, 7)

    def test_a_priority_that_was_written_is_not_refused_when_the_task_has_ended_meanwhile(self):
        with proxied(connection) as self.proxy:
            task = submit("k1", now=None)

            with self.meanwhile(lambda: Queue().poll().finish()), self.lost("after"):
                task.set_priority(7)
            self.assertEqual(task.metadata().priority, 7)

    def test_one_that_was_not_written_is(self):
        with proxied(connection) as self.proxy:
            task = submit("k1", now=None)

            with (
                self.meanwhile(lambda: Queue().poll().finish()),
                self.lost("before"),
                self.assertRaises(AlreadyFinishedError),
            ):
                task.set_priority(7)

    def test_a_task_that_has_finished_meanwhile_can_not_be_cancelled(self):
        with proxied(connection) as self.proxy:
            task = submit("k1", now=None)

            with (
                self.meanwhile(lambda: Queue().poll().finish()),
                self.lost("before"),
                self.assertRaises(AlreadyFinishedError),
            ):
                task.cancel_request()

    @each_way
    def test_what_may_be_done_twice_is(self, way):
        [task] = self.taken()
        holder = task.lease.holder
        terms = {"using": "default", "alive_time": 300.0, "loss": Loss()}
        with self.lost(way):
            store.upkeep.give_back(holder, **terms)
        self.assertEqual(Ticket.objects.get().crashes, 0)
        with self.lost(way):
            self.queue.clear()
        self.assertEqual(Task.objects.count(), 0)

    @each_way
    def test_in_a_transaction_of_the_callers_nothing_is_repeated(self, way):
        self.proxy.cut(way)
        with self.assertRaises(Error), transaction.atomic(using="default"):
            self.queue.submit_many([{"key": "k1", "type": "report"}])
        connection.close()
        stored = int(way != "before")
        wait_until(lambda stored=stored: Task.objects.count() == stored)


@skipUnlessDBFeature("has_select_for_update_skip_locked")
class DeadConnectionTests(TransactionTestCase):
    def setUp(self):
        self.queue = Queue()

    def kill(self):
        """Have the server end this connection, as it does when it restarts."""
        if connection.vendor == "postgresql":
            ask, kill = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)"
        else:
            ask, kill = "SELECT CONNECTION_ID()", "KILL %s"
        with connection.cursor() as cursor:
            cursor.execute(ask)
            [pid] = cursor.fetchone()

        def execute():
            with connection.cursor() as cursor:
                cursor.execute(kill, [pid])

        elsewhere(execute)
        time.sleep(0.1)

    def test_one_that_has_died_unnoticed_is_replaced(self):
        """A server that has restarted since, or MySQL's wait_timeout."""
        acts = (
            lambda: self.queue.submit("k1", "report"),
            lambda: len(self.queue),
            self.queue["k1"].exists,
            self.queue["k1"].metadata,
            lambda: self.tasks.append(self.queue.poll()),
            lambda: self.tasks[0].heartbeat(),
            lambda: self.tasks[0].finish(),
            lambda: purge({"finished": 0.0}),
        )
        self.tasks = []
        for number, act in enumerate(acts):
            with self.subTest(number), self.assertLogs(LOG, "WARNING"):
                self.kill()
                act()
        self.assertEqual(Task.objects.count(), 0)

    def test_inside_a_transaction_the_error_goes_up(self):
        with self.assertRaises(Error), transaction.atomic():
            self.kill()
            self.queue.submit("k1", "report")
        self.assertEqual(Task.objects.count(), 0)

    def test_without_autocommit_the_error_goes_up(self):
        """What the caller has written before went with the connection."""
        transaction.set_autocommit(False)
        try:
            with self.assertRaises(Error):
                self.kill()
                self.queue.submit("k1", "report")
        finally:
            connection.close()
            connection.connect()

    def test_patience_has_an_end(self):
        began = time.monotonic()
        with (
            settings(HOST="/nowhere"),
            mock.patch.object(patience, "PATIENCE", 0.5),
            self.assertLogs(LOG, "WARNING") as log,
            self.assertRaises(OperationalError),
        ):
            self.queue.submit("k1", "report")
        self.assertEqual(len(log.output), 1)
        self.assertLess(time.monotonic() - began, 5)

    @skipUnless(connection.vendor == "postgresql", "MySQL has a number for it.")
    def test_who_is_not_let_in_is_not_let_in(self):
        with (
            settings(NAME="nowhere"),
            self.assertNoLogs(LOG),
            self.assertRaises(OperationalError),
        ):
            self.queue.submit("k1", "report")


@contextmanager
def settings(**changes):
    """Have this thread connect with other settings."""
    connection.close()
    given = connection.settings_dict
    options = {key: value for key, value in given["OPTIONS"].items() if key != "host"}
    host = given["OPTIONS"].get("host") or given["HOST"]
    connection.settings_dict = {**given, "HOST": host, "OPTIONS": options, **changes}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = given


@tag("thorough")
@skipUnlessDBFeature("has_select_for_update_skip_locked")
class RestartTests(TransactionTestCase):
    """The server is killed and comes back while a program submits and works."""

    def setUp(self):
        stack = ExitStack()
        self.addCleanup(stack.close)
        try:
            self.server = stack.enter_context(server_like(connection, durable=True))
        except UnavailableError as error:
            self.skipTest(str(error))
        command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(command, env=environment_for(self.server), check=True)

    def test_a_program_goes_on(self):
        self.ended, self.submitted = threading.Event(), []
        with ThreadPoolExecutor(1) as pool:
            program = pool.submit(self.live)
            try:
                for _time in range(2):
                    self.wait_for_more(program)
                    self.server.kill()
                    time.sleep(0.5)
                    self.server.start()
                self.wait_for_more(program)
            finally:
                self.ended.set()
            finished, left = program.result(60)
        self.assertCountEqual(finished, self.submitted)
        self.assertEqual(left, 0)

    def wait_for_more(self, program):
        """Wait until the program has submitted five more tasks; end if it failed."""
        enough = len(self.submitted) + 5
        wait_until(lambda: program.done() or len(self.submitted) >= enough, within=60)

    @skipUnless(connection.vendor == "postgresql", "Others keep their locks as they do.")
    def test_an_end_that_waits_for_the_disk_keeps_no_other_end_waiting(self):
        """A standby that does not answer stands for the disk; then the server is killed."""

        def finish(task):
            with self.connected():
                task.finish()

        logs = self.assertLogs(LOG, "WARNING")
        with self.connected(), logs, ThreadPoolExecutor(2) as pool:
            submit_many(2, user="ann", now=None)
            tasks = Queue().acquire(2)
            with connection.cursor() as cursor:
                cursor.execute("ALTER SYSTEM SET synchronous_standby_names = 'silent'")
                cursor.execute("SELECT pg_reload_conf()")
            wait_until(lambda: self.shown("synchronous_standby_names") == "silent")
            ends = [pool.submit(finish, task) for task in tasks]
            ended = Task.objects.filter(outcome="finished")
            try:
                wait_until(lambda: ended.count() == 2)
                self.assertFalse(any(end.done() for end in ends))
            finally:
                self.server.kill()
                connection.close()
                (self.server.data / "postgresql.auto.conf").write_text("")
                self.server.start()
            for end in ends:
                end.result(30)
            self.assertEqual(ended.count(), 2)
            assert_books_balance(self)

    def shown(self, setting):
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW {setting}")
            return cursor.fetchone()[0]

    def connected(self):
        """Have this thread's connection lead to the server of this test."""
        given = Env.db_url_config(self.server.url)
        given["HOST"] = given["OPTIONS"].pop("unix_socket", None) or given["OPTIONS"].pop("host")
        options = connection.settings_dict["OPTIONS"] | given["OPTIONS"]
        options.pop("host", None)
        return settings(**given | {"OPTIONS": options})

    def live(self):
        """Submit tasks, take and finish them; return the keys of these, and how many are left."""
        submitted, finished = self.submitted, []
        with self.connected(), self.assertLogs(LOG, "WARNING"):
            queue = Queue()
            while not self.ended.is_set():
                submitted.append(queue.submit(f"k{len(submitted)}", "report").key)
                finished += self.work(queue)
            while len(queue):
                finished += self.work(queue)
            return finished, len(queue)

    def work(self, queue):
        """Take a task and finish it; return its key, unless a crash has forgotten the acquire."""
        task = queue.poll()
        try:
            task.finish()
        except PreemptedError:
            return []
        return [task.key]


class SharedTriesTests(TransactionTestCase):
    def test_what_went_well_is_in_no_doubt(self):
        """Of two that submit a key inside one call, the second is refused."""
        with store.database.single_operation():
            submit("k1", now=None)
            with self.assertRaises(AlreadyExistsError):
                submit("k1", now=None)

    def test_who_waits_by_other_rules_is_notified_at_once(self):
        dialect = type(DIALECTS[connection.vendor])
        lost = mock.patch.object(dialect, "lost", return_value=True)
        look = mock.patch.object(Queue, "list", side_effect=OperationalError("gone"))
        with lost, look as tried, self.assertNoLogs(LOG), store.database.single_operation():
            self.assertRaises(OperationalError, len, Queue())
            self.assertEqual(tried.call_count, 1)

    def test_a_later_try_of_the_same_call_settles_the_doubt_of_the_first(self):
        """As a worker has it, which waits for its database by itself."""
        real, answers = connection._commit, [OperationalError("gone")]

        def lose_answer():
            real()
            if answers:
                raise answers.pop()

        with (
            store.database.single_operation(),
            mock.patch.object(connection, "_commit", lose_answer),
        ):
            tasks = [{"key": key, "type": "report"} for key in ("k1", "k2")]
            self.assertRaises(OperationalError, Queue().submit_many, tasks)
            Queue().submit_many(tasks)
        self.assertEqual(Task.objects.count(), 2)


class FailedCommitTests(TransactionTestCase):
    def test_a_transaction_that_is_refused_at_its_commit_is_repeated_whole(self):
        """A Galera cluster finds at the COMMIT that another node was first."""
        failures = [Error("refused"), Error("refused")]
        commit, end = connection._commit, postgresql_server.end

        def refuse():
            if failures:
                connection._rollback()
                raise failures.pop()
            commit()

        def refuse_statement(given, how):
            """On PostgreSQL the store sends COMMIT itself."""
            if "COMMIT" in how and failures:
                # By psycopg2, and by psycopg 3.
                end(given, postgresql_server.ROLLBACK)
                connection._rollback()
                raise failures.pop()
            end(given, how)

        submit("k1", now=None)
        with (
            mock.patch.object(connection, "_commit", refuse),
            mock.patch.object(postgresql_server, "end", refuse_statement),
            mock.patch.object(type(DIALECTS[connection.vendor]), "passes", return_value=True),
        ):
            taken = Queue().acquire()
        # What is left says why, where none was taken.
        left = [list(model.objects.values()) for model in (Ticket, Account, Lane, Limit, Hold)]
        self.assertEqual([task.key for task in taken], ["k1"], left)
        taken[0].finish()
        self.assertEqual(failures, [])
        assert_books_balance(self)

    def test_an_error_of_the_drivers_own_is_one_of_djangos(self):
        """As MySQLdb raises it where a cursor is closed whose connection is lost."""
        failures = [connection.Database.OperationalError("lost")]

        def act():
            if failures:
                raise failures.pop()
            return "done"

        with mock.patch.object(type(DIALECTS[connection.vendor]), "passes", return_value=True):
            self.assertEqual(store.database.with_retries(act, using="default"), "done")
        failures = [connection.Database.OperationalError("refused")]
        dialect = type(DIALECTS[connection.vendor])
        with (
            mock.patch.object(dialect, "lost", return_value=False),
            self.assertRaises(OperationalError) as raised,
        ):
            store.database.with_retries(act, using="default")
        self.assertIsInstance(raised.exception.__cause__, connection.Database.OperationalError)


class CodeTests(SimpleTestCase):
    def test_mysqls_numbers(self):
        dialect = DIALECTS["mysql"]
        for number in (1213, 1205, 1020):
            self.assertTrue(dialect.passes(OperationalError(number, "")))
            self.assertFalse(dialect.lost(OperationalError(number, "")))
        for number in (0, 1047, 1053, 1290, 1792, 1927, 2002, 2003, 2006, 2013, 2055, 4031):
            self.assertTrue(dialect.lost(OperationalError(number, "")), number)
        for error in (OperationalError(1045, ""), OperationalError(), IntegrityError(1062, "")):
            self.assertFalse(dialect.lost(error) or dialect.passes(error), error)

    def test_postgresqls_codes(self):
        dialect = DIALECTS["postgresql"]

        def coded(code, kind=OperationalError):
            error = kind("")
            error.__cause__ = Exception()
            error.__cause__.sqlstate = code
            return error

        for code in ("40001", "40P01", "55P03"):
            self.assertTrue(dialect.passes(coded(code)))
            self.assertFalse(dialect.lost(coded(code)))
        for code in ("08000", "08006", "57P01", "57P02", "57P03", "25006", "53300"):
            self.assertTrue(dialect.lost(coded(code)), code)
        for code in ("23505", "57014", "28P01", "42P01"):
            self.assertFalse(dialect.lost(coded(code)) or dialect.passes(coded(code)), code)
        self.assertTrue(dialect.lost(OperationalError("server closed the connection")))
        self.assertFalse(dialect.lost(IntegrityError("")))
        self.assertFalse(dialect.lost(OperationalError("password authentication failed")))


@skipUnless(connection.vendor == "sqlite", "Only SQLite locks the whole database.")
class LockedDatabaseTests(TransactionTestCase):
    def test_a_writer_that_takes_its_time_is_waited_for(self):
        """It holds the lock for longer than a connection waits by itself."""
        connection.close()
        settings = connection.settings_dict
        with mock.patch.dict(settings["OPTIONS"], {"timeout": 0.05}):
            ready = threading.Event()
            writer = threading.Thread(target=hold_lock, args=(ready, 1.0))
            writer.start()
            ready.wait(10)
            submit("k1", now=None)
            writer.join()
            self.assertEqual(Task.objects.count(), 1)
            connection.close()

    def test_it_is_not_waited_for_for_ever(self):
        connection.close()
        settings = connection.settings_dict
        with (
            mock.patch.dict(settings["OPTIONS"], {"timeout": 0.05}),
            mock.patch.object(patience, "PATIENCE", 0.2),
        ):
            ready = threading.Event()
            writer = threading.Thread(target=hold_lock, args=(ready, 1.5))
            writer.start()
            ready.wait(10)
            with self.assertRaisesMessage(OperationalError, "database is locked"):
                submit("k1", now=None)
            writer.join()
            connection.close()


def hold_lock(ready, seconds):
    with closing(connection), transaction.atomic():
        Task.objects.update(worker="")
        ready.set()
        time.sleep(seconds)
