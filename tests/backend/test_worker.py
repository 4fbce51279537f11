import io
import logging
import math
import re
import sys
import types
from unittest import mock

from django.contrib.auth.models import Group
from django.test import TestCase, override_settings
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from django_perfectqueue.store.tasks.close import Loss

from . import case, jobs  # isort: skip
from django_perfectqueue import compat, store
from django_perfectqueue.application import Application, Dispatch, time_limits
from django_perfectqueue.backend import PerfectQueueBackend, definition
from django_perfectqueue.backend.handler import handler_of, with_django_tasks
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    ConfigError,
    TimeLimitError,
    UnknownTypeError,
)
from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker import discovery
from django_perfectqueue.worker.helpers.reaper import Leftovers, Reaper
from django_perfectqueue.worker.plan import Plan

from ..application import surroundings
from ..factories import acquire
from ..worker.forked import SILENT
from ..worker.workers import WorkerTestCase
from .inline import run_due

IMMEDIATE = f"{compat.ImmediateBackend.__module__}.ImmediateBackend"
ALL = ("task_enqueued", "task_started", "task_finished")


class RunTests(TestCase):
    def run_one(self, task, *args, words=("finished",), **kwargs):
        """Enqueue a task and have it run; return its result."""
        result = task.enqueue(*args, **kwargs)
        endings = run_due(only=1)
        self.assertEqual(tuple(ending.word for ending in endings), words)
        result.refresh()
        return result

    def test_a_function_is_called_with_its_arguments(self):
        self.assertEqual(self.run_one(jobs.add, 1, b=2).return_value, 3)

    def test_a_coroutine_function_is_awaited(self):
        self.assertEqual(self.run_one(jobs.later, "x").return_value, {"value": "x"})

    def test_the_context_tells_attempt_and_id(self):
        result = self.run_one(jobs.number)
        self.assertEqual(result.return_value, [1, result.id])

    def test_an_error_is_final_unless_the_task_says_otherwise(self):
        """
        Django knows no attempts but one, and its tasks are written so.
        """
        result = self.run_one(jobs.boom, "x", words=("failed",))
        self.assertEqual(result.status, "FAILED")
        [error] = result.errors
        self.assertIs(error.exception_class, ValueError)
        self.assertTrue(error.traceback.endswith("ValueError: x\n"))

    @override_settings(PERFECTQUEUE={"SENSITIVE": ["message"]})
    def test_what_is_sensitive_in_an_error_is_not_logged(self):
        """
        Django's own receiver logs the exception, while the task runs.
        """
        with self.assertLogs(case.LOGGER, "ERROR") as log:
            result = self.run_one(jobs.boom, message="hunter22", words=("failed",))
        for reported in (*log.output, result.errors[0].traceback):
            self.assertIn("ValueError: ********", reported)
            self.assertNotIn("hunter22", reported)

    def test_a_function_tells_how_far_it_is(self):
        result = self.run_one(jobs.halfway)
        reported = Queue()[result.id].progress()
        self.assertEqual((reported.progress, reported.stage), (0.5, "halfway"))

    def test_a_function_goes_on_after_a_step_that_an_earlier_attempt_has_run(self):
        result = jobs.stepping.using(max_attempts=2).enqueue()
        with self.assertLogs("django_perfectqueue"):
            run_due(only=1)
        Queue()[result.id].retry()
        run_due(only=1)
        result.refresh()
        self.assertEqual(result.return_value, 1)
        self.assertEqual(self.run_one(jobs.stepping_async).return_value, {"value": 7})

    def test_a_function_runs_and_joins_others(self):
        for task in (jobs.family, jobs.family_async):
            result = task.enqueue([1, 2])
            words = [run.word for run in run_due()]
            self.assertEqual(words, ["suspended", "finished", "finished", "finished"])
            result.refresh()
            self.assertEqual(result.return_value, [True, 1, 2])

    def test_a_task_joins_what_was_enqueued(self):
        Queue().submit("parent", "echo")
        task, result = Queue().poll(), jobs.add.enqueue(1, 2)
        run_due()
        self.assertEqual(task.join(result), [3])

    def test_a_function_waits_for_a_signal_and_for_a_time(self):
        for job in (jobs.approve, jobs.approve_async):
            with self.subTest(job.module_path), case.listening("task_finished") as heard:
                result = job.enqueue()
                self.assertEqual(run_due().words, ["suspended"])
                result.refresh()
                self.assertEqual((result.status, result.errors), ("READY", []))
                Queue()[result.id].signal("approved", 7)
                self.assertEqual(run_due(ahead="1h").words, ["suspended", "finished"])
                result.refresh()
                self.assertEqual((result.return_value, result.attempts), (7, 1))
                self.assertEqual(len(heard), 1)

    def test_sys_exit_fails_the_task_and_nothing_else(self):
        result = self.run_one(jobs.leave, words=("failed",))
        self.assertIs(result.errors[0].exception_class, SystemExit)

    def test_ctrl_c_gives_the_task_back(self):
        result = jobs.interrupt.enqueue()
        with self.assertRaises(KeyboardInterrupt), self.assertNoLogs(case.LOGGER, "ERROR"):
            run_due(only=1)
        result.refresh()
        self.assertEqual((result.status, result.errors), ("READY", []))

    def test_a_value_that_can_not_be_returned_is_an_error(self):
        result = self.run_one(jobs.unreturnable, words=("failed",))
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_attempts_are_those_of_the_call_or_the_task_or_the_backend(self):
        self.run_one(jobs.twice, words=("retried",))
        self.run_one(jobs.twice.using(max_attempts=1), words=("failed",))
        with override_settings(TASKS=case.tasks_with(OPTIONS={"max_attempts": 2})):
            self.run_one(jobs.boom, "x", words=("retried",))

    def test_a_backoff_decides_when_and_whether(self):
        jobs.reported.clear()
        result = self.run_one(jobs.patient, "x", words=("retried",))
        self.assertEqual(jobs.reported, [("ValueError", 1, 1)])
        row = Queue()[result.id].metadata()
        wait = row.ticket.timer_at - Attempt.objects.get().ended_at
        self.assertAlmostEqual(wait.total_seconds(), 60, delta=1)

        self.run_one(jobs.patient, "hopeless", words=("failed",))

    def test_a_backoff_is_asked_no_more_when_the_attempts_are_spent(self):
        jobs.reported.clear()
        result = jobs.patient.enqueue("x")
        run_due(ahead="1h")
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("FAILED", 3))
        self.assertEqual([attempt for _name, attempt, _errors in jobs.reported], [1, 2])

    def test_a_backoff_that_returns_nonsense_leaves_it_to_the_usual_wait(self):
        result = self.run_one(jobs.wrong_backoff, words=("retried",))
        self.assertEqual(result.status, "READY")

    def test_effects_of_an_atomic_one_are_there_when_it_has_succeeded(self):
        failing = jobs.enrol.using(max_attempts=1)
        for task, error, word, there in (
            (jobs.enrol, "", "finished", True),
            (failing, "boom", "failed", False),
            (failing.using(atomic=False), "boom", "failed", True),
        ):
            name = f"{task.atomic} {error}"
            with self.subTest(name), case.listening("task_finished") as heard:
                result = self.run_one(task, name, error=error, words=(word,))
                self.assertEqual(Group.objects.filter(name=name).exists(), there)
                self.assertEqual(len(heard), 1)
                self.assertEqual(result.status, heard[0][2])

    def test_middleware_of_all_handlers_stands_around_it(self):
        surroundings.reported.clear()
        middleware = ["tests.application.surroundings.Both"]
        with override_settings(PERFECTQUEUE={"MIDDLEWARE": middleware}):
            results = [self.run_one(jobs.add, 1, b=2), self.run_one(jobs.later, "x")]
        steps = [(step, result.id) for result in results for step in ("begin", "end")]
        self.assertEqual(surroundings.reported, steps)

    def test_the_limits_of_a_call_reach_the_handler(self):
        for task, expected in (
            (jobs.report, (1, 30)),
            (jobs.report.using(time_limit=5, max_attempts=4), (4, 5)),
            (jobs.patient, (3, math.inf)),
            (jobs.wrong_backoff, (5, math.inf)),
        ):
            task.using(key="k", on_conflict="replace", user=None).enqueue("x")
            handler = handler_of(definition.definitions[task.module_path])(Queue().poll())
            given = handler.task.lease.time_limit
            limit = time_limits(type(handler), given, options()).time_limit
            self.assertEqual((handler.max_attempts, limit), expected)
            handler.task.release()

    def test_a_definition_says_when_it_is_ended_by_force(self):
        for task, expected in ((jobs.report, 4), (jobs.add, options().TASK_KILL_WAIT)):
            limits = time_limits(handler_of(task), None, options())
            self.assertEqual(limits.kill_wait, expected)
        with self.assertRaisesMessage(compat.InvalidTask, "kill_wait can't be changed by using()"):
            jobs.report.using(kill_wait=5).enqueue("ann")

    def test_a_larger_priority_goes_first_and_of_equals_the_older(self):
        order = [
            jobs.add.using(priority=priority).enqueue(priority, 0).id for priority in (-5, 7, 0, 7)
        ]
        jobs.add.using(priority=100, run_after=case.LATER).enqueue(1, 0)
        run = run_due().keys
        self.assertEqual(run, [order[1], order[3], order[2], order[0]])

    def test_data_of_another_shape_fails_with_the_reason(self):
        Queue().submit("k1", "tests.backend.jobs.add", {"a": 1})
        [ending] = run_due()
        self.assertEqual(ending.word, "failed")
        self.assertIn("not that of a Django task", Attempt.objects.get().message)

    def test_either_kind_of_arguments_may_be_left_out(self):
        for key, data in (("k1", {"args": [1, 2]}), ("k2", {"kwargs": {"a": 1, "b": 2}})):
            Queue().submit(key, "tests.backend.jobs.add", data)
        Queue().submit("k3", "tests.backend.jobs.nothing")
        self.assertEqual(run_due().words, ["finished"] * 3)
        results = [jobs.add.get_result(key).return_value for key in ("k1", "k2")]
        self.assertEqual(results, [3, 3])

    def test_the_queues_own_door_leads_to_the_same_task(self):
        data = {"args": [1], "kwargs": {"b": 2}}
        Queue().submit("k1", "tests.backend.jobs.add", data, user="ann")
        run_due()
        self.assertEqual(jobs.add.get_result("k1").return_value, 3)


