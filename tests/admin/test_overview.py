import json
import re
from datetime import timedelta
from html import unescape
from unittest import mock
from urllib.parse import urlencode

from django.test import override_settings, tag
from django.urls import reverse
from django.utils.html import escape

from django_perfectqueue import store
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.models import Batch, Change, DeadLetter, Schedule, Task, Worker
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.records import counts

from ..factories import acquire, fail, processor, register, running, submit, submit_many
from ..health.test_queues import now, park
from ..inspection.test_statistics import ran
from ..management.running import run
from .staff import LIST, AdminTestCase, staff

OVERVIEW = "/admin/perfectqueue/overview/"
FIGURES = f"{OVERVIEW}figures/"
RELEASE = f"{OVERVIEW}release/"
SCRIPT = '<script>alert("x")</script>'


class OverviewTests(AdminTestCase):
    def shown(self):
        store.upkeep.wake_forgotten_lanes(using="default")
        response = self.client.get(OVERVIEW)
        self.assertEqual(response.status_code, 200)
        return response.content.decode()

    def test_the_pages_of_the_app_are_in_order_of_use(self):
        index = self.client.get("/admin/perfectqueue/").content.decode()
        found = re.findall(r'<th scope="row" id="perfectqueue-(\w+)"', index)
        order = ["overview", "task", "deadletter", "batch", "schedule"]
        order += ["queueshare", "fairshare", "limit", "worker", "change"]
        self.assertEqual(found, order)
        self.assertIn(f'href="{OVERVIEW}"', index)

    def test_all_is_well(self):
        register("default", now=None)
        page = self.shown()
        self.assertIn("All queues are served", page)
        self.assertNotIn("pq-unwell", page)

    def test_the_chart_marks_where_a_release_began(self):
        ran(1.0, at=now())
        register("default", now=None, version="2.0", generation=3)
        page = self.shown()
        self.assertIn('class="pq-mark"', page)
        self.assertIn("one:7, generation 3", page)
        Worker.objects.update(release="shop-7")
        self.assertIn("release shop-7", self.shown())
        Worker.objects.update(started_at=now() - timedelta(hours=2))
        self.assertNotIn("pq-mark", self.shown())

    def test_a_user_is_looked_up_from_it(self):
        submit("k1", user="7", now=None)
        page = self.client.get(OVERVIEW).content.decode()
        self.assertIn(f'action="{LIST}"', page)
        self.assertContains(self.client.get(LIST, {"user": "7", "status": "waiting"}), "k1")

    def test_it_is_red_where_nobody_serves_a_queue(self):
        register("default", now=None)
        submit_many(3, queue="reports", now=None)
        page = self.shown()
        self.assertIn("Queues that need attention: ", page)
        self.assertIn("no worker", page)
        self.assertEqual(page.count('class="pq-unwell"'), 1)

    def test_it_is_red_where_the_oldest_is_late_or_a_type_has_no_handler(self):
        register("default", now=None)
        submit("k1", type="misspelt", now=None)
        park("k1")
        submit(now=now() - timedelta(seconds=400))
        page = self.shown()
        self.assertIn("no handler for misspelt", page)
        self.assertIn('<span class="pq-status pq-failed">late</span>', page)
        with override_settings(PERFECTQUEUE={"LATE_AFTER": 3600}):
            self.assertNotIn(">late<", self.shown())

    def test_it_is_red_where_a_schedule_is_late(self):
        register("default", now=None)
        Schedules().put("hourly", "report", every="1h")
        self.assertIn("All queues are served", self.shown())
        Schedule.objects.update(due_at=now() - timedelta(seconds=90))
        page = self.shown()
        self.assertIn("1 schedule is late", page)
        self.assertNotIn("All queues are served", page)

    def test_a_pause_and_the_links_of_a_queue(self):
        submit(queue="a&b", now=None)
        Queue("a&b").pause()
        page = self.shown()
        self.assertIn(">paused<", page)
        for path in ("overview/figures/?queue=a%26b", "task/?queue=a%26b&amp;status=waiting"):
            self.assertIn(f'href="/admin/perfectqueue/{path}"', page)
            self.assertEqual(
                self.client.get(f"/admin/perfectqueue/{unescape(path)}").status_code, 200
            )
        self.assertIn('href="/admin/perfectqueue/deadletter/?queue=a%26b"', page)

    def test_the_chart_and_its_table_have_the_same_figures(self):
        ran(*[1.0] * 4, at=now())
        ran(1.0, at=now(), word="failed")
        page = self.shown()
        self.assertEqual(page.count('<rect class="pq-bar-finished"'), 1)
        self.assertEqual(page.count('<rect class="pq-bar-failed"'), 1)
        self.assertIn("4 / 0 / 1</title>", page)
        cells = (
            '<td class="pq-number">4</td><td class="pq-number">0</td><td class="pq-number">1</td>'
        )
        self.assertIn(cells, page)
        self.assertIn("highest: 5", page)

    def test_types_are_in_the_order_that_is_asked_for(self):
        ran(5.0, 5.0, at=now(), type="long")
        ran(*[1.0] * 4, at=now(), type="broken", word="failed", queue="reports")
        ran(8.0, at=now(), type="rare")
        register("default", "reports", now=None)
        for by, names in (
            ({}, ["long", "rare", "broken"]),
            ({"by": "failed"}, ["broken"]),
            ({"by": "p95"}, ["rare", "long", "broken"]),
            ({"by": ""}, ["broken", "long", "rare"]),
        ):
            types = self.client.get(OVERVIEW, by).context["types"]
            self.assertEqual([one.type for one, _seconds in types][: len(names)], names)

    def test_failures_and_users_are_escaped_and_linked(self):
        _task, lease = running(now=None, user=SCRIPT, queue="default")
        fail(lease, error=SCRIPT, now=None)
        submit(queue=SCRIPT, now=None)
        ran(2.0, at=now() - timedelta(minutes=2), user=SCRIPT)
        store.records.roll_up(using="default", keep=None)
        page = self.shown()
        self.assertNotIn(SCRIPT, page)
        self.assertGreaterEqual(page.count(escape(SCRIPT)), 3)
        link = re.search(r'href="(/admin/perfectqueue/deadletter/\?group=[^"]+)"', page).group(1)
        self.assertContains(self.client.get(link), escape(SCRIPT))

    def test_nothing_is_inline(self):
        """A policy of default-src 'self' blocks inline scripts, handlers and styles."""
        ran(1.0, at=now())
        page = self.shown()
        self.assertIsNone(re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page))
        self.assertRegex(page, r'<script src="[^"]*perfectqueue/live.js" type="module">')

    def test_pages_that_move_say_as_of_when_and_refresh_themselves(self):
        task = submit(now=None)
        with Queue().batch("month") as batch:
            batch.submit("a", "report")
        register("default", now=None)
        pages = [reverse(f"admin:perfectqueue_{name}_changelist") for name in ("worker",)]
        pages += [OVERVIEW, reverse("admin:perfectqueue_task_change", args=[task.id])]
        pages += [reverse("admin:perfectqueue_batch_change", args=[Batch.objects.get().pk])]
        for url in pages:
            with self.subTest(url):
                page = self.client.get(url).content.decode()
                self.assertRegex(page, r"data-pq-live>As of \d\d:\d\d:\d\d</span>")
                self.assertEqual(page.count(" data-pq-live>"), 2)
                self.assertRegex(page, r'<script src="[^"]*perfectqueue/live.js" type="module">')
                self.assertIn("Log in again.", page)

    def test_where_not_all_are_counted_none_is_no_figure(self):
        submit_many(4, run_at="1h", now=None)
        with mock.patch.object(counts, "COUNTED", 2):
            page = self.shown()
            out = run("pq_queue", "list")
        self.assertIn(">3+<", page)
        self.assertNotIn("0+", page)
        self.assertRegex(out, r"default +0 +- +- ")

    def test_it_takes_few_statements_however_much_there_is(self):
        """Two find the session and the user, and two the permissions of who is no superuser."""
        for number in range(20):
            submit(queue=f"queue-{number}", now=None)
            ran(1.0, at=now() - timedelta(minutes=number), queue=f"queue-{number}")
        register("default", now=None)
        self.assertEqual(len(self.statements(OVERVIEW)), 13)
        self.client.force_login(staff("view_overview", "view_task", name="reader"))
        self.assertEqual(len(self.statements(OVERVIEW)), 15)

    def test_one_user_who_holds_all_processors_is_named(self):
        long = [submit(user="<ann>", now=None).id for _number in range(3)]
        acquire(2, now=None)
        register(now=None, states=[processor(1, long[0]), processor(2, long[1], seconds=9.0)])
        words = "run on all processors (2) since"
        self.assertNotIn(words, self.shown())
        submit(user="bob", now=None)
        page = self.shown()
        self.assertIn(f"Tasks of user &lt;ann&gt; {words}", page)
        self.assertIn("the setting HEADROOM keeps processors for short tasks", page)
        self.assertRegex(
            run("pq_status"),
            r"Tasks of user '<ann>' have run on all processors \(2\) for \S+, and others wait",
        )
        self.assertEqual(len(self.statements(OVERVIEW)), 14)
        with override_settings(PERFECTQUEUE={"SHORT_TASK": 60}):
            self.assertNotIn(words, self.shown())
        free = [processor(1, long[0]), processor(2)]
        Worker.objects.update(states_text=json.dumps(free))
        self.assertNotIn(words, self.shown())

    def test_it_is_for_those_who_may_see_it(self):
        self.client.force_login(staff("view_task", name="without"))
        self.assertEqual(self.client.get(OVERVIEW).status_code, 403)
        self.client.force_login(staff("view_overview", name="with"))
        self.assertEqual(self.client.get(OVERVIEW).status_code, 200)
        self.client.logout()
        self.assertEqual(self.client.get(OVERVIEW).status_code, 302)

    def test_the_queues_of_the_settings_are_shown(self):
        if not HAS_TASKS:
            self.skipTest("needs Django's tasks")
        backend = "django_perfectqueue.backend.PerfectQueueBackend"
        with override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": ["mail"]}}):
            self.assertIn(">mail<", self.shown())


