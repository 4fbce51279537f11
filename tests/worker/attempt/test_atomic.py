"""Handlers whose effects and whose task's end are one transaction."""

import logging
import os
import signal
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from unittest import mock, skipUnless

from django.contrib.auth.models import Group, Permission
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test import TransactionTestCase, override_settings, skipUnlessDBFeature

from django_perfectqueue import signals, store
from django_perfectqueue.application import Decider
from django_perfectqueue.application.base import from_function
from django_perfectqueue.exceptions import AlreadyFinishedError, ConfigError
from django_perfectqueue.models import Attempt, Ticket
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.store.database.dialects import DIALECTS
from django_perfectqueue.store.database.dialects.postgresql_server import is_psycopg3
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.worker.database.link import prepare_for_fork
from django_perfectqueue.worker.process.child import fork

from ...databases.proxy import proxied
from ...factories import assert_books_balance, elsewhere, submit
from ...waiting import wait_until
from ..crews import ConcurrentTestCase
from ..own_server import OwnServerCase
from ..runners import runner_for

RUNNER = "django_perfectqueue.runner"
POINTS = ("begin", "begun", "done", "ended", "committed")
PUT_OFF = ("retried", "released", "snoozed")
QUICK = {"RETRY_WAIT": 0, "MAX_CRASHES": 9}


SECOND = {
    "finish": lambda task: task.finish("again"),
    "retry": lambda task: task.retry(),
    "release": lambda task: task.release(),
    "fail": lambda task: task.fail(),
    "update_data": lambda task: task.update_data({"late": True}),
}

WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def effect(task):
    """Do what is to be done exactly once: each time it counts."""
    Group.objects.create(name=f"{task.key} {uuid.uuid4()}")


def trying_again(handler, perform):
    """Middleware that puts a task off after an error of the database."""
    try:
        return perform()
    except IntegrityError as error:
        if handler.task.settled:
            raise
        handler.task.retry(why=store.Failure.of(error))


def effects(key="task"):
    return Group.objects.filter(name__startswith=f"{key} ").count()


