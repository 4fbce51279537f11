"""What code declares, and what becomes of it when workers start and end."""

import re
import types
from datetime import timedelta
from pathlib import Path
from unittest import SkipTest, mock, skipUnless

from django.test import SimpleTestCase

from django_perfectqueue import store
from django_perfectqueue.application import Registry, autodiscover, handler
from django_perfectqueue.checks.project import check_schedules
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.exceptions import ConfigError, InvalidScheduleError
from django_perfectqueue.models import Schedule, Worker
from django_perfectqueue.models.worker import UNSEEN
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules, cron, every, scheduled
from django_perfectqueue.schedules.declared import declarations, declared_for, sync
from django_perfectqueue.store.arithmetic import ticks

from .test_schedules import Case


class DeclaredCase(Case):
    def setUp(self):
        super().setUp()
        autodiscover()
        self.enterContext(mock.patch.dict(declarations, clear=True))
        self.enterContext(mock.patch.dict(Registry.routes))

    def declare(self, timing, name="", **terms):
        @scheduled(timing, name=name, **terms)
        @handler("nightly")
        def nightly(task):
            """Do nothing."""

        self.addCleanup(Registry._found.clear)
        self.addCleanup(Registry._made.pop, "nightly", None)
        return nightly

    def start(self, number, *, ago=0.0, seen_ago=0.0, first=True):
        """Be a worker with what is declared now, which started so many seconds ago."""
        now = store.records.clock(using="default")
        facts = {
            "host": "h", "pid": number, "version": "1", "processors": 1, "queues_text": "[]",
            "routes_text": "null", "started_at": now - timedelta(seconds=ago),
            "seen_at": now - timedelta(seconds=seen_ago),
            "schedules_text": str(sorted(declarations)).replace("'", '"'),
        }  # fmt: skip
        Worker.objects.update_or_create(id=number, defaults=facts)
        return sync(declared_for("default"), using="default", worker=number, first=first)


class SyncTests(DeclaredCase):
    def test_a_worker_stores_what_is_declared_once(self):
        self.declare(cron("0 3 * * *", "Europe/Zurich"), user="reports", overlap="queue_one")
        self.assertTrue(self.start(1))
        self.assertTrue(self.start(2))
        row = Schedule.objects.get()
        self.assertEqual((row.name, row.type, row.origin), ("nightly", "nightly", "code"))
        self.assertEqual((row.cron, row.timezone), ("0 3 * * *", "Europe/Zurich"))
        self.assertEqual((row.user, row.overlap), ("reports", "queue_one"))
        self.assertEqual(row.state, "active")

    def test_without_any_nothing_is_looked_at_again(self):
        self.assertFalse(self.start(1))

    def test_a_persons_pause_and_change_stand_until_the_declaration_changes(self):
        self.declare(every("10m"))
        self.start(1)
        self.schedules["nightly"].pause("wait", by="ann")
        self.schedules["nightly"].change(priority=5)
        self.start(2)
        row = Schedule.objects.get()
        self.assertEqual((row.state, row.note, row.priority), ("paused", "wait", 5))
        self.declare(every("20m"))
        self.start(3)
        row = Schedule.objects.get()
        self.assertEqual((row.state, row.note, row.priority), ("paused", "wait", 0))
        self.assertEqual(row.every, 1200)

    def test_it_is_retired_when_no_live_worker_declares_it(self):
        self.declare(every("10m"))
        self.start(1, ago=100)
        declarations.clear()
        self.start(2)
        self.assertEqual(Schedule.objects.get().state, "active")
        Worker.objects.filter(id=1).update(
            seen_at=store.records.clock(using="default") - UNSEEN - timedelta(seconds=1)
        )
        self.start(2, first=False)
        self.assertEqual(Schedule.objects.get().state, "gone")
        self.declare(every("10m"))
        self.start(3)
        self.assertEqual(Schedule.objects.get().state, "active")

    def test_one_that_was_retired_while_its_worker_was_not_seen_goes_on(self):
        self.declare(every("10m"))
        self.start(1)
        Schedule.objects.update(origin="gone", next_at=None, due_at=None)
        self.start(1, first=False)
        self.assertEqual(Schedule.objects.get().state, "active")

    def test_one_that_is_gone_submits_nothing_whatever_is_done_to_it(self):
        self.declare(every("10m"))
        self.start(1)
        Schedule.objects.update(origin="gone", next_at=None, due_at=None)
        schedule = self.schedules["nightly"]
        for act in (
            lambda: schedule.pause("note"),
            schedule.unpause,
            lambda: schedule.change(every=60),
        ):
            act()
            row = Schedule.objects.get()
            self.assertEqual((row.origin, row.next_at, row.due_at), ("gone", None, None))

    def test_one_that_is_gone_becomes_a_persons_by_a_put(self):
        self.declare(every("10m"))
        self.start(1)
        Schedule.objects.update(origin="gone", next_at=None, due_at=None)
        self.put("nightly", every=60)
        row = Schedule.objects.get()
        self.assertEqual((row.origin, row.state), ("row", "active"))

    def test_of_two_releases_the_younger_one_decides(self):
        self.declare(every("20m"))
        self.start(2, ago=10)
        self.declare(every("10m"))
        self.start(1, ago=100)
        self.assertEqual(Schedule.objects.get().every, 1200)

    def test_a_persons_schedule_of_that_name_stays(self):
        self.put("nightly", every=60)
        self.declare(every("10m"))
        with self.assertLogs("django_perfectqueue.schedules", "WARNING"):
            self.start(1)
        row = Schedule.objects.get()
        self.assertEqual((row.every, row.origin), (60, "row"))

    def test_one_that_is_wrong_holds_up_no_other(self):
        self.declare(every("10m"), name="a", timezone="Mars/Olympus")
        self.declare(every("10m"), name="b")
        with self.assertLogs("django_perfectqueue.schedules", "ERROR") as log:
            self.start(1)
        self.assertIn("Mars/Olympus", log.output[0])
        self.assertEqual(Schedule.objects.get().name, "b")

    def test_a_task_of_djangos_runs_with_its_queue_and_knows_its_tick(self):
        if not HAS_TASKS:
            self.skipTest("There are none.")
        from ..backend import jobs

        scheduled(every("10m"), name="later", data={"args": [7], "kwargs": {}})(jobs.later)
        self.start(1)
        row = Schedule.objects.get()
        self.assertEqual((row.type, row.queue), (jobs.later.module_path, "default"))
        self.assertEqual(row.priority, 5)
        self.fire(row.due_at)
        (task,) = Queue().acquire(now=row.due_at)
        self.assertEqual(
            (task.data, task.scheduled_for), ({"args": [7], "kwargs": {}}, row.next_at)
        )