class SignalTests(TestCase):
    def heard(self, task, *args):
        with case.listening(*ALL) as heard:
            task.enqueue(*args)
            run_due(only=1)
        self.assertEqual({sender for _name, sender, _status in heard}, {PerfectQueueBackend})
        return [(name, status) for name, _sender, status in heard]

    def test_they_come_with_the_backends_class(self):
        reported = self.heard(jobs.add, 1, 2)
        self.assertEqual(reported, list(zip(ALL, ("READY", "RUNNING", "SUCCESSFUL"), strict=True)))
        reported = self.heard(jobs.boom, "x")
        self.assertEqual(reported, list(zip(ALL, ("READY", "RUNNING", "FAILED"), strict=True)))

    def test_a_retry_is_no_end(self):
        self.assertEqual([name for name, _status in self.heard(jobs.twice)], [*ALL[:2]])

    def test_a_cancel_is_a_failure(self):
        with case.listening("task_finished") as heard:
            jobs.cancel_itself.using(key="k1", max_attempts=2).enqueue("k1")
            run_due(only=1)
        self.assertEqual([status for _name, _sender, status in heard], ["FAILED"])
        errors = jobs.cancel_itself.get_result("k1").errors
        kinds = [error.exception_class for error in errors]
        self.assertEqual(kinds, [ValueError, CancelRequestedError])

    def test_a_receiver_that_raises_disturbs_nobody(self):
        def trouble(**kwargs):
            raise RuntimeError("a dashboard is down")

        compat.signals.task_started.connect(trouble)
        self.addCleanup(compat.signals.task_started.disconnect, trouble)
        with self.assertLogs("django.dispatch", "ERROR"):
            self.assertEqual(self.heard(jobs.add, 1, 2)[-1], ("task_finished", "SUCCESSFUL"))

    def test_the_log_tells_the_way_of_a_task(self):
        with self.assertLogs(case.LOGGER, "DEBUG") as log:
            result = jobs.add.enqueue(1, 2)
            run_due()
        self.assertEqual([record.levelname for record in log.records], ["DEBUG", "INFO", "INFO"])
        self.assertIn(f"id={result.id}", log.output[2])
        self.assertIn("state=SUCCESSFUL", log.output[2])

    def test_the_log_of_a_failure_has_its_traceback(self):
        with self.assertLogs(case.LOGGER, "ERROR") as log:
            self.heard(jobs.boom, "as it should")
        self.assertIn("ValueError: as it should", log.output[0])


