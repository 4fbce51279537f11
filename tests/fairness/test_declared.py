"""Limits in code: named by templates, declared beside the task, and missed where there are none."""

import io
import json
from datetime import timedelta
from enum import Enum
from unittest import mock

from django.core.management import call_command
from django.test import SimpleTestCase, TestCase

from django_perfectqueue import store
from django_perfectqueue.application import Application, Registry, autodiscover, handler
from django_perfectqueue.checks.project import check_limits
from django_perfectqueue.exceptions import ConfigError, InvalidScheduleError, InvalidTaskError
from django_perfectqueue.fairness.declared import declared, store_declared
from django_perfectqueue.fairness.limits import limit, remove_limit, set_limit
from django_perfectqueue.models import Change, Task, Worker
from django_perfectqueue.payload.limit_names import checked_templates, filled, noted, of_types
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.limits.meters import forget_limits
from tests.factories import acquire, keys, register, submit
from tests.waiting import wait_until
from tests.worker.workers import WorkerTestCase


class DeclaredCase(TestCase):
    def setUp(self):
        autodiscover()
        for found in (declared, noted):
            self.enterContext(mock.patch.dict(found, clear=True))
        self.enterContext(mock.patch.dict(Registry.routes))
        for cache in (of_types, Registry._found, Registry._made):
            self.enterContext(mock.patch.dict(cache, clear=True))
        forget_limits("default")
        self.addCleanup(forget_limits, "default")

    def declare(self, limits, *, type_="charge"):
        """Declare a handler, in place of one of this type, and return it as workers have it."""
        Registry.routes.pop(type_, None)

        @handler(type_, limits=limits)
        def charge(task):
            """Do nothing."""

        return Registry.load()[type_]


class TemplateTests(SimpleTestCase):
    def fill(self, template, data=None, user=""):
        [name] = filled([template], lambda: data, user)
        return name

    def test_names_are_made_of_data_and_user(self):
        data = {"account": "a-7", "to": [{"id": 17}], "rate": 1.5}
        for template, name in (
            ("smtp", "smtp"),
            ("stripe:{data[account]}", "stripe:a-7"),
            ("{data[to][0][id]}-{user}", "17-ann"),
            ("r{data[rate]}", "r1.5"),
            ("{{literal}}", "{literal}"),
        ):
            with self.subTest(template):
                self.assertEqual(self.fill(template, data, "ann"), name)

    def test_a_member_of_an_enum_is_named_as_it_is_stored(self):
        for members in (Enum("Text", {"A": "red"}, type=str), Enum("Whole", {"A": 7}, type=int)):
            name = self.fill("c:{data[a]}", {"a": members["A"]})
            stored = json.loads(json.dumps(members["A"]))
            self.assertEqual(name, f"c:{stored}")

    def test_what_a_task_lacks_or_is_no_text_is_said(self):
        data = {"account": None, "list": [], "deep": {"a": 1}, "yes": True, "text": "abc"}
        for template, reported in (
            ("x{data[account]}", "needs data[account], which the task lacks"),
            ("x{data[other]}", "needs data[other], which the task lacks"),
            ("x{data[list][0]}", "which the task lacks"),
            ("x{data[text][0]}", "which the task lacks"),
            ("x{user}", "needs user, which the task lacks"),
            ("x{data[deep]}", "needs a text or a number, not dict"),
            ("x{data[list]}", "needs a text or a number, not list"),
            ("x{data[yes]}", "needs a text or a number, not bool"),
        ):
            with self.subTest(template), self.assertRaisesMessage(InvalidTaskError, reported):
                self.fill(template, data)
        with self.assertRaisesMessage(InvalidTaskError, "is too long"):
            self.fill("x{data[n]}", {"n": 10**5000})

    def test_a_template_reaches_nothing_but_items(self):
        for template in (
            "{data.__class__}",
            "{data[a].__class__}",
            "{user.__class__.__mro__}",
            "{data}",
            "{}",
            "{0}",
            "{key}",
            "{data[a]!r}",
            "{data[a]:>9}",
            "{data[a]:{user}}",
            "{data[{user}]}",
            "{data[a]",
            "a}b",
            "{",
        ):
            with self.subTest(template):
                with self.assertRaisesMessage(InvalidTaskError, "can't be read"):
                    checked_templates([template])
                with self.assertRaisesMessage(InvalidTaskError, "can't be read"):
                    self.fill(template, {"a": "b"}, "ann")


