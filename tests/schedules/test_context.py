"""What is submitted for others carries the surroundings of who made it."""

import json
from contextvars import ContextVar, copy_context

from django.contrib.auth.models import User
from django.test import TestCase, override_settings
from django.urls import reverse

from django_perfectqueue import tracing
from django_perfectqueue.application import Dispatch
from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.exceptions import InvalidScheduleError, InvalidTaskError
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.payload import Provider
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.schedules.declared import Declaration, sync

from ..factories import after, submit

HERE = "tests.schedules.test_context"
TENANT = f"{HERE}.tenant"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
pair = Provider(tenant.get, tenant.set)


def handle(task):
    return None


class SomeDispatch(Dispatch):
    routes = {"report": handle}


def as_tenant(name, act):
    def run_it():
        tenant.set(name)
        tracing.traceparent.set(PARENT)
        return act()

    return copy_context().run(run_it)


@override_settings(
    PERFECTQUEUE={"CONTEXT": [TENANT], "DISPATCH": f"{HERE}.SomeDispatch", "MAX_ATTEMPTS": 1}
)
class CarriedTestCase(TestCase):
    def tenants(self):
        """Return by key the tenants that tasks carry."""
        found = {}
        for task in Task.objects.order_by("id"):
            found[task.key] = json.loads(task.context or "{}").get(TENANT)
        return found


class ScheduleTests(CarriedTestCase):
    def put(self, name="acme", key="daily", **terms):
        as_tenant(
            name,
            lambda: Schedules().put(key, "report", every="1m", now=after(0), **terms),
        )
        return Schedules()[key]

    def ticks(self, key="daily"):
        """Fire what is due in other surroundings; return what its tasks carry."""
        as_tenant("other", lambda: Schedules().fire(now=after(3600)))
        rows = Task.objects.filter(key__startswith=f"{key}@")
        return [self.tenants()[row.key] for row in rows]

    def test_ticks_carry_the_context_of_who_put_it(self):
        self.put("acme", overlap="allow", catch_up=3)
        self.put("blue", "blues")
        self.put(None, "nobodys")
        self.assertEqual(set(self.ticks()), {"acme"})
        self.assertEqual(set(self.ticks("blues")), {"blue"})
        self.assertEqual(set(self.ticks("nobodys")), {None})
        [task, *_more] = Task.objects.filter(key__startswith="daily@")
        self.assertNotIn("traceparent", task.context)
        self.assertIn("scheduled_for", task.context)

    def test_so_do_a_trigger_and_a_backfill(self):
        daily = self.put("acme")
        as_tenant("other", daily.trigger)
        as_tenant("other", lambda: daily.backfill(after(-600), after(-300), now=after(0)))
        as_tenant(
            "other",
            lambda: daily.backfill(after(-60), after(-1), now=after(0), overlap="queue"),
        )
        self.assertEqual(set(self.tenants().values()), {"acme"})
        self.assertGreater(len(self.tenants()), 5)

    def test_put_captures_anew_and_a_change_does_not(self):
        daily = self.put("acme")
        as_tenant("other", lambda: daily.change(priority=3))
        as_tenant("other", lambda: daily.pause())
        as_tenant("other", lambda: daily.unpause())
        self.assertEqual(daily.row().surroundings, {TENANT: "acme"})
        self.put("blue")
        self.assertEqual(daily.row().surroundings, {TENANT: "blue"})
        self.put(None)
        self.assertEqual(daily.row().surroundings, {})

    def test_it_can_be_given(self):
        daily = self.put(None, context={TENANT: "acme"})
        self.assertEqual(daily.row().surroundings, {TENANT: "acme"})
        daily.change(context={TENANT: "blue"})
        self.assertEqual(set(self.ticks()), {"blue"})
        self.put("acme", context={})
        self.assertEqual(daily.row().surroundings, {})
        for wrong, problem in (
            ({f"{HERE}.tenent": "acme"}, f"has no '{HERE}.tenent'. Did you mean '{TENANT}'"),
            ([TENANT], "context must be a dict"),
            ({TENANT: {1}}, "can't be written as JSON"),
        ):
            with self.subTest(wrong), self.assertRaisesMessage(InvalidScheduleError, problem):
                daily.change(context=wrong)

    def test_what_code_declares_carries_nothing(self):
        made = Declaration(handle, "report", "declared", None, {"every": "1m"})
        terms = {"using": "default", "worker": 0, "first": True}
        as_tenant("acme", lambda: sync({"declared": made}, **terms))
        self.assertIsNone(Schedule.objects.get(name="declared").context)
        given = {"every": "1m", "context": {TENANT: "blue"}}
        made = Declaration(handle, "report", "declared", None, given)
        as_tenant("acme", lambda: sync({"declared": made}, **terms))
        self.assertEqual(Schedules().get("declared").surroundings, {TENANT: "blue"})

    def test_an_edit_in_the_admin_keeps_it(self):
        daily = self.put("acme")
        self.client.force_login(User.objects.create_superuser("ann"))
        page = reverse("admin:perfectqueue_schedule_change", args=[daily.row().pk])
        form = self.client.get(page).context["adminform"].form
        values = {name: form[name].value() for name in form.fields}
        values = {name: "" if value is None else value for name, value in values.items()}
        for name in ("starts_at", "ends_at"):
            values |= {f"{name}_0": "", f"{name}_1": ""}
        values |= {"priority": "7", "data": "null", "paused": ""}
        values.pop("paused")
        reply = self.client.post(page, values)
        self.assertEqual(reply.status_code, 302, reply.content.decode()[-3000:])
        self.assertEqual(daily.row().priority, 7)
        self.assertEqual(daily.row().surroundings, {TENANT: "acme"})

    def test_one_that_can_not_be_read_sets_the_schedule_aside(self):
        for text in ("{", "[1]"):
            self.put("acme")
            Schedule.objects.update(context=text)
            with self.assertLogs("django_perfectqueue.schedules", "ERROR"):
                Schedules().fire(now=after(7200))
            self.assertTrue(Schedules().get("daily").problem)
        self.assertFalse(Task.objects.exists())


