import sys
from unittest import mock

from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue.application import Application, Dispatch, handler
from django_perfectqueue.application.base import from_function
from django_perfectqueue.application.dispatch import Registry
from django_perfectqueue.application.middleware import (
    arounds,
)
from django_perfectqueue.checks.settings import check_imported
from django_perfectqueue.exceptions import (
    ConfigError,
)
from django_perfectqueue.queue import Queue

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