def current_limit():
    """Return for how long the server lets a transaction of this connection stand still."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW idle_in_transaction_session_timeout")
        else:
            cursor.execute("SELECT @@SESSION.idle_transaction_timeout")
        return str(cursor.fetchone()[0]).removesuffix("s")


class AtomicCase(TransactionTestCase):
    def attempt(self, perform, **attributes):
        """Run the task that is due by a runner; return how that ended."""
        [self.task] = Queue().acquire()
        self.runner = runner_for(from_function(perform, atomic=True, **attributes))
        self.addCleanup(self.runner.wakeup.close)
        return self.runner.run(self.task)

    def run_with(self, perform, *, expect, **attributes):
        submit("task", now=None)
        ending = self.attempt(perform, **attributes)
        self.assertEqual((ending.word, ending.completion), (expect, None))
        assert_books_balance(self)
        return Queue()["task"].metadata()


class OutcomeTests(AtomicCase):
    def test_effects_and_the_end_are_committed_together(self):
        seen = []

        def perform(task):
            effect(task)
            transaction.on_commit(lambda: seen.append((effects(), status())))
            Queue().submit("next", "report")
            seen.append(elsewhere(lambda: (effects(), Queue()["next"].exists(), status())))
            return {"rows": 3}

        def status():
            return Queue()["task"].metadata().status

        def tell(task, **kwargs):
            seen.append((task.settled, task.key))

        signals.task_finished.connect(tell)
        self.addCleanup(signals.task_finished.disconnect, tell)
        row = self.run_with(perform, expect="finished")
        self.assertEqual(seen, [(0, False, "running"), (1, "finished"), ("finished", "task")])
        self.assertEqual((row.result, effects()), ({"rows": 3}, 1))
        self.assertTrue(Queue()["next"].exists())
        self.assertFalse(connection.in_atomic_block)

    def test_an_error_undoes_the_effects_and_counts(self):
        def perform(task):
            effect(task)
            task.finish("too early")
            raise ValueError("boom")

        row = self.run_with(perform, expect="retried")
        self.assertEqual((effects(), row.ticket.errors, row.status), (0, 1, "retrying"))
        self.assertIn("boom", Attempt.objects.get().message)

    def test_an_error_at_the_commit_is_one_of_the_handler(self):
        """
        As of a foreign key, which PostgreSQL and SQLite look at only then.
        """

        def perform(task):
            effect(task)
            Permission.objects.create(codename="x", content_type_id=1_000_000)

        row = self.run_with(perform, expect="retried")
        self.assertEqual((effects(), row.ticket.errors), (0, 1))
        self.assertIn("IntegrityError", Attempt.objects.get().error)

    def test_a_transaction_that_is_left_open_within_is_an_error(self):
        """
        What was taken for a commit would only release a savepoint.
        """

        def perform(task):
            effect(task)
            transaction.atomic().__enter__()

        row = self.run_with(perform, expect="retried")
        self.assertEqual((effects(), row.ticket.errors), (0, 1))
        self.assertIn("left a transaction open", Attempt.objects.get().message)

    def test_an_end_that_others_were_in_the_way_of_is_not_counted(self):
        """
        As by a cluster that refuses at the COMMIT.
        """

        def refuse(joint):
            raise OperationalError("deadlock")

        with (
            mock.patch.object(store.AtomicTransaction, "commit", refuse),
            mock.patch.object(type(DIALECTS[connection.vendor]), "passes", return_value=True),
        ):
            row = self.run_with(effect, expect="released")
        self.assertEqual((effects(), row.ticket.errors, row.status), (0, 0, "waiting"))
        self.assertEqual((self.attempt(effect).word, effects()), ("finished", 1))

    def test_others_that_were_in_the_way_of_the_handler_itself_are_its_error(self):
        def perform(task):
            raise OperationalError("deadlock")

        passes = mock.patch.object(
            type(DIALECTS[connection.vendor]), "passes", side_effect=lambda e: "deadlock" in str(e)
        )
        with passes:
            row = self.run_with(perform, expect="retried")
        self.assertEqual(row.ticket.errors, 1)

    def test_a_refused_end_undoes_the_effects(self):
        submit("task", now=None)
        [held] = Queue().acquire()
        stale = AcquiredTask(held.lease._replace(token=held.lease.token - 1))
        with (
            mock.patch.object(Queue, "acquire", return_value=[stale]),
            self.assertLogs(RUNNER, "WARNING"),
        ):
            ending = self.attempt(effect)
        row = Queue()["task"].metadata()
        self.assertEqual((ending.word, effects(), row.status), ("preempted", 0, "running"))

    def test_what_a_handler_settles_is_committed_with_its_effects(self):
        verbs = {
            "finish": ("finished", "finished"),
            "retry": ("retried", "retrying"),
            "release": ("released", "scheduled"),
            "fail": ("failed", "failed"),
            "cancel": ("cancelled", "cancelled"),
        }
        for number, (verb, (word, status)) in enumerate(verbs.items()):

            def perform(task, verb=verb):
                task.update_data({"page": 2})
                getattr(task, verb)()
                self.assertEqual((task.settled, task.data), ("", {"page": 2}))
                effect(task)

            with self.subTest(verb):
                row = self.run_with(perform, expect=word)
                self.assertEqual((row.status, row.data), (status, {"page": 2}))
                self.assertEqual(effects(), number + 1)
                self.assertEqual(self.task.settled, word)
            Queue().clear()

    def test_it_is_settled_once(self):
        def perform(task):
            effect(task)
            task.finish()
            for verb in SECOND:
                reported = "has ended: you finished it"
                with self.subTest(verb), self.assertRaisesMessage(AlreadyFinishedError, reported):
                    SECOND[verb](task)

        self.assertEqual(self.run_with(perform, expect="finished").status, "finished")
        self.assertEqual(effects(), 1)

    def test_who_writes_after_the_end_has_made_an_error_as_any_other(self):
        """It is not taken for a lost lease, which would count as a crash and hold the task."""
        for number, verb in enumerate(SECOND):
            for first, kind in (("finish", "AlreadyFinishedError"), ("release", "PreemptedError")):

                def perform(task, verb=verb, first=first):
                    effect(task)
                    getattr(task, first)()
                    SECOND[verb](task)

                with self.subTest(number, first=first, second=verb):
                    row = self.run_with(perform, expect="retried")
                    self.assertEqual((effects(), row.ticket.errors, row.ticket.crashes), (0, 1, 0))
                    [attempt] = row.attempts.all()
                    self.assertTrue(attempt.error.endswith(kind), attempt.error)
                    self.assertIn(f"you {first}", attempt.message)
                    Queue().clear()

    def test_what_was_asked_for_in_a_savepoint_goes_back_with_it(self):
        def perform(task):
            for outer in (transaction.atomic(), task.settling()):
                try:
                    with outer:
                        task.update_data({"page": 2})
                        task.finish("too early")
                        raise OSError("the disk is full")
                except OSError:
                    effect(task)
            task.fail("hopeless")

        row = self.run_with(perform, expect="failed")
        self.assertEqual((row.dead_letter.group, row.data, effects()), ("hopeless", {}, 2))

    def test_data_that_were_not_stored_are_forgotten(self):
        class Noting(Decider):
            def unexpected_error_raised(self, error):
                self.task.update_data({"seen": True})
                super().unexpected_error_raised(error)

        def perform(task):
            effect(task)
            task.update_data({"page": 2})
            raise OSError("the disk is full")

        row = self.run_with(perform, expect="retried", decider=Noting)
        self.assertEqual((row.data, effects()), ({"seen": True}, 0))

    def test_what_is_left_unsettled_has_done_nothing(self):
        with self.assertLogs(RUNNER, "WARNING"):
            row = self.run_with(effect, expect="left", auto_finish=False)
        self.assertEqual((effects(), row.status), (0, "running"))

    def test_middleware_that_settles_after_an_error_keeps_no_effects(self):
        def perform(task):
            effect(task)
            task.finish()
            raise IntegrityError("boom")

        row = self.run_with(perform, expect="retried", middleware=[trying_again])
        self.assertEqual((effects(), row.ticket.errors), (0, 1))

    def test_middleware_that_raises_keeps_no_effects_either(self):
        def around(handler, perform):
            perform()
            raise IntegrityError("boom")

        row = self.run_with(effect, expect="retried", middleware=[trying_again, around])
        self.assertEqual((effects(), row.ticket.errors), (0, 1))

    def test_an_error_after_the_commit_changes_nothing(self):
        def perform(task):
            effect(task)
            transaction.on_commit(fail)

        def fail():
            raise ValueError("too late")

        with self.assertLogs(RUNNER, "ERROR") as log:
            row = self.run_with(perform, expect="finished")
        self.assertIn("raised after its task was finished", log.output[0])
        self.assertEqual((effects(), row.status), (1, "finished"))

    def test_an_interruption_undoes_the_effects_but_not_after_the_commit(self):
        """
        What waits for the commit is within the time limit, too.
        """
        before = signal.getsignal(signal.SIGURG)
        self.addCleanup(signal.signal, signal.SIGURG, before)

        def perform(task):
            self.runner.interrupter.install()
            effect(task)
            sleep() if task.data["within"] else transaction.on_commit(sleep)

        def sleep():
            kill = self.runner.running.kill
            threading.Thread(target=kill, args=[ConfigError("Enough.")]).start()
            time.sleep(10)

        began = time.monotonic()
        for within, word in ((True, "retried"), (False, "finished")):
            submit("task", now=None, data={"within": within})
            with self.assertLogs(RUNNER):
                ending = self.attempt(perform)
            self.assertEqual((ending.word, effects()), (word, 0 if within else 1))
            self.assertIsInstance(ending.error, ConfigError)
            Queue().clear()
        self.assertLess(time.monotonic() - began, 9)

    def test_a_coroutine_is_refused(self):
        async def perform(task):
            """Do nothing."""

        with self.assertRaisesMessage(ConfigError, "is a coroutine and can't be atomic"):
            from_function(perform, atomic=True)


class LockTests(AtomicCase):
    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_nobody_waits_for_its_locks(self):
        """
        Neither heartbeats, nor who submits for the same user, nor who takes its next task.
        """
        for key in ("task", "other"):
            submit(key, user="ann", now=None)

        def beat():
            terms = {"using": "default", "alive_time": 60.0}
            [pulse] = store.leases.heartbeat([self.task.lease], **terms)
            return pulse.held

        def work():
            [task] = Queue().acquire()
            task.finish()
            return task.key

        def perform(task):
            effect(task)
            task.heartbeat()
            task.update_data({"page": 2})
            task.finish("done")
            self.assertTrue(elsewhere(beat))
            submit("third", user="ann", now=None)
            self.assertNotEqual(elsewhere(work), task.key)

        ending = self.attempt(perform)
        self.assertEqual((ending.word, effects(self.task.key)), ("finished", 1))

    @skipUnless(connection.vendor == "postgresql", "Only libpq lists what it receives.")
    def test_it_waits_four_times_for_the_server_besides_its_body(self):
        """For the start, the finish, the charge and the commit; then for nobody's lock."""
        if not hasattr(connection.connection, "pgconn"):
            self.skipTest("psycopg2 lists nothing.")
        store.database.end_idle_transactions(connection, after=7)
        self.addCleanup(connection.close)
        answers = []

        def trace(**kwargs):
            connection.connection.pgconn.trace(log.fileno())

        def perform(task):
            answers.append(arrived())

        def arrived():
            return Path(log.name).read_text().count("ReadyForQuery")

        signals.task_started.connect(trace)
        self.addCleanup(signals.task_started.disconnect, trace)
        submit("task", now=None)
        with tempfile.NamedTemporaryFile("w") as log:
            ending = self.attempt(perform)
            connection.connection.pgconn.untrace()
            answers.append(arrived())
        self.assertEqual((ending.word, answers), ("finished", [1, 4]))

    @skipUnless(connection.vendor == "sqlite", "Elsewhere many may write at once.")
    def test_where_only_one_may_write_its_lease_can_not_be_lost(self):
        def perform(task):
            look()
            transaction.on_commit(look)

        def look():
            seen.append(self.runner.running.alone)

        seen = []
        self.run_with(perform, expect="finished")
        self.assertEqual(seen, [True, False])

    def test_it_may_stand_still_as_long_as_its_time_limit_says(self):
        if connection.vendor != "postgresql" and not getattr(connection, "mysql_is_mariadb", False):
            self.skipTest("Neither SQLite nor MySQL ends transactions that stand still.")
        store.database.end_idle_transactions(connection, after=7)
        self.addCleanup(connection.close)
        seen = []

        def perform(task):
            seen.append(current_limit())

        def fail(task):
            perform(task)
            raise ValueError

        submit("k1", now=None)
        self.attempt(perform)
        submit("k2", now=None)
        self.attempt(perform, time_limit=20, kill_wait=5)
        submit("k3", now=None)
        self.attempt(fail)
        self.assertEqual((seen, current_limit()), (["0", "25", "0"], "7"))

        def look_at_end(task, result):
            seen.append(current_limit())

        with mock.patch.object(AcquiredTask, "finish", look_at_end):
            submit("k4", now=None)
            self.attempt(perform)
        self.assertEqual(seen[-2:], ["0", "7"])


