from __future__ import annotations

import json
from contextlib import ExitStack

from django.test import TransactionTestCase, tag

from .chartroom import DATA, chartroom

DEFECT = "birch/shop-2025-05.csv, line 57: 'n/a' is not a number"

READ_PAGES = """
from django.test import Client
for page in ("/", "/customers/birch/"):
    print(Client(SERVER_NAME="localhost").get(page).content.decode())
"""

UPLOAD = """
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from reports.models import Customer
file = SimpleUploadedFile("mine.csv", b"date,item,quantity,price\\n2026-11-01,tea,2,3.50\\n")
chosen = Customer.objects.get(slug="dune").pk
done = Client(SERVER_NAME="localhost").post("/", {"customer": chosen, "file": file}, follow=True)
print(done.content.decode())
"""


@tag("thorough")
class DemoTests(TransactionTestCase):
    """The README's first command does what it says, on every database."""

    def setUp(self):
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.room = stack.enter_context(chartroom())

    def run_demo(self, *options):
        done = self.room.demo(*options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stdout + done.stderr)
        return done.stdout

    def assert_charts(self, *, times):
        for folder in (file for file in DATA.iterdir() if file.is_dir()):
            good = {file.stem for file in folder.glob("*.csv")}
            if folder.name == "birch":
                good.remove("shop-2025-05")
            if folder.name == "aurora":
                good.add("all-shops-2025")
            drawn = sorted(name.split(".")[0] for name in self.room.charts(folder.name))
            self.assertEqual(drawn, sorted([*good] * times), folder.name)

    def failed(self):
        reported = self.room.manage("pq_task", "list", "--status", "failed", "--json").stdout
        return [json.loads(line) for line in reported.splitlines()]

    def test_every_customer_gets_its_charts_and_the_defect_its_reason(self):
        reported = self.run_demo()
        self.assertIn(DEFECT, reported)
        self.assertIn("aurora/all-shops-2025.csv is large, and waits for an approval", reported)
        self.assertIn("its callback counted 98 charts", reported)
        self.assertIn("reports.tasks.count", self.room.manage("pq_schedule", "list").stdout)
        self.assertRegex(reported, r" s   charts: \S.* \d+/\d+ ")
        self.assert_charts(times=1)
        self.assertEqual([task["user"] for task in self.failed()], ["birch"])

        pages = self.room.python(READ_PAGES)
        self.assertIn("Cobalt Couriers", pages)
        self.assertIn("line 57: &#x27;n/a&#x27; is not a number", pages)
        self.assertIn("/media/charts/birch/shop-2025-01.", pages)

        self.assertIn("dune/mine.csv is in the queue", self.room.python(UPLOAD))
        self.room.manage("pq_worker", "--burst")
        self.assertTrue(any(name.startswith("mine.") for name in self.room.charts("dune")))

    def test_a_second_run_adds_and_a_fresh_one_forgets(self):
        self.run_demo()
        self.run_demo()
        self.assert_charts(times=2)

        self.run_demo("--fresh")
        self.assert_charts(times=1)


class TroubleTests(TransactionTestCase):
    """What is wrong outside is said in a sentence, not in a traceback."""

    def test_a_database_that_cannot_be_reached_is_named(self):
        with chartroom() as room:
            room.url = f"sqlite:///{room.media}/missing/chartroom.sqlite3"
            done = room.demo()
        self.assertEqual(done.returncode, 1)
        self.assertIn("demo: the database did not answer: unable to open", done.stdout)
        self.assertNotIn("Traceback", done.stdout + done.stderr)
