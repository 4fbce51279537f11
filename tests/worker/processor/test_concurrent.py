import asyncio
import signal
import sys
import threading
import time
from collections import Counter
from contextvars import ContextVar, copy_context
from unittest import mock

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test import override_settings

from django_perfectqueue.application import Application, Decider
from django_perfectqueue.exceptions import CancelRequestedError, GracefulProcessStopError
from django_perfectqueue.inspection import results as ends
from django_perfectqueue.models import Account, Attempt, FairShare, Task, Ticket, Usage
from django_perfectqueue.queue import AcquiredTask, Queue
from django_perfectqueue.worker.attempt import event_loop
from django_perfectqueue.worker.attempt.interrupts import SIGNAL
from django_perfectqueue.worker.attempt.surroundings import Running
from django_perfectqueue.worker.processor import executors
from django_perfectqueue.worker.processor.feeder import DONE, RECYCLED

from ...waiting import wait_until
from ..crews import ConcurrentTestCase

AT_ONCE = ("thread", "async")
PATIENCE = 30.0

reported: ContextVar[str] = ContextVar("reported", default="nothing")


class Together:
    """Handlers that return only once so many of them run at once."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count)
        self.event = asyncio.Event()
        self.missing = count

    def in_a_thread(self, task):
        self.barrier.wait(PATIENCE)

    async def in_the_loop(self, task):
        self.missing -= 1
        if not self.missing:
            self.event.set()
        await asyncio.wait_for(self.event.wait(), PATIENCE)


class AtOnceTests(ConcurrentTestCase):
    def test_as_many_run_at_once_as_there_are_places(self):
        for type_ in AT_ONCE:
            with self.subTest(type_):
                self.submit(*["wait"] * 5)
                wait = Together(5).in_a_thread
                processor = self.processor(type_, {"wait": wait}, CONCURRENCY=5)
                self.assertEqual(self.work(processor), DONE)
                self.assertEqual(processor.status.totals()["finished"], 5)
                Queue().clear()

    def test_coroutines_run_at_once_beside_functions(self):
        self.submit(*["coroutine"] * 40, *["function"] * 3)
        routes = {"coroutine": Together(40).in_the_loop, "function": Together(3).in_a_thread}
        processor = self.processor("async", routes, CONCURRENCY=50)
        self.work(processor)
        self.assertEqual(processor.status.totals()["finished"], 43)

    def test_users_with_a_cap_never_run_more_and_all_of_theirs_run(self):
        FairShare.objects.create(user="ann", max_running=2)
        for type_ in AT_ONCE:
            with self.subTest(type_):
                running, most, lock = Counter(), Counter(), threading.Lock()

                def run(task, running=running, most=most, lock=lock):
                    with lock:
                        running[task.user] += 1
                        most[task.user] = max(most[task.user], running[task.user])
                    time.sleep(0.01)
                    with lock:
                        running[task.user] -= 1

                for user in ("ann", "bob"):
                    Queue().submit_many(
                        {"key": f"{user}{number}", "type": "run", "user": user}
                        for number in range(20)
                    )
                processor = self.processor(type_, {"run": run}, CONCURRENCY=6)
                self.work(processor)
                self.assertEqual(processor.status.totals()["finished"], 40)
                self.assertLessEqual(most["ann"], 2)
                Queue().clear()

    def test_what_users_received_is_reported_of_all_that_ran(self):
        for number in range(40):
            Queue().submit(f"k{number}", "run", user="ann" if number % 4 else "bob")
        processor = self.processor("thread", {"run": lambda task: None})
        self.work(processor)
        ended = Counter()
        for row in Usage.objects.filter(others=False, type=""):
            ended[row.user] += row.ended
        self.assertEqual(ended, {"ann": 30, "bob": 10})

    def test_it_is_replaced_after_exactly_so_many_tasks(self):
        for type_ in AT_ONCE:
            with self.subTest(type_):
                self.submit(*["run"] * 10)
                options = {"CONCURRENCY": 4, "RECYCLE": {"tasks": 7}}
                processor = self.processor(type_, {"run": lambda task: None}, **options)
                self.assertEqual(self.work(processor), RECYCLED)
                self.assertEqual(processor.status.totals()["finished"], 7)
                self.assertEqual(len(Queue()), 3)
                Queue().clear()

    def test_it_runs_no_more_where_more_is_in_hand(self):
        """
        So it may be after trouble: what was being given back while others were taken is back.
        """
        for type_ in AT_ONCE:
            with self.subTest(type_):
                self.submit(*["run"] * 6)
                options = {"CONCURRENCY": 4, "RECYCLE": {"tasks": 2}}
                processor = self.processor(type_, {"run": lambda task: None}, **options)
                with mock.patch.object(processor, "room", return_value=5):
                    self.assertEqual(self.work(processor), RECYCLED)
                self.assertEqual(processor.status.totals()["finished"], 2)
                self.assertEqual(len(Queue()), 4)
                Queue().clear()

    def test_it_sleeps_while_it_can_do_nothing(self):
        processor = self.processor("thread", {}, CONCURRENCY=2)
        feeder, now = processor.feeder, time.monotonic()
        processor.more, feeder.poll_at = False, now - 1
        self.assertLess(feeder.pause(now), 0.01)
        processor.more = True
        self.assertGreater(feeder.pause(now), 1.0)
        processor.more, processor.stopping = False, True
        self.assertGreater(feeder.pause(now), 1.0)

        processor.hand.batch.append(None)
        feeder.taken_at = now - 10
        self.assertLess(feeder.pause(now), 0.01)

    def test_a_wake_up_counts_although_something_else_has_read_its_byte(self):
        """A link that waits for the database reads it."""
        for type_ in ("process", *AT_ONCE):
            with self.subTest(type_):
                processor = self.processor(type_, {}, burst=False)
                processor.resources.wakeups.note_listener()
                processor.more = False
                processor.status.seek()
                processor.status.rung = True
                began = time.monotonic()
                processor.feeder.wait()
                self.assertLess(time.monotonic() - began, 3.0)

    def test_an_acquire_does_not_pass_for_a_renewal_of_what_is_held(self):
        """
        The oldest lease would lapse unseen while tasks come and go beside it.
        """
        self.submit("run", "run")
        processor = self.processor("thread", {"run": lambda task: None})
        processor.executor.hand_out = lambda: None
        processor.feeder.take()
        acquired_at = processor.status.renewed_at
        processor.feeder.take()
        self.assertEqual(len(processor.hand.batch), 2)
        self.assertEqual(processor.status.renewed_at, acquired_at)

        processor.hand.batch.clear()
        processor.feeder.take()
        self.assertGreater(processor.status.renewed_at, acquired_at)

    def test_a_handler_that_has_settled_its_task_goes_on_in_peace(self):
        """
        The database was asked before that, and answers after it.
        """
        self.submit("run")
        processor = self.processor("thread", {})
        [lease] = processor.feeder.acquire()
        running = Running(AcquiredTask(lease), handler=mock.Mock())
        processor.hand.going[0] = running
        running.task.settled = "finished"
        processor.leases.lost(lease)
        processor.leases.cancelled(lease)
        running.handler.kill.assert_not_called()
        running.task.settled = ""
        running.task.is_settling = True
        processor.leases.lost(lease)
        running.handler.kill.assert_not_called()
        running.task.is_settling = False
        processor.leases.lost(lease)
        running.handler.kill.assert_called_once()

    def test_a_task_of_an_unknown_type_waits_and_the_others_run(self):
        self.submit("strange", "run")
        with self.assertLogs("django_perfectqueue.processor", "WARNING"):
            self.work(self.processor("thread", {"run": lambda task: None}))
        self.assertEqual(self.statuses(), {"strange-0": "scheduled", "run-1": "finished"})

    def test_a_task_that_is_taken_again_begins_when_its_handler_has_ended(self):
        """
        A crash of the server forgot that it was acquired, so it is in line again.
        """
        for type_ in AT_ONCE:
            with self.subTest(type_):
                gate, begun, going, most = threading.Event(), [], [], []

                def run(task, gate=gate, begun=begun, going=going, most=most):
                    going.append(task)
                    begun.append(task.lease.token)
                    most.append(len(going))
                    try:
                        gate.wait(PATIENCE)
                    finally:
                        going.remove(task)

                self.submit("run")
                processor = self.processor(type_, {"run": run}, burst=False, CONCURRENCY=3)

                def forget(processor=processor, hand=processor.hand, gate=gate, begun=begun):
                    try:
                        wait_until(lambda: begun)
                        rows = Ticket.objects.filter(token=begun[0])
                        # At once: it may be taken again between the two.
                        with transaction.atomic():
                            Account.objects.update(running=0, has_waiting=True)
                            rows.update(state=0, attempt=0, holder=None, token=None, timer_at=None)
                        wait_until(
                            lambda: (
                                processor.hand.batch and processor.hand.running()[0].reasons_sent
                            )
                        )
                        self.assertEqual(len(begun), 1)
                        gate.set()
                        wait_until(lambda: self.statuses() == {"run-0": "finished"})
                    finally:
                        gate.set()
                        processor.stop()
                        connections.close_all()

                self.beside(forget)
                with self.assertLogs("django_perfectqueue.runner", "WARNING"):
                    self.work(processor)
                self.assertEqual((len(begun), max(most)), (2, 1))
                self.assertEqual(Account.objects.get().running, 0)
                Queue().clear()


class ErrorTests(ConcurrentTestCase):
    def test_an_error_of_one_harms_no_other(self):
        async def fail_in_the_loop(task):
            raise ValueError("boom")

        async def leave_in_the_loop(task):
            sys.exit("as it should")

        def fail(task):
            raise ValueError("boom")

        def leave(task):
            sys.exit("as it should")

        async def run(task):
            return task.key

        routes = {
            "fail": fail,
            "leave": leave,
            "afail": fail_in_the_loop,
            "aleave": leave_in_the_loop,
            "run": run,
        }
        for type_ in ("process", *AT_ONCE):
            with self.subTest(type_):
                before = signal.getsignal(SIGNAL)
                self.submit(*routes, "run")
                processor = self.processor(type_, routes)
                self.work(processor)
                signal.signal(SIGNAL, before)
                counts = processor.status.totals()
                self.assertEqual((counts["retried"], counts["finished"]), (4, 2))
                errors = set(Attempt.objects.values_list("error", flat=True))
                self.assertEqual(errors, {"builtins.ValueError", "builtins.SystemExit"})
                Queue().clear()

    def test_a_decider_may_be_a_coroutine(self):
        class Choice(Decider):
            async def unexpected_error_raised(self, error):
                await asyncio.sleep(0)
                await self.task.afail("Hopeless", str(error))

        class Hopeless(Application):
            decider = Choice

            async def perform(self):
                raise ValueError("boom")

        for type_ in AT_ONCE:
            with self.subTest(type_), self.assertLogs("django_perfectqueue.runner", "ERROR"):
                self.submit("hopeless")
                self.work(self.processor(type_, {"hopeless": Hopeless}))
                row = Queue()["hopeless-0"].metadata()
                self.assertEqual((row.status, row.dead_letter.message), ("failed", "boom"))
                Queue().clear()

    def test_what_a_handler_begins_beside_itself_does_not_end_the_loop(self):
        async def leave(task):
            async def beside():
                sys.exit("as it should")

            begun = asyncio.create_task(beside())
            await asyncio.wait([begun])
            return str(begun.exception())

        self.submit("leave")
        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            self.work(self.processor("async", {"leave": leave}))
        self.assertEqual(Queue()["leave-0"].metadata().result, "as it should")

    def test_a_stop_in_a_handler_stops_the_processor_and_lets_the_others_end(self):
        started = threading.Event()

        def interrupt(task):
            started.wait(PATIENCE)
            raise GracefulProcessStopError

        def run(task):
            started.set()
            wait_until(lambda: processor.stopping)

        self.submit("interrupt", "run")
        processor = self.processor("thread", {"interrupt": interrupt, "run": run}, burst=False)
        self.assertEqual(self.work(processor), DONE)
        self.assertEqual(self.statuses(), {"interrupt-0": "waiting", "run-1": "finished"})


class InterruptionTests(ConcurrentTestCase):
    def setUp(self):
        self.seen = []

    def function(self, task):
        """Run until it is cancelled."""
        try:
            wait_until(lambda: self.seen and self.enough.is_set(), within=PATIENCE)
        except CancelRequestedError as error:
            self.seen.append((task.key, str(error)))
            raise

    async def coroutine(self, task):
        try:
            while not (self.seen and self.enough.is_set()):
                await asyncio.sleep(0.02)
        except asyncio.CancelledError as error:
            self.seen.append((task.key, str(error.args[0])))
            raise

    def test_an_idle_loop_closes_the_connections_of_its_threads(self):
        async def query(task):
            await sync_to_async(Queue().list().count)()

        self.submit("query")
        processor = self.processor("async", {"query": query}, burst=False)
        closed, sync_calls = threading.Event(), processor.event_loop.sync_calls

        def stop_once_closed():
            try:
                wait_until(closed.is_set)
            finally:
                processor.stop()
                connections.close_all()

        self.beside(stop_once_closed)
        disconnect = sync_calls.disconnect

        def noted():
            disconnect()
            closed.set()

        with (
            mock.patch.object(executors, "IDLE", 0.05),
            mock.patch.object(sync_calls, "disconnect", noted),
        ):
            self.work(processor)

    def test_a_cancel_reaches_the_task_that_it_is_meant_for_and_no_other(self):
        for type_, kind in (
            ("thread", "function"),
            ("thread", "coroutine"),
            ("async", "coroutine"),
        ):
            with self.subTest(type_, kind=kind):
                self.seen.clear()
                self.enough = threading.Event()
                self.submit(*[kind] * 3)
                routes = {kind: getattr(self, kind)}
                processor = self.processor(type_, routes, burst=False)

                def cancel_one(processor=processor, kind=kind):
                    try:
                        wait_until(lambda: len(processor.hand.running()) == 3)
                        Queue()[f"{kind}-1"].cancel_request()
                        wait_until(lambda: len(processor.hand.running()) == 2)
                    finally:
                        self.enough.set()
                        processor.stop()
                        connections.close_all()

                self.beside(cancel_one)
                self.work(processor)
                reported = f"Task '{kind}-1' is to be cancelled."
                self.assertEqual(self.seen, [(f"{kind}-1", reported)])
                self.assertEqual(
                    list(self.statuses().values()).count("finished"), 2, self.statuses()
                )
                self.assertEqual(Queue()[f"{kind}-1"].metadata().status, "cancelled")
                Queue().clear()

    def test_a_handler_may_be_notified_in_its_loop(self):
        """
        It is on a graceful stop, too, on which nothing is raised in it.
        """

        class Listening(Application):
            async def kill(self, reason):
                self.asked.set()

            async def perform(self):
                self.asked = asyncio.Event()
                ready.set()
                await asyncio.wait_for(self.asked.wait(), PATIENCE)

        for type_ in AT_ONCE:
            with self.subTest(type_):
                ready = threading.Event()
                self.submit("listen")
                processor = self.processor(type_, {"listen": Listening}, burst=False)
                self.beside(lambda ready=ready, it=processor: ready.wait(PATIENCE) and it.stop())
                self.work(processor)
                self.assertEqual(self.statuses(), {"listen-0": "finished"})
                Queue().clear()

    def test_a_stop_lets_those_that_run_end_and_gives_the_rest_back(self):
        for type_ in AT_ONCE:
            with self.subTest(type_):
                gate = threading.Event()
                self.submit(*["run"] * 6)
                routes = {"run": lambda task, gate=gate: gate.wait(PATIENCE) and None}
                options = {"CONCURRENCY": 2, "TASK_PREFETCH": 2, "burst": False}
                processor = self.processor(type_, routes, **options)

                def stop(processor=processor, gate=gate):
                    try:
                        wait_until(
                            lambda: len(processor.hand.running()) == 2 and processor.hand.batch
                        )
                        processor.stop()
                        wait_until(lambda: Queue().list().in_status("waiting").count() == 4)
                    finally:
                        gate.set()
                        connections.close_all()

                self.beside(stop)
                self.work(processor)
                self.assertEqual(Counter(self.statuses().values()), {"finished": 2, "waiting": 4})
                Queue().clear()


class SurroundingsTests(ConcurrentTestCase):
    def test_a_thread_keeps_its_connection_and_leaves_none_behind(self):
        used = set()

        def run(task):
            Task.objects.exists()
            used.add((threading.get_ident(), id(connection.connection)))

        self.submit(*["run"] * 200)
        before = set(threading.enumerate())
        self.work(self.processor("thread", {"run": run}, CONCURRENCY=4))
        self.assertLessEqual(len(used), 4)
        self.assertEqual(len({thread for thread, _link in used}), len(used))
        self.assertEqual(set(threading.enumerate()) - before, set())

    def test_each_of_as_many_coroutines_as_run_at_once_has_a_connection(self):
        used = set()

        def look():
            Task.objects.exists()
            used.add((threading.get_ident(), id(connection.connection)))

        async def run(task):
            await sync_to_async(look)()
            return await Task.objects.acount()

        self.submit(*["run"] * 30)
        before = set(threading.enumerate())
        processor = self.processor("async", {"run": run}, CONCURRENCY=10)
        self.work(processor)
        self.assertEqual(processor.status.totals()["finished"], 30)
        self.assertLessEqual(len(used), 10)
        self.assertEqual(len({thread for thread, _link in used}), len(used))
        self.assertEqual(set(threading.enumerate()) - before, set())

    def test_a_transaction_that_a_coroutine_has_left_open_is_rolled_back(self):
        def spoil():
            transaction.atomic().__enter__()
            FairShare.objects.all().delete()

        async def run(task):
            await sync_to_async(spoil)()

        FairShare.objects.create(user="ann")
        for type_ in AT_ONCE:
            with self.subTest(type_):
                self.submit("run")
                self.work(self.processor(type_, {"run": run}))
                self.assertTrue(FairShare.objects.exists())
                Queue().clear()

    def test_connections_that_can_not_be_cleaned_take_no_result_away(self):
        async def coroutine(task):
            await Task.objects.acount()
            return "done"

        [key] = self.submit("coroutine")
        with (
            mock.patch.object(event_loop, "ConnectionCleanup") as cleanup,
            self.assertLogs("django_perfectqueue.runner", "ERROR"),
        ):
            cleanup.return_value.run.side_effect = OSError("broken")
            self.work(self.processor("async", {"coroutine": coroutine}))
        self.assertEqual(Queue()[key].metadata().result, "done")

    def test_what_its_submitter_has_set_is_found_by_each_kind_of_handler(self):
        def function(task):
            return reported.get()

        async def coroutine(task):
            return reported.get()

        def submit():
            reported.set("something")
            return self.submit("function", "coroutine")

        with override_settings(PERFECTQUEUE={"CONTEXT": [f"{__name__}.reported"]}):
            for type_ in ("process", *AT_ONCE):
                with self.subTest(type_):
                    before = signal.getsignal(SIGNAL)
                    copy_context().run(submit)
                    self.submit("bare")
                    routes = {"function": function, "coroutine": coroutine, "bare": function}
                    self.work(self.processor(type_, routes, CONCURRENCY=1))
                    signal.signal(SIGNAL, before)
                    results = {task.type: task.result for task in Queue().list()}
                    said = dict.fromkeys(("function", "coroutine", "bare"), "something")
                    self.assertEqual(results, {**said, "bare": "nothing"})
                    Queue().clear()

    def test_who_waits_for_what_it_runs_has_the_result(self):
        [key] = self.submit("slow")
        answers, begun = [], threading.Event()

        def wait():
            answers.append(Queue()[key].wait(PATIENCE))
            connections.close_all()

        def slow(task):
            begun.wait(PATIENCE)
            return "done"

        class ResultWaiter(ends.ResultWaiter):
            def wait(self):
                begun.set()
                super().wait()

        with mock.patch.object(ends, "ResultWaiter", ResultWaiter):
            self.beside(wait)
            self.work(self.processor("thread", {"slow": slow}))
            wait_until(lambda: answers)
        self.assertEqual(answers, ["done"])

    def test_what_a_task_sets_in_its_context_is_gone_with_it(self):
        def function(task):
            before = reported.get()
            reported.set("something")
            return before

        async def coroutine(task):
            return function(task)

        for type_ in ("process", *AT_ONCE):
            with self.subTest(type_):
                before = signal.getsignal(SIGNAL)
                self.submit(*["function", "coroutine"] * 3)
                routes = {"function": function, "coroutine": coroutine}
                self.work(self.processor(type_, routes, CONCURRENCY=1))
                signal.signal(SIGNAL, before)
                results = {task.result for task in Queue().list()}
                self.assertEqual(results, {"nothing"})
                Queue().clear()