class ProcessorTests(ConcurrentTestCase):
    def test_it_keeps_its_lease_however_long_it_takes(self):
        """
        Elsewhere its feeder renews it meanwhile; on SQLite nobody could take it anyway.
        """
        one_writer = connection.vendor == "sqlite"
        alive_time = 1.0 if one_writer else 3.0

        def lease():
            return elsewhere(Ticket.objects.get).timer_at

        def perform(task):
            began, first = time.monotonic(), lease()
            effect(task)
            if one_writer:
                wait_until(lambda: time.monotonic() - began > 1.2 * alive_time)
            else:
                wait_until(lambda: lease() > first)

        [key] = self.submit("long")
        routes = {"long": from_function(perform, atomic=True)}
        self.work(self.processor("process", routes, ALIVE_TIME=alive_time))
        self.assertEqual((self.statuses(), effects(key)), ({key: "finished"}, 1))
        self.assertFalse(Attempt.objects.exists())

    def test_it_runs_in_threads_beside_others(self):
        met = threading.Barrier(1 if connection.vendor == "sqlite" else 3)

        def perform(task):
            met.wait(30)
            effect(task)

        keys = self.submit(*["short"] * 3)
        routes = {"short": from_function(perform, atomic=True)}
        self.work(self.processor("thread", routes))
        self.assertEqual(self.statuses(), dict.fromkeys(keys, "finished"))
        self.assertEqual([effects(key) for key in keys], [1, 1, 1])


