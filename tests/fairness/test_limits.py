import io
import math
from unittest import mock

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import limits as door
from django_perfectqueue.fairness.limits import (
    alimit,
    aremove_limit,
    aset_limit,
    limit,
    remove_limit,
    set_limit,
)
from django_perfectqueue.models import Limit
from django_perfectqueue.queue import Queue
from tests.factories import acquire, submit


class LimitTests(TestCase):
    """Programs see and change limits without knowing the rows."""

    def test_only_what_is_given_is_changed(self):
        set_limit("smtp", rate=10, period=60, burst=5)
        set_limit("smtp", max_running=2)
        set_limit("smtp", rate=20)

        row = limit("smtp")
        self.assertEqual((row.max_running, row.rate, row.period, row.burst), (2, 20, 60, 5))
        self.assertEqual((row.key, row.paused), ("name:smtp", False))

    def test_without_a_rate_there_is_no_burst(self):
        set_limit("smtp", max_running=2, rate=10, period=60, burst=5)

        row = set_limit("smtp", rate=None)

        self.assertEqual((row.max_running, row.rate, row.period, row.burst), (2, None, 1, None))

    def test_a_burst_that_can_not_be_reckoned_with_is_refused_at_every_door(self):
        for rate, period, burst in ((1, 31_622_400, 20_000), (1, 60, 2**31 - 1)):
            given = {"rate": rate, "period": period, "burst": burst}
            with self.subTest(**given):
                with self.assertRaisesMessage(ConfigError, "The burst may be at most"):
                    set_limit("y", **given)
                row = Limit(name="y", **given)
                with self.assertRaisesMessage(ValidationError, "burst is too large"):
                    row.full_clean()
                with self.assertRaises(DatabaseError), transaction.atomic():
                    row.save()
        set_limit("y", rate=1, period=60, burst=500_000)
        with self.assertRaisesMessage(ConfigError, "The burst may be at most"):
            set_limit("y", period=3600)
        self.assertEqual(limit("y").period, 60)

    def test_the_largest_burst_starts_and_is_shown(self):
        for period, burst in ((31_622_400, 1), (60, 527_040)):
            set_limit("y", rate=1, period=period, burst=burst)
            for _number in range(3):
                submit(limits=["y"], now=None)
            acquire(10, now=None)
            call_command("pq_limit", "list", stdout=io.StringIO())
            self.client.force_login(
                User.objects.get_or_create(username="boss", is_staff=True, is_superuser=True)[0]
            )
            self.assertEqual(self.client.get("/admin/perfectqueue/limit/").status_code, 200)

    def test_a_name_is_another_in_each_scope(self):
        for number, scope in enumerate(door.SCOPES):
            set_limit("x", scope=scope, max_running=number)

        found = [limit("x", scope=scope).max_running for scope in door.SCOPES]
        self.assertEqual(found, [0, 1, 2, 3])

    def test_it_is_removed_once(self):
        set_limit("smtp", max_running=2)

        self.assertTrue(remove_limit("smtp"))
        self.assertFalse(remove_limit("smtp"))

        self.assertIsNone(limit("smtp"))

    def test_what_can_not_be_is_refused_with_what_can(self):
        for given, reported in (
            ({}, "There is no limit 'name:smtp' yet: give max_running, rate or paused."),
            ({"max_running": -1}, "The max_running must be a whole number from 0"),
            ({"rate": 0}, "The rate must be a whole number from 1"),
            ({"rate": 1, "period": 0}, "The period must be a number from 0.001"),
            ({"rate": 1, "period": math.nan}, "not nan"),
            ({"rate": 1, "burst": 0}, "The burst must be a whole number from 1"),
            ({"burst": 5}, "A burst needs a rate"),
            ({"paused": True, "period": 5}, "A period needs a rate"),
            ({"paused": 1}, "paused must be True or False, not 1."),
            ({"paused": True, "scope": "que"}, "one of 'name', 'queue', 'type', 'user', not 'que'"),
        ):
            with self.subTest(given), self.assertRaisesMessage(ConfigError, reported):
                set_limit("smtp", **given)
        for name, scope, reported in (
            ("", "name", "must be a text of 1 to 249"),
            ("a,b", "name", "must not hold a comma"),
            ("x" * 101, "queue", "at most 100 characters"),
            ("x" * 256, "type", "(256 characters)"),
            (None, "type", "must be a text of"),
        ):
            with self.subTest(name), self.assertRaisesMessage(ConfigError, reported):
                set_limit(name, scope=scope, paused=True)
        self.assertFalse(Limit.objects.exists())

    def test_each_has_an_async_twin(self):
        async def use():
            await aset_limit("smtp", max_running=3)
            found = await alimit("smtp")
            return found.max_running, await aremove_limit("smtp")

        self.assertEqual(async_to_sync(use)(), (3, True))


class PauseTests(TestCase):
    """A queue is paused by a limit of its own."""

    def test_a_queue_is_paused_until_it_is_unpaused(self):
        queue = Queue("reports")
        self.assertFalse(queue.is_paused())

        queue.pause()
        self.assertTrue(queue.is_paused())
        self.assertFalse(Queue().is_paused())
        self.assertTrue(limit("reports", scope="queue").paused)

        queue.unpause()
        self.assertFalse(queue.is_paused())

    def test_nothing_is_left_of_a_pause(self):
        queue = Queue("reports")
        queue.pause()
        queue.unpause()
        queue.unpause()

        self.assertFalse(Limit.objects.exists())

    def test_what_else_limits_the_queue_stays(self):
        set_limit("reports", scope="queue", max_running=3)

        Queue("reports").pause()
        Queue("reports").unpause()

        row = limit("reports", scope="queue")
        self.assertEqual((row.max_running, row.paused), (3, False))


class HoldTests(TransactionTestCase):
    """What is said through these doors is what workers keep to."""

    def taken(self, *queues):
        return sorted(lease.key for lease in acquire(10, queues=queues or ("default",), now=None))

    def test_a_paused_queue_starts_nothing_until_it_is_unpaused(self):
        for queue in ("default", "reports"):
            submit(f"in-{queue}", queue=queue, now=None)
        Queue("reports").pause()
        self.assertEqual(self.taken("default", "reports"), ["in-default"])

        Queue("reports").unpause()

        self.assertEqual(self.taken("default", "reports"), ["in-reports"])

    def test_a_queue_can_be_paused_before_it_has_tasks(self):
        Queue("reports").pause()
        submit("k", queue="reports", now=None)
        self.assertEqual(self.taken("reports"), [])

        Queue("reports").unpause()

        self.assertEqual(self.taken("reports"), ["k"])

    def test_a_limit_that_is_loosened_or_removed_lets_more_start(self):
        set_limit("report", scope="type", max_running=1)
        for number in range(3):
            submit(f"k{number}", now=None)
        self.assertEqual(self.taken(), ["k0"])

        set_limit("report", scope="type", max_running=2)
        self.assertEqual(self.taken(), ["k1"])
        remove_limit("report", scope="type")
        self.assertEqual(self.taken(), ["k2"])


class RingTests(TransactionTestCase):
    def test_idle_workers_look_when_a_limit_has_changed(self):
        for change in (
            lambda: set_limit("smtp", max_running=1),
            lambda: set_limit("smtp", max_running=2),
            lambda: remove_limit("smtp"),
            Queue("reports").pause,
            Queue("reports").unpause,
        ):
            with mock.patch("django_perfectqueue.store.lanes.apply.notify_workers") as ring:
                change()
            ring.assert_called_once_with(using="default")
