"""The recipe of a task that submits itself, run as it stands on its page."""

import re
import types
from pathlib import Path
from unittest import SkipTest

from django_perfectqueue.application.registry import Registry
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import QueueTestCase

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "howto" / "schedules.md"

if not PAGE.exists():
    raise SkipTest("The documentation is not beside the tests.")


class ScheduleTests(QueueTestCase):
    def test_a_task_submits_the_next_one(self):
        [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        page = types.ModuleType("stock.tasks")
        self.addCleanup(Registry.routes.pop, "stock.count", None)
        exec(compile(code, str(PAGE), "exec"), vars(page))

        page.submit_count(day=0)
        page.submit_count(day=0)
        self.assertEqual(Queue().list().count(), 1)
        self.drain(ahead="3h")
        first, second = Queue().list().order_by("key")
        self.assertEqual((first.status, second.status), ("finished", "scheduled"))