@contextmanager
def at(point, act):
    """Have something happen when an attempt has come to this point, once."""
    begin, commit = store.AtomicTransaction.begin, store.AtomicTransaction.commit
    todo = [act]

    def reach(reached):
        if reached == point and todo:
            todo.pop()()

    def begin_at(joint, **terms):
        reach("begin")
        begin(joint, **terms)
        reach("begun")

    def commit_at(joint):
        reach("ended")
        commit(joint)
        reach("committed")

    with (
        mock.patch.object(store.AtomicTransaction, "begin", begin_at),
        mock.patch.object(store.AtomicTransaction, "commit", commit_at),
    ):
        yield lambda: reach("done")


class DoubtTests(TransactionTestCase):
    """What the database says of a commit whose answer was lost."""

    def outcome(self, act, *, cancel=False):
        submit("task", now=None)
        [task] = Queue().acquire()
        if cancel:
            Queue()["task"].cancel_request()
        try:
            act(task)
            return store.leases.outcome_of(task.lease, using="default", worker=task.worker)
        finally:
            Queue()["task"].exists() and Ticket.objects.exists() and Queue()["task"].force_finish()
            Queue().clear()

    def test_it_is_seen_whatever_has_become_of_the_task(self):
        verbs = {"finish": "finished", "retry": "retried", "release": "released"}
        verbs |= {"snooze": "snoozed", "fail": "failed", "discard": "cancelled"}
        for verb, word in verbs.items():
            given = [5] if verb == "snooze" else []
            for cancel in (False, True):
                word = "cancelled" if cancel and word in PUT_OFF else word
                with self.subTest(verb, cancel=cancel):
                    self.assertEqual(
                        self.outcome(
                            lambda task, v=verb, g=given: getattr(task, v)(*g), cancel=cancel
                        ),
                        word,
                    )

    def test_it_is_seen_while_the_next_attempt_runs(self):
        def put_off_and_go_on(task, verb, *given):
            getattr(task, verb)(*given)
            Ticket.objects.update(state=0, timer_at=None)
            Queue().acquire()

        for verb, word, given in (
            ("retry", "retried", ()),
            ("release", "released", ()),
            ("snooze", "snoozed", (5,)),
        ):
            with self.subTest(verb):
                self.assertEqual(
                    self.outcome(lambda task, v=verb, g=given: put_off_and_go_on(task, v, *g)), word
                )

    def test_what_others_have_ended_is_not_its_own(self):
        def lose(task):
            lease = task.lease
            loss = Loss(crashed=[lease.task_id])
            store.upkeep.give_back(lease.holder, using="default", alive_time=300.0, loss=loss)

        def close(task):
            Queue()[task.key].force_finish()

        def give_back(task):
            terms = {"using": "default", "alive_time": 300.0, "loss": Loss()}
            store.upkeep.give_back(task.lease.holder, **terms)

        for act, cancel in ((lose, False), (lose, True), (give_back, False), (close, False)):
            with self.subTest(act=act, cancel=cancel):
                self.assertEqual(self.outcome(act, cancel=cancel), "")

    def test_what_was_not_ended_is_held(self):
        self.assertEqual(self.outcome(lambda task: None), store.leases.STILL_HELD)


