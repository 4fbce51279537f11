import importlib.util
import os
import shutil
import unittest
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

from django.contrib.auth.models import User
from django.contrib.staticfiles.testing import StaticLiveServerTestCase
from django.test import tag
from django.utils.timezone import localtime, now

from django_perfectqueue import store
from django_perfectqueue.bulk import TYPE
from django_perfectqueue.fairness.limits import limit, set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import FairShare, Meter, Task, Worker
from django_perfectqueue.payload.journal import entry
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import Tally, UsageKey
from django_perfectqueue.store.records.usage import type_key
from django_perfectqueue.store.values import Note
from django_perfectqueue.test import drain

from ..factories import fail, failed, register, running, submit
from .staff import LIST
from .test_users import USERS, compete

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PLAYWRIGHT = importlib.util.find_spec("playwright")
SCREENSHOTS = os.environ.get("PERFECTQUEUE_TEST_SCREENSHOTS")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}


@unittest.skipUnless(CHROMIUM and PLAYWRIGHT, "needs chromium and the playwright package")
class BrowserCase(StaticLiveServerTestCase):
    """Pictures go to the folder that PERFECTQUEUE_TEST_SCREENSHOTS names."""

    @classmethod
    def setUpClass(cls):
        from playwright.sync_api import sync_playwright

        super().setUpClass()
        cls.enter(mock.patch.dict(os.environ, {"DJANGO_ALLOW_ASYNC_UNSAFE": "true"}))
        playwright = cls.enter(sync_playwright())
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def enter(cls, context):
        entered = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        return entered

    def open(self, name, **options):
        User.objects.create_superuser("boss", password="pw")
        self.page = self.browser.new_context(**options).new_page()
        self.name, self.errors = name, []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{self.live_server_url}{LIST}")
        self.page.fill("#id_username", "boss")
        self.page.fill("#id_password", "pw")
        self.page.click("input[type=submit]")

    def picture(self, what):
        if SCREENSHOTS:
            path = Path(SCREENSHOTS) / f"{self.name}-{what}.png"
            self.page.screenshot(path=path, full_page=True)


