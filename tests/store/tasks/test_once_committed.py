"""Who steers tasks in a transaction holds up nobody who runs them."""

from unittest import mock, skipIf

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError
from django_perfectqueue.models import State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain

from ...factories import (
    acquire,
    assert_books_balance,
    elsewhere,
    failed,
    finish,
    running,
    status,
    submit,
    submit_many,
)
from ..leases.test_concurrency import Processes, fork
from ..leases.test_concurrency import drain as work

LIST = "/admin/perfectqueue/task/"


class CallersTransactionTests(TransactionTestCase):
    @skipIf(connection.vendor == "sqlite", "A transaction holds up all who write.")
    def test_it_holds_up_no_acquire_no_finish_and_no_heartbeat(self):
        names = ("forced", "asked", "raised")
        tasks, held = [submit(key, user="ann", now=None) for key in names], []
        other = submit("other", user="ann", now=None)
        while len(held) < 4:
            held += acquire(10, now=None)
        dead = failed("dead", now=None)
        [own] = [lease for lease in held if lease.key == other.key]

        def others():
            pulses = store.leases.heartbeat(held, using="default", alive_time=60)
            submit("new", user="ann", now=None)
            taken = acquire(10, now=None)
            finish(own, now=None)
            finish(taken[0], now=None)
            return [pulse.held for pulse in pulses]

        with transaction.atomic():
            tasks[0].force_finish()
            self.assertIs(tasks[1].cancel_request(), False)
            tasks[2].set_priority(7)
            dead.retry()
            # Who waited for this transaction would wait until an error.
            alive = elsewhere(others)
            self.assertEqual([task.metadata().status for task in tasks], ["running"] * 3)

        self.assertEqual(alive, [True] * 4)
        self.assertEqual(status(tasks[0]), "finished")
        self.assertTrue(Ticket.objects.get(task__key="asked").cancel_requested)
        self.assertEqual(tasks[2].metadata().priority, 7)
        self.assertEqual(dead.metadata().status, "waiting")
        assert_books_balance(self)

    def test_what_is_rolled_back_steers_nothing(self):
        task = submit(now=None)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            task.cancel_request()
            1 / 0  # noqa: B018
        self.assertEqual(status(task), "waiting")

    def test_what_is_seen_to_be_in_vain_is_refused_at_once(self):
        ended, lease = running("ended", now=None)
        finish(lease, now=None)
        waiting = submit("waiting", now=None)
        with transaction.atomic():
            for verb in (ended.cancel_request, ended.force_finish, ended.retry):
                with self.assertRaises(AlreadyFinishedError):
                    verb()
            with self.assertRaises(AlreadyFinishedError):
                ended.set_priority(1)
            with self.assertRaises(NotSupportedError):
                waiting.retry()
            with self.assertRaises(NotFoundError):
                Queue()["nobody"].cancel_request()
            with self.assertRaises(NotFoundError):
                store.steer(store.force_finish, -1, using="default")

    def test_what_was_submitted_in_it_can_be_steered_in_it(self):
        with transaction.atomic():
            task = submit(now=None)
            task.set_priority(3)
            task.force_finish()
        self.assertEqual((status(task), task.metadata().priority), ("finished", 3))

    @skipIf(connection.vendor == "sqlite", "A transaction holds up all who write.")
    def test_what_has_ended_by_the_commit_stays_as_it_is(self):
        task, lease = running(now=None)
        with self.assertLogs("django_perfectqueue.queue", "INFO"), transaction.atomic():
            task.force_finish()
            elsewhere(lambda: finish(lease, now=None))
        self.assertEqual(task.metadata().worker, "tests")
        self.assertEqual(status(task), "finished")


class RequestTests(TransactionTestCase):
    """With ATOMIC_REQUESTS people steer while workers run."""

    def setUp(self):
        patched = mock.patch.dict(connection.settings_dict, ATOMIC_REQUESTS=True)
        patched.start()
        self.addCleanup(patched.stop)
        self.client.force_login(User.objects.create_superuser("boss"))

    def test_a_selection_is_steered_while_workers_run(self):
        if connection.vendor == "sqlite":
            connection.close()
        submit_many(600, now=None, user="ann")
        with Processes() as processes:
            done = fork.Event()
            for _number in range(2):
                processes.start(work_on, done)
            answers = []
            for verb in ("force_finish", "cancel") * 6:
                ids = list(Ticket.objects.order_by("?").values_list("pk", flat=True)[:40])
                data = {"ids": ",".join(map(str, ids)), "back": LIST, "_do": "1"}
                answers.append(self.client.post(f"{LIST}steer/{verb}/", data).status_code)
            done.set()
            Ticket.objects.exists()

        self.assertEqual(set(answers), {302})
        self.assertFalse(Ticket.objects.filter(state=State.RUNNING).exists())
        assert_books_balance(self)

    def test_each_task_is_steered_in_a_transaction_of_its_own(self):
        task, seen = submit(now=None), []
        force_finish = store.force_finish

        def note(*given, **more):
            seen.append(connection.in_atomic_block)
            return force_finish(*given, **more)

        with mock.patch.object(store, "force_finish", note):
            data = {"action": "force_finish", "_selected_action": [task.id]}
            self.client.post(LIST, data)
            data = {"ids": task.id, "back": LIST, "_do": "1"}
            self.client.post(f"{LIST}steer/force_finish/", data)
        self.assertEqual((seen, status(task)), ([False], "finished"))


def work_on(done):
    with open("/dev/null", "w") as log:
        work(log, done)


class TestCaseTests(TestCase):
    """A project's own tests run in a transaction that never commits."""

    def test_steering_outside_of_atomic_is_done_at_once(self):
        task = submit(now=None)
        self.assertTrue(task.cancel_request())
        self.assertEqual(status(task), "cancelled")

    def test_steering_in_atomic_is_done_where_commits_are_played(self):
        one, other, third = (submit(now=None) for _number in range(3))
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            one.cancel_request()
        with transaction.atomic():
            other.cancel_request()
            third.set_priority(2)
        self.assertEqual((status(one), status(other)), ("cancelled", "waiting"))
        drain(until=lambda run: True, raise_errors=False)
        self.assertEqual(status(other), "cancelled")
        self.assertEqual(Task.objects.get(pk=third.id).priority, 2)
