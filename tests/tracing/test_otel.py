import asyncio
from contextlib import contextmanager
from unittest import mock, skipUnless

from asgiref.sync import async_to_sync
from django.test import TestCase, override_settings

from django_perfectqueue import tracing
from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.tracing import otel

from ..factories import submit
from ..payload.test_context import PARENT, in_context, stored
from ..worker.crews import ConcurrentTestCase
from ..worker.runners import RunnerMixin

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError:
    trace = None


NEEDED = skipUnless(trace, "opentelemetry-sdk is not installed: pip install -e '.[test]'.")


class SpanMixin:
    def setUp(self):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("tests")
        for change in (
            mock.patch.object(otel, "tracer", return_value=self.tracer),
            override_settings(PERFECTQUEUE={"TRACING": True}),
        ):
            change.__enter__()
            self.addCleanup(change.__exit__, None, None, None)

    def spans(self, word=""):
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if span.name.startswith(word)]


@NEEDED
class SpanTests(SpanMixin, RunnerMixin, TestCase):
    def test_a_submit_its_wait_and_its_run_are_spans_of_one_trace(self):
        with self.tracer.start_as_current_span("view") as view:
            submit("task", user="ann", now=None)
        self.run_due(lambda task: None)

        [send], [wait], [process] = map(self.spans, ("send", "wait", "process"))
        ids = {span.context.trace_id for span in (send, wait, process)}
        self.assertEqual(ids, {view.get_span_context().trace_id})
        self.assertEqual(send.parent.span_id, view.get_span_context().span_id)
        for span in (wait, process):
            self.assertEqual(span.parent.span_id, send.context.span_id)
        self.assertEqual([link.context.span_id for link in process.links], [send.context.span_id])
        kinds = [span.kind.name for span in (send, wait, process)]
        self.assertEqual(kinds, ["PRODUCER", "INTERNAL", "CONSUMER"])
        self.assertLessEqual(wait.start_time, wait.end_time)
        self.assertEqual(wait.end_time, process.start_time)
        self.assertLessEqual(send.start_time, wait.end_time)

    def test_they_have_the_names_and_attributes_of_the_conventions(self):
        submit("task", user="ann", now=None)
        self.run_due(lambda task: None)

        common = {
            "messaging.system": "perfectqueue",
            "messaging.destination.name": "default",
            "messaging.message.id": "task",
        }
        facts = {
            **common,
            "perfectqueue.type": "report",
            "perfectqueue.user": "ann",
            "perfectqueue.attempt": 1,
        }
        self.assertEqual(
            {span.name: dict(span.attributes) for span in self.spans()},
            {
                "send default": {
                    **common,
                    "messaging.operation.name": "send",
                    "messaging.operation.type": "send",
                },
                "wait report": {**facts, "messaging.operation.name": "wait"},
                "process report": {
                    **facts,
                    "messaging.operation.name": "process",
                    "messaging.operation.type": "process",
                    "perfectqueue.ending": "finished",
                },
            },
        )

    def test_an_error_is_reported_with_the_attempt_and_without_what_is_sensitive(self):
        def perform(task):
            raise ValueError(f"no access with {task.data['password']}")

        submit("task", data={"password": "hunter-22"}, now=None)
        with self.assertLogs("django_perfectqueue.runner", "WARNING"):
            self.run_due(perform)
        Queue()["task"].retry()
        self.run_due(lambda task: None)

        first, second = self.spans("process")
        reported = dict(first.attributes)
        self.assertEqual(reported["perfectqueue.ending"], "retried")
        self.assertEqual(reported["error.type"], "builtins.ValueError")
        self.assertEqual(first.status.status_code.name, "ERROR")
        [event] = first.events
        self.assertEqual(event.attributes["exception.message"], "no access with ********")
        self.assertIn("perform", event.attributes["exception.stacktrace"])
        self.assertNotIn("hunter", first.to_json())
        self.assertEqual(second.attributes["perfectqueue.attempt"], 2)
        self.assertEqual(second.context.trace_id, first.context.trace_id)
        self.assertTrue(second.status.is_unset)

    def test_a_handler_is_inside_its_span_and_what_it_submits_follows_it(self):
        seen = []

        def perform(task):
            seen.append(trace.get_current_span().get_span_context().span_id)
            task.queue.submit("child", "report")

        submit("task", now=None)
        self.run_due(perform)
        [process] = self.spans("process")
        child = self.spans("send")[-1]
        self.assertEqual(seen, [process.context.span_id])
        self.assertEqual(child.parent.span_id, process.context.span_id)
        self.assertIn(f"{child.context.span_id:016x}", stored("child")["traceparent"])
        self.assertFalse(trace.get_current_span().get_span_context().is_valid)

    def test_a_coroutine_is_inside_its_span_too(self):
        async def perform(task):
            return f"{trace.get_current_span().get_span_context().span_id:016x}"

        submit("task", now=None)
        self.run_due(perform)
        [process] = self.spans("process")
        self.assertEqual(Queue()["task"].wait(), f"{process.context.span_id:016x}")

    def test_a_batch_is_one_span(self):
        tasks = [{"key": f"k{number}", "type": "report"} for number in range(3)]
        async_to_sync(Queue().asubmit_many)(tasks)

        [send] = self.spans()
        self.assertEqual(send.attributes["messaging.batch.message_count"], 3)
        parents = {stored(task["key"])["traceparent"][36:52] for task in tasks}
        self.assertEqual(parents, {f"{send.context.span_id:016x}"})

    def test_a_submit_that_is_refused_is_an_error(self):
        submit("task")
        with self.assertRaises(AlreadyExistsError):
            submit("task")
        self.assertEqual(
            self.spans()[-1].attributes["error.type"].rpartition(".")[2], "AlreadyExistsError"
        )

    def test_a_trace_from_elsewhere_is_gone_on_with(self):
        in_context(lambda: submit("task"), traceparent=PARENT, tracestate="a=1")
        [send] = self.spans()
        self.assertEqual(f"{send.parent.span_id:016x}", PARENT[36:52])
        self.assertEqual(stored()["tracestate"], "a=1")
        self.assertEqual(stored()["traceparent"][3:35], PARENT[3:35])

    def test_a_task_from_before_and_one_with_a_broken_context_begin_a_trace(self):
        for number, text in enumerate((None, "{")):
            submit(f"k{number}", now=None)
            Task.objects.update(context=text)
            self.exporter.clear()
            with caught_errors():
                self.run_due(lambda task: None)
            [wait], [process] = self.spans("wait"), self.spans("process")
            self.assertIsNone(wait.parent)
            self.assertEqual(process.parent.span_id, wait.context.span_id)
            self.assertEqual(process.links, ())
            Queue().clear()
        self.assertEqual(process.attributes["perfectqueue.ending"], "failed")

    def test_switched_off_it_makes_no_span_and_no_context(self):
        with override_settings(PERFECTQUEUE={}), self.tracer.start_as_current_span("view"):
            submit("task", now=None)
            self.run_due(lambda task: None)
        self.assertEqual([span.name for span in self.spans()], ["view"])
        self.assertIsNone(stored())
        self.assertIsNone(tracing.current())


