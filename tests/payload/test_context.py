import json
from contextvars import ContextVar, copy_context
from unittest import mock

from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone, translation

from django_perfectqueue import tracing
from django_perfectqueue.checks.settings import check_named
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.models import Task
from django_perfectqueue.payload import context
from django_perfectqueue.payload.context import Provider
from django_perfectqueue.queue import Queue
from django_perfectqueue.tracing import otel

from ..factories import after, submit
from ..management.running import run, run_json
from ..worker.runners import RunnerMixin

HERE = "tests.payload.test_context"
TENANT, TOKEN = f"{HERE}.tenant", f"{HERE}.token"
LANGUAGE = "django_perfectqueue.payload.context.language"
ZONE = "django_perfectqueue.payload.context.timezone"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
token: ContextVar[str] = ContextVar("token")
restored = []
doubled = (lambda: 2, restored.append)
fragile = Provider(lambda: 1, lambda value: restored[value])


def carrying(*paths, **more):
    return override_settings(PERFECTQUEUE={"CONTEXT": list(paths), **more})


def in_context(act, **values):
    """Do something in a context of its own, in which context variables have these values."""

    def run():
        for name, value in values.items():
            {**globals(), **vars(tracing)}[name].set(value)
        return act()

    return copy_context().run(run)


def stored(key="task"):
    text = Task.objects.get(key=key).context
    return None if text is None else json.loads(text)


class CaptureTests(TestCase):
    def test_without_the_setting_nothing_is_stored(self):
        in_context(submit, tenant="acme")
        Queue().submit_many([{"key": "many", "type": "report"}])
        self.assertEqual(set(Task.objects.values_list("context", flat=True)), {None})

    def test_what_the_setting_names_is_stored_wherever_it_is_submitted(self):
        with carrying(TENANT, f"{HERE}.doubled"):
            in_context(lambda: submit("one"), tenant="acme")
            in_context(
                lambda: Queue().submit_many([{"key": k, "type": "report"} for k in "ab"]),
                tenant="acme",
            )
            in_context(lambda: run("pq_submit", "shell", "report", "{}"), tenant="acme")
        for key in ("one", "a", "b", "shell"):
            self.assertEqual(stored(key), {TENANT: "acme", f"{HERE}.doubled": 2}, key)

    def test_what_is_not_set_is_left_out(self):
        with carrying(TENANT, TOKEN):
            submit("task")
        self.assertIsNone(stored())

    def test_what_json_can_not_hold_or_is_too_long_is_refused(self):
        with carrying(TENANT):
            for value, problem in (({1}, "can't be written as JSON"), ("x" * 9000, "at most 8192")):
                with self.assertRaisesMessage(InvalidTaskError, problem) as caught:
                    in_context(submit, tenant=value)
                self.assertIn(TENANT, str(caught.exception))
        self.assertFalse(Task.objects.exists())

    def test_a_trace_that_the_project_has_set_is_taken_along(self):
        state = "rojo=00f067aa0ba902b7, congo=t61"
        in_context(lambda: submit("task"), traceparent=PARENT, tracestate=state)
        reported = {"traceparent": PARENT, "tracestate": state}
        self.assertEqual(stored(), reported)

    def test_what_is_no_trace_is_not(self):
        with self.assertLogs("django_perfectqueue.tracing", "DEBUG"):
            in_context(lambda: submit("task"), traceparent="nonsense")
        self.assertIsNone(stored())


class RestoreTests(RunnerMixin, TestCase):
    def run_there(self, perform, key="task"):
        """Run what is due with a handler, and return the row of a task."""
        self.run_due(perform)
        return Queue()[key].metadata()

    def test_the_handler_finds_it_and_the_next_task_does_not(self):
        def perform(task):
            return [tenant.get(), tracing.traceparent.get(), tracing.current().traceparent]

        with carrying(TENANT):
            in_context(lambda: submit("task", now=None), tenant="acme", traceparent=PARENT)
            row = self.run_there(perform)
            self.assertEqual(row.result, ["acme", PARENT, PARENT])
            self.assertIsNone(tenant.get())

            submit("next", now=None)
            row = self.run_there(lambda task: [tenant.get(), tracing.current()], "next")
        self.assertEqual(row.result, [None, None])

    def test_what_a_handler_submits_takes_it_along(self):
        def perform(task):
            task.queue.submit("child", "report")

        with carrying(TENANT):
            in_context(lambda: submit("task", now=None), tenant="acme", traceparent=PARENT)
            self.run_there(perform)
        self.assertEqual(stored("child"), {"traceparent": PARENT, TENANT: "acme"})

    def test_a_coroutine_finds_it_too(self):
        async def perform(task):
            return tenant.get()

        with carrying(TENANT):
            in_context(lambda: submit("task", now=None), tenant="acme")
            self.assertEqual(self.run_there(perform).result, "acme")

    def test_language_and_time_zone_are_ready_made(self):
        def perform(task):
            return [translation.get_language(), timezone.get_current_timezone_name()]

        with carrying(LANGUAGE, ZONE):
            with translation.override("de"), timezone.override("Asia/Tokyo"):
                submit("task", now=None)
            self.assertEqual(self.run_there(perform).result, ["de", "Asia/Tokyo"])
        self.assertNotEqual(translation.get_language(), "de")

    def test_what_no_one_here_knows_is_left_out(self):
        with carrying(TENANT, f"{HERE}.doubled"):
            in_context(lambda: submit("task", now=None), tenant="acme")
        restored.clear()
        with (
            carrying(f"{HERE}.doubled"),
            self.assertLogs("django_perfectqueue.context", "DEBUG") as log,
        ):
            self.run_there(lambda task: None)
        self.assertEqual(self.ending.word, "finished")
        self.assertIn(TENANT, log.output[0])
        self.assertEqual(restored, [2])

    def test_a_handler_does_not_run_without_what_it_relies_on(self):
        with carrying(f"{HERE}.fragile"):
            restored.clear()
            submit("task", now=None)
            with self.assertLogs("django_perfectqueue.runner", "WARNING"):
                row = self.run_there(lambda task: self.fail("not to be performed"))
        self.assertEqual(
            (self.ending.word, row.attempts.get().error), ("retried", "builtins.IndexError")
        )

    def test_a_program_that_takes_tasks_itself_can_set_it(self):
        with carrying(TENANT):
            in_context(submit, tenant="acme")
            submit("bare", now=after(1))
            first, second = Queue().acquire(2, now=after(2))
            self.assertEqual((first.context, second.context), ({TENANT: "acme"}, {}))

            def act():
                with context.restored(first.context):
                    return tenant.get()

            self.assertEqual(in_context(act), "acme")

    def test_one_that_can_not_be_read_fails_the_task(self):
        for number, text in enumerate(("{", "[1]")):
            submit(f"k{number}", now=None)
            Task.objects.update(context=text)
            with self.assertLogs("django_perfectqueue.runner", "ERROR"):
                self.run_there(lambda task: self.fail("not to be performed"), f"k{number}")
            self.assertEqual(self.ending.word, "failed", text)
            Queue().clear()