class SubmitTests(CarriedTestCase):
    def test_callbacks_chains_and_batches_carry_it(self):
        def make():
            with Queue().batch("batch") as batch:
                batch.submit("one", "report")
                batch.submit_many([{"key": "two", "type": "report"}])
                with batch.batch("inner") as inner:
                    inner.submit("three", "report")
                batch.then("then", "report")
            Queue().chain([{"key": key, "type": "report"} for key in ("first", "second")])
            Queue().submit("after", "report", after=["first"])
            Queue().submit("replaced", "report")
            Queue().submit("replaced", "report", on_conflict="replace")

        as_tenant("acme", make)
        self.assertEqual(set(self.tenants().values()), {"acme"})
        self.assertEqual(len(self.tenants()), 8)

    def test_copies_and_retries_carry_that_of_the_task(self):
        as_tenant("acme", lambda: submit("task", now=None))
        as_tenant("blue", lambda: Queue()["task"].copy("copy"))
        task = Queue().poll()
        task.fail("no")
        as_tenant("blue", lambda: Queue()[task.key].retry())
        self.assertEqual(self.tenants(), {"task": "acme", "copy": "acme"})

    def test_replacing_takes_that_of_who_replaces(self):
        as_tenant("acme", lambda: submit("task"))
        as_tenant("blue", lambda: submit("task", on_conflict="replace"))
        self.assertEqual(self.tenants(), {"task": "blue"})

    def test_it_can_be_given(self):
        given = {TENANT: "blue"}

        def make():
            Queue().submit("one", "report", context=given)
            Queue().submit_many(
                [{"key": "two", "type": "report", "context": given}, {"key": "3", "type": "report"}]
            )
            with Queue().batch("batch") as batch:
                batch.submit("four", "report", context=given)
                batch.then("then", "report", context={TENANT: None})
            [parent] = Queue().acquire(1, now=after(0))
            Queue().submit("child", "report", context=parent.context)

        as_tenant("acme", make)
        expected = {"one": "blue", "two": "blue", "3": "acme", "four": "blue", "then": None}
        self.assertEqual(self.tenants(), {**expected, "child": "blue"})

    def test_what_is_no_provider_is_refused(self):
        with self.assertRaisesMessage(InvalidTaskError, "Did you mean"):
            Queue().submit("task", "report", context={f"{HERE}.tenants": "acme"})
        with override_settings(PERFECTQUEUE={}), self.assertRaises(InvalidTaskError):
            Queue().submit("task", "report", context={TENANT: "acme"})
        self.assertFalse(Task.objects.exists())

    def test_a_bulk_operation_carries_it(self):
        as_tenant("acme", lambda: submit("task"))
        operation = Operation(verb="cancel", selection=Selection(type="report"))
        as_tenant("acme", lambda: submit_bulk(operation, using="default"))
        self.assertEqual(set(self.tenants().values()), {"acme"})