class AudienceTests(TestCase):
    """What is made for those who hear of a task, and only for them."""

    def records(self, *handlers):
        """Run a task where the logger of Django's tasks has these handlers; return its records."""
        logger, made = logging.getLogger(case.LOGGER), []

        def make(*args, **kwargs):
            made.append(logging.LogRecord(*args, **kwargs))
            return made[-1]

        self.addCleanup(logging.setLogRecordFactory, logging.getLogRecordFactory())
        with (
            mock.patch.multiple(logger, handlers=list(handlers), propagate=False),
            mock.patch.object(logger, "level", logging.INFO),
        ):
            logger.manager._clear_cache()
            jobs.add.enqueue(1, 2)
            logging.setLogRecordFactory(make)
            run_due()
        logger.manager._clear_cache()
        return [record for record in made if record.name == case.LOGGER]

    def handler(self, *filters, level=logging.INFO):
        handler = logging.StreamHandler(io.StringIO())
        handler.setLevel(level)
        for each in filters:
            handler.addFilter(each)
        return handler

    def test_a_record_that_no_handler_takes_is_not_made(self):
        for handlers in (
            (),
            (self.handler(level=logging.ERROR),),
            (self.handler(RequireDebugTrue()), self.handler(level=logging.ERROR)),
        ):
            self.assertEqual(self.records(*handlers), [])

    def test_a_record_that_one_handler_takes_is_made(self):
        for handler in (
            self.handler(),
            self.handler(RequireDebugFalse()),
            self.handler(lambda record: True),
        ):
            records = self.records(self.handler(level=logging.ERROR), handler)
            self.assertEqual([record.levelname for record in records], ["INFO", "INFO"])

    def test_who_hears_only_of_the_end_is_given_the_whole_result(self):
        results = []

        def hear(task_result, **kwargs):
            results.append(task_result)

        compat.signals.task_finished.connect(hear)
        self.addCleanup(compat.signals.task_finished.disconnect, hear)
        self.assertEqual(len(self.records()), 2)
        [result] = results
        self.assertEqual((result.return_value, len(result.worker_ids)), (3, 1))
        self.assertLessEqual(result.started_at, result.finished_at)

    def test_a_failure_of_which_nobody_heard_before_is_logged_whole(self):
        taken = self.handler(level=logging.ERROR)
        logger = logging.getLogger(case.LOGGER)
        with mock.patch.multiple(logger, handlers=[taken], propagate=False):
            jobs.boom.enqueue("as it should")
            run_due()
        self.assertIn("ValueError: as it should", taken.stream.getvalue())


