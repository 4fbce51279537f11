import asyncio
import sys
import time
from unittest import mock

from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue.application import Application, Dispatch, Fixed, handler
from django_perfectqueue.application import middleware as limits
from django_perfectqueue.application import middleware as recycle
from django_perfectqueue.application.base import from_function
from django_perfectqueue.application.dispatch import Registry
from django_perfectqueue.application.middleware import (
    MemoryLimit,
    ReportErrors,
    RetryOn,
    TimeLimit,
    arounds,
)
from django_perfectqueue.checks.settings import check_imported
from django_perfectqueue.conf import Options
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    ConfigError,
    GracefulProcessStopError,
)
from django_perfectqueue.models import Attempt, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.verdicts import Discard, Snooze
from django_perfectqueue.worker.processor.pacing import Recycling

from ..factories import submit
from ..worker.crews import ConcurrentTestCase
from ..worker.runners import runner_for
from . import surroundings

PLACE = "tests.application.surroundings"
EVERYWHERE = {"MIDDLEWARE": [f"{PLACE}.Both"]}


def layer(name, steps):
    """Return middleware for functions that notes its name before and after."""

    def around(handler, perform):
        steps.append(name)
        result = perform()
        steps.append(f"/{name}")
        return result

    return around


def around_for_all(*paths):
    return override_settings(PERFECTQUEUE={"MIDDLEWARE": [f"{PLACE}.{path}" for path in paths]})


class ChainTests(SimpleTestCase):
    def run_with(self, *middleware, perform=lambda task: "result"):
        return from_function(perform, middleware=middleware)(None).run()

    def test_that_for_all_is_outermost_then_that_of_bases_and_the_own(self):
        steps = []
        base, own, both = (layer(name, steps) for name in ("base", "own", "both"))

        class Base(Application):
            middleware = [both, base]

            def before_perform(self):
                steps.append("before")
                return True

        class Own(Base):
            middleware = [*Base.middleware, own]

            def perform(self):
                steps.append("perform")

        first = mock.patch.object(surroundings, "only_functions", layer("all", steps))
        with first, around_for_all("only_functions"):
            Own(None).run()
        inner = ["all", "both", "base", "own", "before", "perform"]
        self.assertEqual(steps, [*inner, "/own", "/base", "/both", "/all"])

    def test_it_sees_and_may_change_the_result(self):
        def double(handler, perform):
            return perform() * 2

        self.assertEqual(self.run_with(double), "resultresult")

    def test_it_may_do_without_performing(self):
        performed = []

        def refuse(handler, perform):
            return "no"

        self.assertEqual(self.run_with(refuse, perform=performed.append), "no")
        self.assertEqual(performed, [])

    def test_without_any_nothing_is_called_in_between(self):
        called = []
        handler = from_function(lambda task: called.append(sys._getframe(2)))(None)
        frame = sys._getframe()
        arounds[type(handler)](handler)
        self.assertEqual(called, [frame])

    def test_of_a_class_one_object_serves_all_handlers(self):
        with override_settings(PERFECTQUEUE=EVERYWHERE):
            for _ in range(2):
                self.assertTrue(
                    arounds[from_function(lambda task: None, middleware=[surroundings.Both])]
                )
        self.assertLessEqual(surroundings.Both.made, 1)

    def test_a_coroutine_is_awaited_within_coroutines(self):
        steps = []

        async def around(handler, perform):
            steps.append("begin")
            return await perform() + "!"

        async def perform(task):
            return "result"

        kind = from_function(perform, middleware=[around])
        self.assertEqual((kind(None).run(), steps), ("result!", ["begin"]))

    def test_what_is_not_for_a_handler_of_its_kind_is_refused(self):
        async def coroutine(task):
            """Do nothing."""

        for function, name in (
            (coroutine, "only_functions"),
            (lambda task: None, "only_coroutines"),
        ):
            with around_for_all(name), self.assertRaisesMessage(ConfigError, f"{PLACE}.{name}"):
                type("One", (Dispatch,), {"routes": {"report": function}}).load()

    def test_what_is_none_is_refused_with_its_place(self):
        for given, said in (
            (["nowhere.at_all"], "can't be imported"),
            ([f"{PLACE}.no_middleware"], "is no middleware"),
            ([7], "is no middleware"),
            ([surroundings.Demanding], "can't be made without arguments"),
            ("a.path", "must be a list"),
        ):
            kind = from_function(lambda task: None, middleware=given)
            with self.subTest(given), self.assertRaisesMessage(ConfigError, said):
                arounds[kind]

    def test_a_check_tells_what_is_wrong_for_all(self):
        with override_settings(PERFECTQUEUE=EVERYWHERE):
            self.assertEqual(check_imported(), [])
        with around_for_all("nothing"):
            [message] = check_imported()
        self.assertEqual(message.id, "perfectqueue.E015")
        self.assertIn(f"PERFECTQUEUE['MIDDLEWARE'] names '{PLACE}.nothing'", message.msg)

    def test_handler_takes_it(self):
        steps = []
        around = layer("own", steps)

        @handler("middleware-given", middleware=[around])
        def perform(task):
            steps.append("perform")

        self.addCleanup(Registry.routes.pop, "middleware-given")
        Registry.handler_for("middleware-given")(None).run()
        self.assertEqual(steps, ["own", "perform", "/own"])