class CheckTests(DeclaredCase):
    def problems(self):
        return [(found.id, found.msg) for found in check_schedules()]

    def test_what_can_not_be_stored_is_found(self):
        self.declare(cron("@daily", "Europe/Zurch"), name="zone")
        self.declare(cron("0 0 30 2 *"), name="never")
        self.declare(every(0.5), name="often")
        self.declare(cron("@daily", "Europe/Zurich"), name="good")
        words = ("Europe/Zurich", "no such day", "of at least 1 s")
        for (number, message), word in zip(self.problems(), words, strict=True):
            self.assertEqual(number, "perfectqueue.E050")
            self.assertIn(word, message)

    @skipUnless(HAS_TASKS, "There are no tasks of Django here.")
    def test_data_with_which_a_function_can_not_be_called_are_found(self):
        from ..backend import jobs

        for name, data in (
            ("list", ["night"]),
            ("few", {"args": [1]}),
            ("well", {"args": [1], "kwargs": {"b": 2}}),
        ):
            scheduled(every(60), name=name, data=data)(jobs.add)
        scheduled(every(60), name="context")(jobs.number)
        words = ("'list' can't be stored: The data is not that", "'few' can't be stored")
        for (number, message), word in zip(self.problems(), words, strict=True):
            self.assertEqual(number, "perfectqueue.E050")
            self.assertIn(word, message)
        with self.assertRaisesMessage(InvalidScheduleError, "missing a required argument: 'b'"):
            Schedules().put("few", "tests.backend.jobs.add", {"args": [1]}, every=60)
        handle = Schedules().put("none", "tests.backend.jobs.nothing", every=60)
        self.assertEqual(decode(handle.row().payload), {"args": [], "kwargs": {}})

    def test_missing_time_zones_are_found(self):
        self.declare(cron("@daily", "Europe/Rome"))
        ticks.zone_of.cache_clear()
        with (
            mock.patch.object(ticks, "ZoneInfo", side_effect=ticks.ZoneInfoNotFoundError),
            mock.patch.object(ticks, "available_timezones", return_value=set()),
        ):
            [(_number, message)] = self.problems()
        self.assertIn("tzdata", message)


class DeclarationTests(SimpleTestCase):
    def test_it_must_stand_over_a_handler_and_name_a_timing(self):
        with self.assertRaisesMessage(ConfigError, "no handler"):
            scheduled(every(60))(print)
        with self.assertRaisesMessage(ConfigError, "cron(...) or every(...)"):
            scheduled("0 3 * * *")


class PageTests(DeclaredCase):
    """The code of the how-to page, run as it stands there."""

    def setUp(self):
        super().setUp()
        page = Path(__file__).parents[2] / "docs" / "howto" / "schedules.md"
        if not page.exists():
            raise SkipTest("The documentation is not beside the tests.")
        self.code = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        self.page = types.ModuleType("page")

    def test_a_handler_is_declared_and_a_row_is_put(self):
        handler("invoice")(lambda task: None)
        for kind in ("invoice", "report.nightly"):
            self.addCleanup(Registry._made.pop, kind, None)
        self.addCleanup(Registry._found.clear)
        for code in self.code:
            exec(compile(code, "schedules.md", "exec"), vars(self.page))
        self.start(1)
        found = Schedule.objects.order_by("name").values_list("name", "user", "cron", "every")
        self.assertEqual(
            list(found),
            [
                ("invoice-42", "42", "", 900.0),
                ("report.nightly", "reports", "0 3 * * mon-fri", None),
            ],
        )