@tag("any-database")
class ReleaseTests(AdminTestCase):
    """What the newest release broke, beside the hour before."""

    def setUp(self):
        super().setUp()
        self.began = now() - timedelta(minutes=20)

    def deploy(self, release="shop-7", began=None, now=None):
        """Have a worker of a release come, and go."""
        return register("default", now=now or began or self.began, release=release)

    def dead(self, key, error, *, ago):
        _task, lease = running(key, now=None, queue="default")
        fail(lease, error=error, now=None)
        ended = now() - timedelta(minutes=ago)
        DeadLetter.objects.filter(task__key=key).update(ended_at=ended)
        Task.objects.filter(key=key).update(ended_at=ended)

    def page(self):
        response = self.client.get(RELEASE)
        self.assertEqual(response.status_code, 200)
        return response

    def test_the_overview_leads_to_the_newest_release(self):
        self.assertNotContains(self.client.get(OVERVIEW), RELEASE)
        self.assertContains(self.page(), "No worker has named a release")
        self.deploy("shop-6", self.began - timedelta(hours=3))
        self.deploy()
        self.assertContains(self.client.get(OVERVIEW), f'href="{RELEASE}"')
        self.assertEqual(self.page().context["release"].name, "shop-7")

    def test_the_last_releases_stay_when_their_workers_are_gone(self):
        self.deploy("shop-6", self.began - timedelta(hours=3))
        self.deploy()
        self.dead("k1", "OldError", ago=220)
        self.dead("k2", "SixError", ago=25)
        self.dead("k3", "SevenError", ago=15)
        ran(*[1.0] * 20, at=self.began - timedelta(minutes=5), type="slow")
        ran(*[4.0] * 20, at=now() - timedelta(minutes=5), type="slow")
        self.deploy("shop-6", now() - timedelta(minutes=10))
        Worker.objects.all().delete()

        page = self.page()
        tabs = [(one.name, chosen) for one, _link, chosen in page.context["tabs"]]
        self.assertEqual(tabs, [("shop-6", True), ("shop-7", False), ("shop-6", False)])
        links = [link for _one, link, _chosen in page.context["tabs"]]
        found = []
        for link in links:
            context = self.client.get(f"{RELEASE}{link}").context
            found.append([name for name, _count, _at in context["groups"]])
        self.assertEqual(found, [[], ["SevenError"], ["SixError"]])
        page = self.client.get(f"{RELEASE}{links[1]}")
        self.assertEqual(page.context["changes"], [])
        bulk = unescape(re.search('href="([^"]*verb=retry[^"]*)"', page.content.decode())[1])
        self.assertEqual(self.client.get(bulk).context["matching"]["count"], 1)
        self.assertEqual(self.client.get(f"{RELEASE}?of=x").context["release"].name, "shop-6")
        trail = self.client.get("/admin/perfectqueue/change/", {"kind": "code"})
        self.assertContains(trail, "release shop-7", 1)
        self.assertContains(trail, "began")

    def test_a_release_comes_once_while_workers_of_it_live(self):
        start = now() - timedelta(seconds=20)
        for release in ("shop-6", "shop-6", "shop-7", "shop-6", "", "shop-7"):
            self.deploy(release, now=start)
            start += timedelta(seconds=1)
        tabs = [one.name for one, _link, _chosen in self.page().context["tabs"]]
        self.assertEqual(tabs, ["shop-7", "shop-6"])
        twin = Change.objects.get(name="shop-6")
        twin.pk, twin.at = None, start
        twin.save()
        known = [one.name for one, _link, _chosen in self.page().context["tabs"]]
        self.assertEqual(known, ["shop-6", "shop-7", "shop-6"])
        Change.objects.create(kind="code", name="shop-6", at=start + timedelta(seconds=9))
        page = self.page()
        known = [one.name for one, _link, _chosen in page.context["tabs"]]
        self.assertEqual(known, ["shop-6", "shop-7", "shop-6"])
        self.assertEqual(page.context["release"].began, start)
        for number in range(6):
            self.deploy(f"shop-{10 + number}", now=start)
        tabs = [one.name for one, _link, _chosen in self.page().context["tabs"]]
        self.assertEqual(tabs, ["shop-15", "shop-14", "shop-13", "shop-12", "shop-11"])

    def test_new_groups_of_failures_lead_to_their_retry(self):
        self.deploy()
        self.dead("k1", "OldError", ago=50)
        self.dead("k2", "OldError", ago=5)
        self.dead("k3", "NewError", ago=5)
        page = self.page()
        [(group, count, _at)] = page.context["groups"]
        self.assertEqual((group, count), ("NewError", "1"))
        all_link, link = re.findall('href="([^"]*verb=retry[^"]*)"', page.content.decode())
        bulk = self.client.get(unescape(link))
        self.assertEqual(bulk.context["matching"]["count"], 1)
        self.assertContains(bulk, "k3")
        bulk = self.client.get(unescape(all_link))
        self.assertEqual(bulk.context["matching"]["count"], 2)

    def test_types_that_fail_more_or_take_longer_are_named(self):
        self.deploy()
        for minutes, seconds, word in ((30, 1.0, "finished"), (5, 4.0, "failed")):
            at = now() - timedelta(minutes=minutes)
            ran(*[1.0] * 20, at=at, type="same")
            ran(*[seconds] * 20, at=at, type="slow")
            ran(*[1.0] * 20, at=at, type="broken", word=word)
        page = self.page()
        found = {one.after.type: one for one in page.context["changes"]}
        self.assertEqual(set(found), {"slow", "broken"})
        for cell in (">1.0 s<", ' pq-below">4.0 s<', ">0 / 20<", ' pq-below">20 / 20<'):
            self.assertContains(page, cell)
        self.assertTrue(found["broken"].fails_more and found["slow"].takes_longer)

    def test_hours_before_are_compared_where_the_minutes_are_gone(self):
        self.began = store.records.clock(using="default").replace(minute=30) - timedelta(hours=5)
        self.deploy()
        for at, seconds in ((self.began, 9.0), (self.began - timedelta(minutes=90), 1.0)):
            ran(*[seconds] * 20, at=at)
        ran(*[4.0] * 20, at=now() - timedelta(minutes=1))
        for _time in range(20):
            store.records.roll_up(using="default", keep=None)
        [change] = self.page().context["changes"]
        self.assertEqual([side.run.mean for side in change.sides], [1.0, 4.0])

    def test_it_takes_few_statements_and_the_permission_of_the_overview(self):
        self.deploy()
        for number in range(25):
            self.dead(f"k{number}", f"Error{number}", ago=5)
        self.assertLessEqual(len(self.statements(RELEASE)), 8)
        self.client.force_login(staff("view_overview", name="reader"))
        self.assertNotContains(self.page(), "Retry")
        self.client.force_login(staff("view_task", name="without"))
        self.assertEqual(self.client.get(RELEASE).status_code, 403)


