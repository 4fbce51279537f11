"""What tests run has the surroundings that a worker would give, and leaves the test its own."""

from contextvars import copy_context

from django.test import TestCase, TransactionTestCase, override_settings

from django_perfectqueue.application import Dispatch
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain, eager

from ..worker.tenants import TENANTS, alook, look, seen, set_session, tenant

SESSION, BLOCK = "tests.worker.tenants.in_session", "tests.worker.tenants.in_block"


class LookDispatch(Dispatch):
    routes = {"look": look, "alook": alook}


class Surroundings:
    def submit(self, before=str, after=str):
        def act(name):
            tenant.set(name)
            before(name)
            for kind in ("look", "alook"):
                Queue().submit(f"{kind}-{name}", kind, {"tenant": name})
            after(name)

        for name in TENANTS:
            copy_context().run(act, name)

    def assert_own(self):
        tasks = list(Task.objects.all())
        self.assertEqual(len(tasks), 6)
        for task in tasks:
            own = [task.data["tenant"]] * 2
            self.assertEqual(task.result, [own, own], task.key)

    def run_all(self, act):
        for path in (SESSION, BLOCK):
            settings = {"CONTEXT": [path], "DISPATCH": f"{__name__}.LookDispatch"}
            with self.subTest(path), override_settings(PERFECTQUEUE=settings):
                Queue().clear()
                token = tenant.set("mine")
                set_session("mine")
                try:
                    act()
                    self.assertEqual(seen(), ["mine", "mine"])
                finally:
                    tenant.reset(token)
                    set_session(None)
                self.assert_own()

    def test_drain(self):
        def act():
            self.submit()
            drain()

        self.run_all(act)

    def test_eager(self):
        def act():
            with eager():
                self.submit(set_session, lambda name: self.assertEqual(seen(), [name, name]))
            set_session("mine")

        self.run_all(act)


class InATransactionTests(Surroundings, TestCase):
    pass


class CommittedTests(Surroundings, TransactionTestCase):
    pass