@override_settings(PERFECTQUEUE=QUICK)
class ExactlyOnceTests(AtomicCase):
    """Whatever dies at whatever point, the effect is there once when the task is finished."""

    def go_on(self):
        """Attempt the task until it has ended; return how often that took."""
        attempts = 0
        while Ticket.objects.exists():
            self.attempt(effect)
            attempts += 1
            self.assertLess(attempts, 5)
        return attempts

    def assert_once(self):
        self.assertEqual((Queue()["task"].metadata().status, effects()), ("finished", 1))
        assert_books_balance(self)
        Queue().clear()
        Attempt.objects.all().delete()
        Group.objects.all().delete()

    def test_the_process_is_killed(self):
        submit("task", now=None)
        for point in POINTS:
            with self.subTest(point):
                held = self.die_at(point)
                self.assertEqual((effects(), not held), (point == "committed",) * 2)
                if held:
                    task_id, holder = held
                    loss = Loss(crashed=[task_id])
                    store.upkeep.give_back(holder, using="default", alive_time=300.0, loss=loss)
        self.assertEqual(Attempt.objects.filter(ending="lost").count(), len(POINTS) - 1)
        self.assertEqual(self.go_on(), 0)
        self.assert_once()

    def die_at(self, point):
        """Have the task run by a process that is killed at this point; return its holder."""
        prepare_for_fork()

        def work():
            with at(point, lambda: os.kill(os.getpid(), signal.SIGKILL)) as done:
                self.attempt(lambda task: (effect(task), done()))
            return 0

        child = fork(work)
        code = []
        wait_until(lambda: code.append(child.reap()) or code[-1] is not None)
        self.assertEqual(code[-1], -signal.SIGKILL)
        return Ticket.objects.values_list("task", "holder").first()

    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_the_connection_is_lost(self):
        for point in POINTS:
            with self.subTest(point), at(point, self.kill_connection) as done:
                submit("task", now=None)
                words = (
                    ("finished",) if point in ("begin", "committed") else ("released", "finished")
                )
                with self.logs_captured():
                    ending = self.attempt(lambda task, done=done: (effect(task), done()))
                self.assertEqual(ending.word, words[0])
                connection.close()
                self.assertEqual(self.go_on(), len(words) - 1)
                self.assertEqual(self.task.lease.tries, 1)
                self.assert_once()

    @override_settings(PERFECTQUEUE={**QUICK, "MAX_CRASHES": 2})
    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_a_connection_that_is_lost_each_time_is_an_error_in_the_end(self):
        submit("task", now=None)
        words = []
        for _ in range(3):
            with self.logs_captured():
                words.append(self.attempt(lambda task: self.kill_connection() or effect(task)).word)
        self.assertEqual((words, effects()), (["released", "released", "retried"], 0))
        self.assertEqual(Queue()["task"].metadata().ticket.errors, 1)

    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_the_answer_to_the_commit_is_lost(self):
        for way, words in (
            ("before", ["released", "finished"]),
            ("after", ["finished"]),
            ("late", ["finished"]),
        ):
            called = []

            def perform(task, called=called):
                effect(task)
                transaction.on_commit(lambda: called.append(task.attempt))

            with (
                self.subTest(way),
                proxied(connection) as proxy,
                at("ended", lambda proxy=proxy, way=way: proxy.cut(way)),
            ):
                submit("task", now=None)
                with self.logs_captured():
                    endings = [self.attempt(perform).word]
                self.assertEqual(proxy.cuts, 1)
                if endings != ["finished"]:
                    endings.append(self.attempt(perform).word)
                self.assertEqual((endings, called), (words, [1]))
                self.assert_once()

    @contextmanager
    def logs_captured(self):
        """Keep log lines out of the terminal."""
        with self.assertLogs("django_perfectqueue", "DEBUG"):
            logging.getLogger(RUNNER).debug("begin")
            yield

    def kill_connection(self):
        """Have the server end this connection; return when it has."""
        ask, kill, look = (
            (
                "SELECT pg_backend_pid()",
                "SELECT pg_terminate_backend(%s)",
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s",
            )
            if connection.vendor == "postgresql"
            else (
                "SELECT CONNECTION_ID()",
                "KILL %s",
                "SELECT 1 FROM information_schema.processlist WHERE id = %s",
            )
        )
        connection.ensure_connection()
        with connection.connection.cursor() as cursor:
            cursor.execute(ask)
            [pid] = cursor.fetchone()

        def execute():
            with connection.cursor() as cursor:
                cursor.execute(kill, [pid])
                wait_until(lambda: not (cursor.execute(look, [pid]), cursor.fetchone())[1])

        elsewhere(execute)


@skipUnless(connection.vendor == "postgresql", "Others keep their locks as they do.")
class DiskTests(OwnServerCase):
    def test_an_end_that_waits_for_the_disk_keeps_none_of_its_user_waiting(self):
        """A standby that does not answer stands for the disk."""
        if not is_psycopg3():
            self.skipTest("The other driver commits by itself.")
        self.migrate()
        self.worker(PROCESSORS=2)
        for key in ("first", "second"):
            self.submit(key, "wait-atomic", user="ann")
        self.wait_for_note("start", 2)
        self.addCleanup(self.have_standby, "")
        self.have_standby("silent")
        self.open_gate()
        # What waits for a standby as a whole is seen by nobody, and keeps its locks.
        wait_until(lambda: {self.status("first"), self.status("second")} == {"finished"})
        wait_until(lambda: self.execute(WAITING) >= [(2,)])

    def have_standby(self, name):
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.execute("SHOW synchronous_standby_names") == [(name,)])