class FiguresTests(AdminTestCase):
    def page(self, **query):
        response = self.client.get(FIGURES, query)
        self.assertEqual(response.status_code, 200)
        return response

    def row(self, response, number=0):
        table = response.content.decode().partition('"pq-balance"')[2]
        row = table.split('<th scope="row">')[number + 1]
        return re.findall('<td class="pq-number">([^<]*)</td>', row)

    def test_its_title_names_those_without_a_user(self):
        context = self.page(queue="default", user="").context
        self.assertEqual(context["subtitle"], "default, (tasks without a user)")
        self.assertEqual(self.page(queue="default", type="").context["subtitle"], "default")

    def test_a_queue_has_all_types_and_each(self):
        ran(1.0, 3.0, at=now())
        ran(1.0, at=now(), type="mail.send", word="failed")
        page = self.page(queue="default")
        self.assertEqual(self.row(page)[:5], ["2", "0", "1", "0", "0"])
        names = [one.type for one, _seconds in page.context["types"]]
        self.assertEqual(names[1:], ["mail.send", "report"])
        self.assertEqual(self.row(page, 2)[5:8], ["4.0 s", "2.0 s", "1.0 s"])
        self.assertContains(page, "?queue=default&amp;type=mail.send&amp;over=hour")
        self.assertContains(page, '<rect class="pq-bar-failed"')

    def test_so_has_a_type_and_a_user(self):
        ran(1.0, at=now())
        ran(1.0, 1.0, at=now(), type="mail.send", user="bob")
        for query, count in (
            ({"type": "report"}, "1"),
            ({"type": "mail.send"}, "2"),
            ({"user": "bob"}, "2"),
            ({"user": "nobody"}, "0"),
        ):
            with self.subTest(query):
                page = self.page(queue="default", **query)
                self.assertEqual(self.row(page)[0], count)
                self.assertEqual(len(page.context["types"]), 1)
                self.assertContains(page, f"?queue=default&amp;{urlencode(query)}&amp;over=month")

    def test_the_window_is_an_hour_a_day_or_a_month(self):
        for days in (0, 0.5, 3, 40):
            ran(1.0, at=now() - timedelta(days=days))
        store.records.roll_up(using="default", keep=None)
        for over, count, bars in (("hour", "1", 60), ("day", "2", 24), ("month", "3", 30)):
            with self.subTest(over):
                page = self.page(queue="default", over=over)
                self.assertEqual(self.row(page)[0], count)
                self.assertEqual(len(page.context["chart"]["bars"]), bars)
        self.assertEqual(len(self.page(queue="default", over="year").context["chart"]["bars"]), 60)

    def test_types_are_sorted_by_failures_and_by_time(self):
        for kind, seconds, ending in (
            ("a", 1.0, "finished"),
            ("b", 9.0, "finished"),
            ("c", 2.0, "failed"),
        ):
            ran(seconds, word=ending, at=now(), type=kind)
        for by, names in (("", "abc"), ("failed", "cab"), ("time", "bca"), ("x", "abc")):
            page = self.page(queue="default", by=by)
            self.assertEqual([one.type for one, _seconds in page.context["types"][1:]], list(names))

    def test_bad_names_do_no_harm(self):
        for query in ({}, {"queue": "\x00"}, {"queue": "q" * 101}, {"queue": "a", "user": "\x00"}):
            with self.subTest(query):
                self.assertEqual(self.client.get(FIGURES, query).status_code, 404)
        self.assertNotContains(self.page(queue=SCRIPT, user=SCRIPT), SCRIPT)

    def test_it_takes_few_statements_and_a_permission(self):
        for number in range(20):
            ran(1.0, at=now(), type=f"type-{number}")
        self.assertLessEqual(len(self.statements(FIGURES, queue="default", over="month")), 12)
        self.client.force_login(staff("view_task", name="without"))
        self.assertEqual(self.client.get(FIGURES, {"queue": "default"}).status_code, 403)