class ForceTests(TestCase):
    def add_dead_letters(self):
        """Do what is done for tasks that were ended by force after 60 s."""
        taken = acquire(2, lease=300, holder=7, now=None)
        leftovers = Leftovers(
            holder=7,
            loss=Loss(worker="host:1", why=store.Failure()),
            overdue={lease.task_id: 60.0 for lease in taken},
        )
        plan = Plan(
            dispatch=with_django_tasks(Dispatch),
            queues=("default",),
            using="default",
            options=options(),
        )
        reaper = Reaper(plan, leftovers, SILENT)
        self.addCleanup(reaper.wakeup.close)
        with self.assertLogs("django_perfectqueue.supervisor", "ERROR"):
            reaper.settle_overdue()
        for announcement in reaper.announcements:
            announcement()

    def test_who_is_ended_by_force_is_tried_as_often_as_the_task_says(self):
        once = jobs.boom.using(time_limit=5).enqueue("x")
        twice = jobs.twice.using(time_limit=5).enqueue()
        heard = []

        def hear(task_result, **kwargs):
            heard.append(task_result)

        compat.signals.task_finished.connect(hear)
        self.addCleanup(compat.signals.task_finished.disconnect, hear)
        self.add_dead_letters()
        for result, status in ((once, "FAILED"), (twice, "READY")):
            result.refresh()
            self.assertEqual(result.status, status)
        [reported] = heard
        self.assertEqual((reported.id, reported.status, reported.attempts), (once.id, "FAILED", 1))
        [error] = reported.errors
        self.assertIs(error.exception_class, TimeLimitError)