@tag("any-database")
class BrowserTests(BrowserCase):
    """What a person sees."""

    def test_a_person_force_finishes_a_task(self):
        submit("k1", user="ann", data={"file": "orders.csv"})
        self.open("light", viewport=DESK)

        self.picture("list")
        self.page.click("text=k1")
        self.picture("story")
        self.page.click("text=Force finish")
        self.picture("confirm")
        self.page.click("input[type=submit].default")
        self.assertIn("Done: 1 closed as finished.", self.page.inner_text(".messagelist"))
        self.assertEqual(self.errors, [])

    def test_users_are_offered_while_one_is_typed_in(self):
        for user in ("aurora", "austin", "bob"):
            submit(user=user, now=None)
        self.open("offers", viewport=DESK)

        self.page.wait_for_selector("#changelist-filter input[name=user]")
        self.page.type("#changelist-filter input[name=user]", "au")

        offered = "#pq-known-user option"
        self.page.wait_for_selector(offered, state="attached")
        values = "options => options.map(option => option.value)"
        self.assertEqual(self.page.eval_on_selector_all(offered, values), ["aurora", "austin"])
        self.assertEqual(self.errors, [])

    def test_the_last_column_is_not_cut_at_a_desk(self):
        for number in range(3):
            submit(f"measure-upload-{number}", user="aurora-travel", type="reports.summarise")
        failed("report-for-somebody-2030-01", user="cobalt-couriers", type="reports.summarise")
        self.open("columns", viewport={"width": 1300, "height": 800})
        beyond = "[...document.querySelectorAll('.results, #changelist-form')]"
        beyond += ".map(box => box.scrollWidth - box.clientWidth)"

        for queues in ("one", "two"):
            with self.subTest(queues):
                self.page.wait_for_selector("#result_list")
                self.picture(queues)
                self.assertLessEqual(max(self.page.evaluate(beyond)), 0)
            submit(queue="reports")
            self.page.reload()

    def test_a_person_limits_and_pauses(self):
        set_limit("smtp", max_running=2, rate=10, period=60, by="ann@web-1")
        set_limit("reports", scope="queue", max_running=4)
        Meter.objects.create(key="name:smtp", running=1)
        for user in ("*", "acme", None):
            set_share(user, weight=2)
        self.open("limits", viewport=DESK)
        limits = f"{self.live_server_url}/admin/perfectqueue/limit/"

        self.page.goto(f"{limits}add/")
        self.picture("add")
        self.page.select_option("#id_scope", "type")
        self.page.fill("#id_name", "report.draw")
        self.page.fill("#id_burst", "3")
        self.page.click("input[name=_save]")
        self.picture("refused")
        self.page.fill("#id_rate", "5")
        self.page.click("input[name=_save]")
        self.page.check(f"input[name=_selected_action][value='{limit('smtp').pk}']")
        self.page.select_option("select[name=action]", "pause")
        self.page.click("button[name=index]")
        self.assertIn("Done: 1 paused.", self.page.inner_text(".messagelist"))
        self.picture("list")
        self.assertTrue(limit("smtp").paused)
        self.page.goto(f"{limits}{limit('smtp').pk}/history/")
        self.picture("history")
        self.assertIn("ann@web-1", self.page.inner_text("#change-history"))
        self.page.goto(f"{self.live_server_url}/admin/perfectqueue/change/")
        self.picture("changes")
        self.page.goto(f"{self.live_server_url}/admin/perfectqueue/fairshare/")
        self.picture("shares")
        self.assertEqual(self.errors, [])

    def test_a_page_says_that_it_is_not_refreshed_and_why(self):
        task = submit(now=None)
        self.open("stale", viewport=DESK)
        for name in (f"task/{task.id}/change", "overview"):
            self.page.goto(f"{self.live_server_url}/admin/perfectqueue/{name}/")
            stale = self.page.locator("#pq-stale")
            self.assertTrue(stale.is_hidden())

            self.page.route("**/*", lambda route: route.abort())
            stale.wait_for(state="visible", timeout=15_000)
            self.assertRegex(stale.inner_text(), r"^Not refreshed for \d+ s\.$")
            self.page.unroute("**/*")
            stale.wait_for(state="hidden", timeout=15_000)

        self.page.context.clear_cookies()
        self.page.locator("#pq-login").wait_for(state="visible", timeout=15_000)
        self.picture("ended")
        self.page.click("#pq-login")
        self.assertTrue(self.page.locator("#id_password").is_visible())
        self.assertEqual(self.errors, [])

    def test_nothing_is_wider_than_a_phone(self):
        task, held = running("a-rather-long-key-" * 8)
        lines = entry(1.9e9, "WARNING", "some_package.some_module", "x" * 300)
        reported = Note(
            task_id=task.id, key=task.key, attempt=1, progress=0.4, stage="s" * 99, lines=lines
        )
        store.records.write_journal([reported], using="default")
        fail(held, error="some_package.some_module.errors.ARatherLongError", message="m" * 90)
        running("k2")
        self.open("phone", viewport=PHONE, color_scheme="dark")

        self.picture("list")
        self.page.click(f"text={task.key}")
        self.page.click("text=1 log line")
        self.picture("story")
        width = self.page.evaluate("document.documentElement.scrollWidth")
        self.assertLessEqual(width, PHONE["width"])

    def test_what_matters_is_in_sight(self):
        for number in range(3):
            submit(f"measure-upload-{number}", user="aurora-travel", type="reports.summarise")
        failed("k" * 255, user="cobalt-couriers", type="reports.summarise")
        submit("elsewhere", queue="reports", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")
        set_limit("mail", scope="queue", paused=True)
        set_share("aurora-travel", weight=2, paused=True)
        pages = {
            "task": (".field-badge .pq-status", ".field-named"),
            "deadletter": (".field-badge .pq-status", ".field-named", ".field-ended"),
            "limit": (".field-named .pq-status",),
            "fairshare": ("tbody th .pq-status",),
        }
        for name, viewport, scheme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
            User.objects.all().delete()
            self.open(f"sight-{name}", viewport=viewport, color_scheme=scheme)
            for page, cells in pages.items():
                self.page.goto(f"{self.live_server_url}/admin/perfectqueue/{page}/")
                self.picture(page)
                for cell in cells:
                    with self.subTest(name, page=page, cell=cell):
                        box = self.page.locator(f"table {cell}").first.bounding_box()
                        self.assertLessEqual(box["x"] + box["width"], viewport["width"])
            fold = self.page.locator(".pq-fold").first
            self.page.goto(f"{self.live_server_url}{LIST}")
            self.assertEqual(fold.is_visible(), name == "phone")
            with self.page.expect_navigation():
                self.page.click(f"text={'k' * 255}")
            self.picture("story")
            width = self.page.evaluate("document.documentElement.scrollWidth")
            self.assertLessEqual(width, viewport["width"])

    def test_the_shares_received_fit_a_desk_and_a_phone(self):
        compete()
        for name, viewport, scheme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
            with self.subTest(name):
                User.objects.all().delete()
                self.open(f"shares-{name}", viewport=viewport, color_scheme=scheme)
                self.page.goto(f"{self.live_server_url}{USERS}")
                self.picture("hour")
                bars = self.page.locator("tbody .pq-bar-entitled")
                self.assertEqual(bars.count(), 5)
                width = self.page.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(width, viewport["width"])
                self.page.click("text=Last minute")
                self.picture("minute")
                self.assertEqual(self.errors, [])

    def test_batches_and_families_fit_a_desk_and_a_phone(self):
        with Queue().batch("nightly-" + "long-" * 12, user="aurora-travel") as batch:
            for number in range(6):
                batch.submit(f"page-{number}", "reports.page")
            with batch.batch("figures") as inner:
                inner.submit("figure-1", "reports.figures")
            batch.then("mail", "reports.mail", when="finished")
        Queue().poll().fail()
        for _number in range(3):
            Queue().poll().finish()
        submit("load", now=None, after=["page-0", "page-4"])
        submit("a-rather-long-key-" * 6, now=None, after=["load", "mail"])
        pages = {
            "list": "batch/",
            "batch": f"batch/{batch.id}/change/",
            "family": f"task/{Queue()['load'].id}/change/",
        }
        for name, viewport, scheme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
            User.objects.all().delete()
            self.open(f"batches-{name}", viewport=viewport, color_scheme=scheme)
            for page, path in pages.items():
                with self.subTest(name, page=page):
                    self.page.goto(f"{self.live_server_url}/admin/perfectqueue/{path}")
                    self.picture(page)
                    width = self.page.evaluate("document.documentElement.scrollWidth")
                    self.assertLessEqual(width, viewport["width"])
            self.page.click("text=Request cancel, with all that wait for it")
            self.page.wait_for_selector("input[name=_do]", state="attached")
            self.picture("confirm")
            self.page.go_back()
            # The graph is a list of links for the keyboard, too.
            self.page.locator(".pq-graph a").first.focus()
            self.page.keyboard.press("Enter")
            self.page.wait_for_selector("text=These wait for it", state="attached")
            self.assertEqual(self.errors, [])


@tag("any-database")
class NightTests(BrowserCase):
    """
    What an operator does at 3 am, each from the index, and with how many clicks.

    A click is one of the mouse, or a form that is sent by Enter; to type is none.
    """

    def setUp(self):
        for host, pid in (("web-1", 1), ("web-1", 2), ("web-2", 1)):
            register(
                host=host, pid=pid, types=("report", "mail", "slow"), release="shop-7", now=None
            )
        # They stay alive however long the browser takes.
        Worker.objects.update(seen_at=now() + timedelta(hours=1))
        types = ("report", "mail")
        tallies = {type_key("default", type_): Tally(ended=9, seconds=9.0) for type_ in types}
        tallies |= {
            UsageKey("default", others=False, user=user): Tally(ended=9, seconds=seconds)
            for user, seconds in (("hog", 90.0), ("ann", 1.0))
        }
        at = store.records.clock(using="default")
        store.records.add_usage(tallies, using="default", at=at)
        before = at - timedelta(days=2)
        ended = [(f"late-{number}", "report", None) for number in range(3)]
        for key, type_, when in [*ended, ("long-ago", "report", before), ("m1", "mail", None)]:
            _task, held = running(key, type=type_, now=when)
            fail(held, error="shop.NewError" if key != "long-ago" else "boom", now=when)
        set_limit("slow", scope="type", paused=True, by="bob")
        submit("why-not", type="slow", user="acme", now=None)
        self.open("night", viewport=DESK)
        self.page.set_default_timeout(60_000)

    def click(self, what):
        self.clicks += 1
        self.page.click(what)

    def send(self, what, text):
        """Type a text, and send the form by Enter."""
        self.clicks += 1
        self.page.fill(what, text)
        self.page.press(what, "Enter")

    def go(self, name):
        self.click(f"#content-main th a >> text='{name}'")

    def see(self, text, where="#container"):
        self.page.wait_for_selector(f"{where} >> text={text}")

    @contextmanager
    def task(self, name, most):
        with self.subTest(name):
            self.clicks = 0
            self.page.goto(f"{self.live_server_url}/admin/perfectqueue/")
            yield
            self.picture(name.replace(" ", "-"))
            self.assertEqual(self.clicks, most)

    def test_each_task_takes_few_clicks(self):
        with self.task("is all well", 1):
            self.go("Overview")
            self.see("All queues are served")
        with self.task("who hogs now", 1):
            self.go("Overview")
            first = self.page.locator("section:has-text('Who received most') tbody tr").first
            self.assertIn("hog", first.inner_text())
        for row, text in (("#pq-user", "acme"), ("#pq-key", "why-not")):
            self.page.goto(f"{self.live_server_url}/admin/perfectqueue/overview/")
            self.clicks = 0
            self.send(row, text)
            self.click("#result_list >> text=why-not")
            self.see("paused", ".pq-where")
            self.assertEqual(self.clicks, 2)
        with self.task("why is a customer not served", 2):
            self.go("Users")
            self.send("input[name=user]", "acme")
            self.see("paused", ".pq-where")
        with self.task("retry all of a type since then, at 50 a second", 5):
            self.go("Failed tasks")
            self.send("#changelist-filter input[name=type]", "report")
            since = localtime() - timedelta(hours=1)
            self.send("#changelist-filter input[name=since]", f"{since:%Y-%m-%dT%H:%M}")
            self.click("text=All that match…")
            self.page.fill("#id_rate", "50")
            self.click("input[value='Retry (3)']")
            self.see("A task does the work")
            drain(types=TYPE)
            self.assertEqual(Task.objects.get(type=TYPE).data["rate"], 50)
            failures = Queue().list().in_status("failed")
            self.assertEqual({task.key for task in failures}, {"long-ago", "m1"})
        with self.task("stop this type now", 3):
            self.go("Overview")
            self.click("section:has-text('Types, last hour') >> text='mail'")
            self.page.fill("input[name=note]", "ticket 812")
            self.click("button[name=pause]")
            self.see("by boss: ticket 812", ".pq-verbs .pq-quiet")
            self.assertTrue(limit("mail", scope="type").paused)
        with self.task("let it go on", 3):
            self.go("Overview")
            self.click("section:has-text('Types, last hour') >> text='mail'")
            self.click("button[name=unpause]")
            self.see("Done: 1 unpaused.")
        with self.task("drain one host", 2):
            self.go("Workers")
            self.click("tr:has-text('web-1') >> nth=0 >> text='Drain the host'")
            self.see("Done: 2 asked to drain")
            draining = Worker.objects.filter(draining=True).values_list("host", flat=True)
            self.assertEqual(list(draining), ["web-1", "web-1"])
        with self.task("pause a customer for an hour", 3):
            self.go("Users")
            self.send("input[name=user]", "acme")
            self.page.fill("input[name=until]", "1h")
            self.page.fill("input[name=note]", "ticket 812")
            self.click("button[name=pause]")
            self.see("Done: 1 paused.")
            share = FairShare.objects.get(user="acme")
            self.assertLess(share.paused_until - now(), timedelta(minutes=61))
        with self.task("what did this deploy break", 2):
            self.go("Overview")
            self.click("text=What has release shop-7 broken?")
            self.see("shop.NewError")
        with self.task("pause everything for a maintenance", 2):
            self.go("Queues")
            self.click("text=Pause everything for a maintenance")
            self.see("by boss (maintenance)")
        with self.task("end the maintenance", 2):
            self.go("Queues")
            self.click("text=End the maintenance")
            self.see("Done: 1 unpaused.")
        self.assertEqual(self.errors, [])
