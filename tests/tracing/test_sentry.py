"""What Sentry gets of tasks in each type of processors: its own SDK, a transport in memory."""

import asyncio
import logging
import signal
import time
from unittest import SkipTest, mock

from django.test import override_settings, tag

try:
    import sentry_sdk
    import sentry_sdk.crons
    from sentry_sdk.transport import Transport
except ImportError:
    raise SkipTest("sentry-sdk is not installed.") from None

from django_perfectqueue.application import Dispatch
from django_perfectqueue.backend.handler import with_django_tasks
from django_perfectqueue.exceptions import TimeLimitError
from django_perfectqueue.lib import running
from django_perfectqueue.queue import Queue
from django_perfectqueue.tracing.sentry import PerfectQueueIntegration
from django_perfectqueue.worker.attempt.interrupts import SIGNAL, MainThreadInterrupter
from tests.backend import jobs
from tests.worker.crews import ConcurrentTestCase

TYPES = ("process", "thread", "async")


class Memory(Transport):
    def __init__(self, options=None):
        super().__init__(options)
        self.events, self.items = [], []

    def capture_envelope(self, envelope):
        self.items += [(item.type, item.payload.json or {}) for item in envelope.items]
        if event := envelope.get_event():
            self.events.append(event)


def greet(task):
    sentry_sdk.set_user({"id": task.data})
    sentry_sdk.set_tag("greeted", task.data)


def fail(task):
    raise ValueError(f"no {task.data}")


async def agreet(task):
    greet(task)
    await asyncio.sleep(0)


async def afail(task):
    await asyncio.sleep(0)
    sentry_sdk.set_tag("own", task.data)
    await asyncio.sleep(0)
    fail(task)


@sentry_sdk.crons.monitor(monitor_slug="nightly")
def nightly(task):
    if task.data:
        fail(task)


class Transaction:
    """The middleware of the page on integrations."""

    def around_perform(self, handler, perform):
        with sentry_sdk.start_transaction(op="queue.process", name=handler.task.type):
            return perform()

    async def aaround_perform(self, handler, perform):
        with sentry_sdk.start_transaction(op="queue.process", name=handler.task.type):
            return await perform()


@tag("any-database")
class SentryTests(ConcurrentTestCase):
    def setUp(self):
        self.transport = Memory()
        sentry_sdk.init(
            dsn="http://key@localhost/1",
            transport=self.transport,
            integrations=[PerfectQueueIntegration()],
            auto_enabling_integrations=False,
            traces_sample_rate=1.0,
        )
        self.addCleanup(sentry_sdk.init)
        self.addCleanup(setattr, running, "begin", running.running.set)
        # The SDK sets up each integration once in a process.
        PerfectQueueIntegration.setup_once()

    def test_an_interrupt_that_its_logging_has_caught_is_raised_again(self):
        self.addCleanup(signal.signal, SIGNAL, signal.getsignal(SIGNAL))
        interrupter = MainThreadInterrupter()
        interrupter.install()

        class Slow:
            def __str__(self):
                interrupter.interrupt("token", TimeLimitError("Now."))
                time.sleep(0)
                return ""

        def work():
            logging.getLogger("shop").warning(Slow())
            interrupter.remind()
            time.sleep(0)

        # Else logging prints the interrupt, which is raised while it formats a record.
        quiet = mock.patch.object(logging, "raiseExceptions", False)
        with quiet, self.assertRaises(TimeLimitError):
            interrupter.call("token", work)

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1})
    def test_each_task_has_a_scope_of_its_own_and_a_failure_is_one_event(self):
        routes = {"greet": greet, "fail": fail, "agreet": agreet, "afail": afail}
        for type_ in TYPES:
            with self.subTest(type_):
                self.transport.events.clear()
                Queue().clear()
                for number in range(12):
                    for word in ("greet", "fail", "agreet", "afail"):
                        Queue().submit(f"{word}-{number}", word, number, user="ann")
                self.work(self.processor(type_, routes, CONCURRENCY=4))
                events = self.transport.events
                self.assertEqual(len(events), 24)
                self.assertEqual(len({one["contexts"]["trace"]["trace_id"] for one in events}), 24)
                for event in events:
                    self.assert_own(event)

    def assert_own(self, event):
        word, _, number = event["contexts"]["perfectqueue"]["key"].partition("-")
        self.assertEqual(event["transaction"], word)
        self.assertEqual(event["exception"]["values"][-1]["value"], f"no {number}")
        self.assertNotIn("id", event.get("user", {}), event)
        self.assertEqual(event.get("tags", {}), {"own": int(number)} if word == "afail" else {})

    def test_a_task_of_django_that_fails_is_one_event(self):
        routes = with_django_tasks(Dispatch).routes
        for type_ in TYPES:
            with self.subTest(type_):
                self.transport.events.clear()
                jobs.boom.enqueue("again")
                self.work(self.processor(type_, routes))
                [event] = self.transport.events
                self.assertEqual(event["transaction"], "tests.backend.jobs.boom")

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 1, "MIDDLEWARE": [f"{__name__}.Transaction"]})
    def test_check_ins_and_transactions_say_how_each_ended(self):
        routes = {"nightly": nightly, "agreet": agreet, "afail": afail}
        for type_ in TYPES:
            with self.subTest(type_):
                self.transport.items.clear()
                Queue().clear()
                for key, word in (("a", "nightly"), ("b", "agreet"), ("c", "afail")):
                    Queue().submit(key, word)
                Queue().submit("d", "nightly", 1)
                self.work(self.processor(type_, routes))

                items = self.transport.items
                check_ins = sorted(one["status"] for kind, one in items if kind == "check_in")
                self.assertEqual(check_ins, ["error", "in_progress", "in_progress", "ok"])
                ended = {
                    one["contexts"]["perfectqueue"]["key"]: one["contexts"]["trace"].get("status")
                    for kind, one in items
                    if kind == "transaction"
                }
                failed = {key for key, status in ended.items() if status == "internal_error"}
                self.assertEqual((sorted(ended), failed), (["a", "b", "c", "d"], {"c", "d"}))