class SubmitTests(DeclaredCase):
    def test_a_handlers_limits_hold_for_its_tasks(self):
        self.declare(["stripe:{data[account]}", "all"])
        set_limit("stripe:*", max_running=1)
        for number in range(4):
            submit(f"k{number}", type="charge", data={"account": number % 2}, limits=["more"])
        self.assertEqual(Task.objects.get(key="k1").limits, "all,more,stripe:1")
        self.assertEqual(keys(acquire(10)), ["k0", "k1"])

    def test_a_class_and_a_pattern_have_them_too(self):
        class Charge(Application):
            limits = ("each:{user}",)

        import re

        handler(re.compile("^pay"))(Charge)
        submit("a", type="pay.now", user="ann")
        self.assertEqual(Task.objects.get().limits, "each:ann")

    def test_a_name_that_can_not_be_is_refused_and_nothing_is_stored(self):
        self.declare(["stripe:{data[account]}"])
        for data, reported in (
            (None, "which the task lacks"),
            ({"account": "a,b"}, "must be a text of 1 to 249"),
            ({"account": "x" * 300}, "must be a text of 1 to 249"),
            ({"account": "*"}, "not the family"),
        ):
            with self.subTest(data), self.assertRaisesMessage(InvalidTaskError, reported):
                submit(type="charge", data=data)
        self.assertFalse(Task.objects.exists())

    def test_what_a_program_gives_along_is_no_template(self):
        submit(limits=["a{user}"], user="ann")
        self.assertEqual(Task.objects.get().limits, "a{user}")

    def test_a_schedule_fills_its_own_and_those_of_the_handler(self):
        self.declare(["stripe:{data[account]}"])
        schedules = Schedules(using="default")
        schedules.put("n", "charge", {"account": 7}, every="1h", user="ann", limits=["u:{user}"])
        schedules["n"].trigger()
        self.assertEqual(Task.objects.get().limits, "stripe:7,u:ann")
        with self.assertRaisesMessage(InvalidScheduleError, "can't be read"):
            schedules["n"].change(limits=["{data.__class__}"])

    def test_handlers_that_can_not_be_imported_keep_nobody_from_submitting(self):
        with (
            self.settings(PERFECTQUEUE={"DISPATCH": "nowhere.Dispatch"}),
            self.assertLogs("django_perfectqueue.fairness", "ERROR") as logs,
        ):
            submit("a", type="charge")
        self.assertIn("The limits of a type are unknown here. type=charge", logs.output[0])