class RouteTests(TestCase):
    def test_a_type_that_is_no_task_is_never_imported(self):
        both = with_django_tasks(Dispatch)
        for type_ in (
            "subprocess.check_output",
            "tests.backend.jobs.reported",
            "antigravity.geohash",
        ):
            with self.subTest(type_), self.assertRaises(UnknownTypeError):
                both.handler_for(type_)
        self.assertTrue(both.knows("tests.backend.jobs.add"))

    @override_settings(TASKS=case.tasks_with(OPTIONS={"modules": ["tests.nowhere"]}))
    def test_a_module_that_can_not_be_imported_is_said_before_anything_runs(self):
        with self.assertRaisesMessage(ConfigError, "No module named 'tests.nowhere'"):
            discovery.with_django_tasks(Dispatch, "default")

    @override_settings(TASKS={"default": {"BACKEND": "django_perfectqueue.backend.DummyBackend"}})
    def test_without_a_backend_of_ours_nothing_is_changed(self):
        self.assertEqual(discovery.with_django_tasks(Dispatch, "default"), (Dispatch, []))

    def test_a_task_of_djangos_own_class_is_found_where_it_is_defined(self):
        """
        One that is defined for another backend, and sent here by ``using(backend=…)``.
        """
        module = types.ModuleType("tests.elsewhere")
        function = types.FunctionType(jobs.add.func.__code__, {}, "plain")
        function.__module__ = module.__name__
        foreign = {"default": {"BACKEND": IMMEDIATE}, "ours": {"BACKEND": case.BACKEND}}
        with (
            mock.patch.dict(sys.modules, {module.__name__: module}),
            mock.patch.dict(definition.definitions),
            override_settings(TASKS=foreign),
        ):
            module.plain = compat.task(function)
            both = with_django_tasks(Dispatch)
            self.assertFalse(both.knows(module.plain.module_path))
            definition.discover_in([module.__name__])
            self.assertTrue(both.handler_for(module.plain.module_path).is_djangos)
            result = module.plain.using(backend="ours").enqueue(1, 2)
            run_due()
            result.refresh()
            self.assertEqual((result.return_value, result.task.backend), (3, "ours"))

    def test_a_pattern_does_not_take_them_but_an_exact_route_does(self):
        class Own(Application):
            pass

        class Greedy(Dispatch):
            routes = {re.compile(""): Own, "tests.backend.jobs.boom": Own}

        both = with_django_tasks(Greedy)
        self.assertIs(both.handler_for("tests.backend.jobs.boom"), Own)
        self.assertIs(both.handler_for("anything"), Own)
        self.assertTrue(both.handler_for("tests.backend.jobs.add").is_djangos)
        self.assertEqual(len(both.load()), len(both.routes))


class WorkerTests(WorkerTestCase):
    def test_one_worker_runs_both_kinds_from_all_queues_and_waits_with_the_rest(self):
        backends = case.tasks_with(
            QUEUES=["default", "mail"], OPTIONS={"modules": ["tests.backend.jobs"]}
        )
        with override_settings(TASKS=backends):
            results = [
                jobs.add.enqueue(1, 2),
                jobs.later.using(queue_name="mail").enqueue("x"),
                jobs.boom.enqueue("as it should"),
            ]
        self.submit("own", "echo")
        self.submit("strange", "subprocess.check_output", data={"args": ["true"], "kwargs": {}})
        worker = self.burst(TASKS=backends)

        with override_settings(TASKS=backends):
            for result in results:
                result.refresh()
        self.assertEqual([one.status for one in results], ["SUCCESSFUL", "SUCCESSFUL", "FAILED"])
        self.assertRegex(results[0].worker_ids[0], r":\d+$")
        self.assertEqual((self.status("own"), self.status("strange")), ("finished", "scheduled"))
        self.assertIn("Queues: default, mail", worker.output)
        self.assertIn("No handler for tasks of this type; they wait.", worker.errors)