@NEEDED
class CrewTests(SpanMixin, ConcurrentTestCase):
    def test_each_of_many_at_once_has_a_span_of_its_own(self):
        def function(task):
            return trace.get_current_span().get_span_context().span_id

        async def coroutine(task):
            await asyncio.sleep(0)
            if task.key.endswith("0"):
                raise ValueError("as it should")
            return function(task)

        keys = self.submit(*["coroutine"] * 3, *["function"] * 2)
        processor = self.processor(
            "async", {"coroutine": coroutine, "function": function}, MAX_ATTEMPTS=1
        )
        with caught_errors(), override_settings(PERFECTQUEUE={"TRACING": True, "MAX_ATTEMPTS": 1}):
            self.work(processor)

        spans = {span.attributes["messaging.message.id"]: span for span in self.spans("process")}
        self.assertEqual(sorted(spans), sorted(keys))
        results = {task.key: task.result for task in Task.objects.filter(outcome="finished")}
        self.assertEqual(len(results), 4)
        for key, result in results.items():
            self.assertEqual(result, spans[key].context.span_id)
        self.assertEqual(spans["coroutine-0"].attributes["perfectqueue.ending"], "failed")


@contextmanager
def caught_errors():
    with mock.patch("django_perfectqueue.worker.attempt.settling.logger"):
        yield