class ProcessorTests(ConcurrentTestCase):
    async def coroutine(self, task):
        """Do nothing."""

    def test_it_stands_around_handlers_of_all_kinds_in_all_processors(self):
        for type_ in ("process", "thread", "async"):
            surroundings.reported.clear()
            with self.subTest(type_), override_settings(PERFECTQUEUE=EVERYWHERE):
                routes = {"function": lambda task: None, "coroutine": self.coroutine}
                keys = self.submit("function", "coroutine")
                self.work(self.processor(type_, routes))
                steps = {(step, key) for key in keys for step in ("begin", "end")}
                self.assertEqual(set(surroundings.reported), steps)
                self.assertEqual(self.statuses(), dict.fromkeys(keys, "finished"))
            Queue().clear()

    def test_errors_of_coroutines_are_reported_and_tried_again(self):
        async def perform(task):
            raise ConnectionError("boom")

        reported = []

        def report(error, facts):
            reported.append(facts["key"])

        around = [RetryOn(ConnectionError, wait=60), ReportErrors(report)]
        [key] = self.submit("coroutine")
        with self.assertLogs("django_perfectqueue", "WARNING") as log:
            routes = {"coroutine": from_function(perform, middleware=around)}
            self.work(self.processor("async", routes))
        self.assertEqual(Ticket.objects.get(task__key=key).errors, 1)
        self.assertEqual(reported, ["coroutine-0"])
        self.assertIn("A task is tried again after an error", log.output[0])

    def test_a_time_limit_breaks_off_handlers_of_all_kinds(self):
        def function(task):
            until = time.monotonic() + 10
            while time.monotonic() < until:
                time.sleep(0.01)

        async def coroutine(task):
            await asyncio.sleep(10)

        limited = {"middleware": [TimeLimit(0.1)], "max_attempts": 1}
        for type_ in ("process", "async"):
            routes = {
                "function": from_function(function, **limited),
                "coroutine": from_function(coroutine, **limited),
            }
            keys = self.submit("function", "coroutine")
            began = time.monotonic()
            with self.subTest(type_), self.assertLogs("django_perfectqueue.runner", "ERROR"):
                self.work(self.processor(type_, routes))
                self.assertLess(time.monotonic() - began, 9)
                self.assertEqual(self.statuses(), dict.fromkeys(keys, "failed"))
                self.assertTrue(all("TimeLimitError" in one.error for one in Attempt.objects.all()))
            Queue().clear()


class RunnerCase(TestCase):
    def run_with(self, perform, *middleware, expect, data=None, **attributes):
        key = f"task-{expect}-{Queue().list().count()}"
        submit(key, now=None, data=data or {})
        [task] = Queue().acquire()
        runner = runner_for(from_function(perform, middleware=middleware, **attributes))
        self.addCleanup(runner.wakeup.close)
        self.addCleanup(runner.event_loop.close)
        ending = runner.run(task)
        self.assertEqual(ending.word, expect)
        return Queue()[key].metadata()

    def failing(self, error):
        def perform(task):
            raise error

        return perform


class ErrorTests(RunnerCase):
    def test_a_middleware_that_raises_is_a_handler_that_raises(self):
        def around(handler, perform):
            perform()
            raise ValueError("afterwards")

        row = self.run_with(lambda task: None, around, expect="retried")
        self.assertEqual(row.ticket.errors, 1)