class DeclarationTests(DeclaredCase):
    def start(self, number=1, *, ago=0.0):
        """Be a worker with what is declared now, which started so many seconds ago."""
        now = store.records.clock(using="default")
        register(id=number, now=now)
        Worker.objects.filter(pk=number).update(started_at=now - timedelta(seconds=ago))
        store_declared(number, using="default")

    def terms(self, name="mail"):
        row = limit(name)
        return row and (row.max_running, row.rate, row.period, row.burst)

    def test_a_worker_stores_what_is_declared_once(self):
        self.declare(
            {"mail": "100/min", "stripe:{data[a]}": {"max_running": 2, "rate": 5, "period": 2}}
        )
        self.start(1)
        self.start(2)
        self.assertEqual(self.terms(), (None, 100, 60.0, None))
        self.assertEqual(self.terms("stripe:*"), (2, 5, 2.0, None))
        self.assertEqual(Change.objects.count(), 2)
        submit("a", type="charge", data={"a": 1})
        self.assertEqual(Task.objects.get().limits, "mail,stripe:1")

    def test_a_persons_change_stands_until_the_declaration_changes(self):
        self.declare({"mail": {"max_running": 5}})
        self.start(1)
        set_limit("mail", max_running=1, rate=9, paused=True, note="wait")
        self.start(2)
        self.assertEqual(self.terms(), (1, 9, 1.0, None))
        self.declare({"mail": {"max_running": 6}})
        self.start(3)
        self.assertEqual(self.terms(), (6, None, 1.0, None))
        self.assertEqual((limit("mail").paused, limit("mail").note), (True, "wait"))

    def test_a_persons_limit_of_the_same_name_stays(self):
        set_limit("mail", max_running=1)
        self.declare({"mail": "100/min"})
        with self.assertLogs("django_perfectqueue.fairness", "WARNING") as logs:
            self.start(1)
        self.assertIn("A person has stored a limit of this name: that one stays.", logs.output[0])
        self.assertEqual(self.terms()[:2], (1, None))

    def test_during_a_release_the_younger_worker_counts(self):
        self.declare({"mail": "2/s"})
        self.start(2, ago=10)
        self.declare({"mail": "1/s"})
        self.start(1, ago=100)
        self.assertEqual(self.terms()[:2], (None, 2))
        self.start(3, ago=1)
        self.assertEqual(self.terms()[:2], (None, 1))

    def test_what_can_not_be_declared_is_refused_with_what_can(self):
        for limits, reported in (
            ("mail", "must be a list of names"),
            ({"mail": "often"}, "A rate is such as '10/min'"),
            (
                {"mail": {"max_runing": 1}},
                "Give a rate, or a mapping of rate, period, burst, max_running",
            ),
            ({"mail": {"max_running": -1}}, "max_running must be"),
            ({"mail": {"burst": 5}}, "A burst needs a rate"),
            ({"mail": {"rate": 0}}, "rate must be"),
            ({"mail": 1.5}, "Give a rate, or a mapping"),
            ({"{user}": "1/s"}, "has to begin with a text"),
            (["{data.__class__}"], "can't be read"),
            (["mail:*"], "not the family"),
        ):
            with self.subTest(limits), self.assertRaisesMessage(ConfigError, reported):
                self.declare(limits)

    def test_two_that_say_otherwise_of_one_are_refused(self):
        self.declare({"mail": "1/s"})
        self.declare(["mail"], type_="other")
        with self.assertRaisesMessage(ConfigError, "says otherwise what the limit 'mail' is"):

            class Again(Application):
                limits = {"mail": "2/s"}

            handler("again")(Again)
            Registry.load()

    def test_what_one_of_djangos_tasks_declares_is_stored_or_reported(self):
        noted.update({"shop.tasks.send": {"mail": "1/s"}, "shop.tasks.pay": {"x": "often"}})
        with self.assertLogs("django_perfectqueue.fairness", "ERROR") as logs:
            self.start(1)
        self.assertIn("shop.tasks.pay has limits that can't be", logs.output[0])
        self.assertEqual(self.terms()[:2], (None, 1))
        [problem] = check_limits(databases=["default"])
        self.assertEqual(problem.id, "perfectqueue.E052")


class MissingLimitTests(DeclaredCase):
    def missing(self):
        return [problem.msg for problem in check_limits(databases=["default"])]

    def test_a_check_reports_a_name_of_code_without_a_limit(self):
        self.declare(["confirmations", "stripe:{data[a]}"])
        first, second = self.missing()
        self.assertIn("The limit 'confirmations', which ", first)
        self.assertIn("'stripe:*'", second)
        set_limit("confirmations", max_running=1)
        set_limit("stripe:*", max_running=1)
        self.assertEqual(self.missing(), [])
        remove_limit("confirmations")
        set_limit("conf*", max_running=1)
        self.assertEqual(self.missing(), [])
        self.declare({"mail": "1/s"})
        self.assertEqual(self.missing(), [])

    def test_health_reports_names_of_the_newest_tasks(self):
        register(now=None)
        submit(limits=["confirmations", "stripe:1"], now=None)
        set_limit("stripe:*", max_running=1)
        out = io.StringIO()
        call_command("pq_status", "health", stdout=out)
        self.assertIn("limits that do not exist, and limit nothing: 1.", out.getvalue())
        self.assertIn("pq_limit set name:NAME, or a family: 'confirmations'.", out.getvalue())
        set_limit("confirmations", max_running=1)
        out = io.StringIO()
        call_command("pq_status", "health", stdout=out)
        self.assertIn("Every limit that the newest tasks list exists.", out.getvalue())


class WorkerTests(WorkerTestCase):
    def test_a_worker_stores_what_its_handlers_declare_and_keeps_to_it(self):
        self.enterContext(mock.patch.dict(declared, clear=True))
        self.enterContext(mock.patch.dict(of_types, clear=True))
        worker = self.worker("tests.tasks.LimitedDispatch").ready()
        wait_until(lambda: limit("declared:*") is not None)
        row = limit("declared:*")
        self.assertEqual((row.max_running, row.rate, row.period), (1, 100, 1.0))
        with self.settings(PERFECTQUEUE={"DISPATCH": "tests.tasks.LimitedDispatch"}):
            for number in range(4):
                Queue().submit(f"k{number}", "limited", {"name": number % 2})
        wait_until(lambda: Task.objects.filter(outcome="finished").count() == 4)
        self.assertEqual(Task.objects.get(key="k1").limits, "declared:1")
        self.assertNotIn("A task lists a limit that does not exist", worker.errors)