class ShownTests(TestCase):
    def test_people_see_it_with_stars_for_what_is_sensitive(self):
        with carrying(TENANT, TOKEN):
            in_context(lambda: submit("task"), tenant="acme", token="hunter-22")
        text = run("pq_task", "show", "task")
        self.assertIn('"tests.payload.test_context.tenant": "acme"', text)
        [reported] = run_json("pq_task", "show", "task")
        self.assertEqual(reported["context"], {TENANT: "acme", TOKEN: "********"})
        self.assertNotIn("hunter", text)
        self.assertNotIn("acme", run("pq_task", "show", "task", "--no-data"))

    def test_a_task_without_it_shows_none(self):
        submit("task")
        self.assertNotIn("ontext", run("pq_task", "show", "task"))
        self.assertIsNone(run_json("pq_task", "show", "task")[0]["context"])


class SettingTests(SimpleTestCase):
    def test_what_is_no_provider_is_reported(self):
        for path, problem in (
            ("tests.nowhere", "can't be imported"),
            (f"{HERE}.restored", "is no ContextVar and no pair of functions"),
            (f"{HERE}.PARENT", "is no ContextVar"),
        ):
            restored.clear()
            with self.subTest(path), carrying(path):
                [found] = check_named()
                self.assertEqual(found.id, "perfectqueue.E021")
                self.assertIn(problem, found.msg)
        with carrying(TENANT, LANGUAGE, f"{HERE}.doubled"):
            self.assertEqual(check_named(), [])

    def test_tracing_without_its_package_is_reported(self):
        self.addCleanup(otel.tracer.cache_clear)
        otel.tracer.cache_clear()
        missing = mock.patch.dict("sys.modules", {"opentelemetry": None})
        with missing, override_settings(PERFECTQUEUE={"TRACING": True}):
            [found] = check_named()
        self.assertEqual(found.id, "perfectqueue.E022")
        self.assertIn("django-perfectqueue[otel]", found.msg)

    def test_a_time_zone_without_a_name_is_not_taken_along(self):
        with timezone.override(timezone.get_fixed_timezone(90)):
            self.assertIsNone(context.timezone.capture())


class TraceTests(SimpleTestCase):
    """The grammar of https://www.w3.org/TR/trace-context/."""

    def test_a_traceparent_is_read(self):
        self.assertEqual(tracing.read(PARENT), (PARENT, ""))
        self.assertIsNotNone(tracing.read("cc" + PARENT[2:] + "-what-the-future-brings"))

    def test_what_is_none_is_refused(self):
        for wrong in (
            None,
            7,
            "",
            PARENT.upper(),
            PARENT + "\n",
            PARENT + "-more",
            PARENT[:-1],
            "ff" + PARENT[2:],
            PARENT.replace(PARENT[3:35], "0" * 32),
            PARENT.replace(PARENT[36:52], "0" * 16),
            PARENT.replace("f9", "g9"),
            "cc" + PARENT[2:] + "-" + "x" * 600,
        ):
            with self.subTest(wrong):
                self.assertIsNone(tracing.read(wrong))

    def test_a_tracestate_is_kept_if_a_header_may_have_it(self):
        for state, reported in (
            ("a=1", "a=1"),
            ("a=1, tenant0@sys=~", "a=1, tenant0@sys=~"),
            ("a=ü", ""),
            ("a=1\r\nb: 2", ""),
            ("a=" + "1" * 600, ""),
            (7, ""),
        ):
            with self.subTest(state):
                self.assertEqual(tracing.read(PARENT, state).tracestate, reported)