class RetryOnTests(RunnerCase):
    def test_only_its_errors_are_tried_again_by_its_rule(self):
        around = RetryOn(ConnectionError, attempts=9, wait=Fixed(1000.0))
        row = self.run_with(
            self.failing(ConnectionResetError("gone")), around, expect="retried", max_attempts=1
        )
        wait = (row.ticket.timer_at - row.created_at).total_seconds()
        self.assertTrue(700 < wait < 1300, wait)
        self.assertIn("ConnectionResetError", Attempt.objects.get().traceback)
        self.run_with(self.failing(ValueError()), around, expect="failed", max_attempts=1)

    def test_after_the_last_attempt_the_error_goes_up(self):
        error = self.failing(ConnectionError())
        self.run_with(error, RetryOn(ConnectionError), expect="failed", max_attempts=1)
        self.run_with(error, RetryOn(ConnectionError, attempts=1), expect="retried")

    def test_what_is_no_error_goes_up_even_where_it_is_for_all(self):
        for raised, word in (
            (Snooze(60), "snoozed"),
            (Discard("gone"), "discarded"),
            (GracefulProcessStopError(), "released"),
        ):
            self.run_with(self.failing(raised), RetryOn(Exception, attempts=9), expect=word)
            Queue().clear()

    def test_what_was_settled_already_is_not_tried_again(self):
        def perform(task):
            task.finish("done")
            raise ConnectionError("too late")

        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            row = self.run_with(perform, RetryOn(ConnectionError), expect="finished")
        self.assertEqual(row.result, "done")

    def test_it_must_be_notified_of_errors(self):
        with self.assertRaisesMessage(TypeError, "RetryOn needs an exception"):
            RetryOn()


class TimeLimitTests(SimpleTestCase):
    def test_it_must_be_a_time(self):
        for wrong in (0, -1, True, "5"):
            with (
                self.subTest(wrong),
                self.assertRaisesMessage(ValueError, "must be a number of seconds"),
            ):
                TimeLimit(wrong)

    def test_it_may_depend_on_the_task(self):
        kind = from_function(lambda task: "done", middleware=[TimeLimit(lambda handler: None)])
        self.assertEqual(kind(None).run(), "done")


class MemoryLimitTests(RunnerCase):
    def test_a_processor_that_is_large_after_a_task_is_replaced(self):
        self.addCleanup(recycle.wanted.clear)
        recycling = Recycling(Options())
        around = MemoryLimit(100)
        with mock.patch.object(limits, "resident") as resident:
            resident.return_value = 100 * 2**20 - 1
            self.run_with(self.failing(ValueError()), around, expect="retried")
            self.assertFalse(recycling.is_due())
            resident.return_value += 1
            with self.assertLogs("django_perfectqueue.processor", "WARNING"):
                self.run_with(self.failing(ValueError()), around, expect="retried")
        self.assertTrue(recycling.is_due())
        self.assertTrue(Recycling(Options(RECYCLE={"age": 1000.0})).is_due())

    def test_it_must_be_a_size(self):
        for wrong in (0, True, "1G"):
            with (
                self.subTest(wrong),
                self.assertRaisesMessage(ValueError, "must be a number of MiB"),
            ):
                MemoryLimit(wrong)


class ReportErrorsTests(RunnerCase):
    data = {"page": "private", "password": "s3cret-w0rd"}

    def test_a_reporter_is_notified_of_the_task_but_not_its_data(self):
        reported = []
        around = ReportErrors(lambda error, facts: reported.append((error, facts)))
        error = ValueError("s3cret-w0rd is wrong")
        self.run_with(self.failing(error), around, expect="retried", data=self.data)
        [(raised, facts)] = reported
        self.assertIs(raised, error)
        self.assertEqual((facts["type"], facts["attempt"]), ("report", 1))
        self.assertIn("raise error", facts["traceback"])
        for private in ("private", "s3cret-w0rd"):
            self.assertNotIn(private, str(facts))

    def test_a_reporter_that_raises_masks_no_error(self):
        def report(error, facts):
            raise OSError("no network")

        with self.assertLogs("django_perfectqueue.errors", "ERROR") as log:
            row = self.run_with(
                self.failing(ValueError("boom")), ReportErrors(report), expect="retried"
            )
        self.assertIn("no network", log.output[0])
        self.assertEqual(row.ticket.errors, 1)
        self.assertIn("boom", Attempt.objects.get().message)

    def test_what_is_no_error_is_not_reported(self):
        reported = []
        around = ReportErrors(lambda error, facts: reported.append(error))
        self.run_with(self.failing(CancelRequestedError()), around, expect="retried")
        self.assertEqual(reported, [])
