import re
from datetime import timedelta
from html import unescape

from django.contrib.admin.models import LogEntry
from django.utils import timezone

from django_perfectqueue.fairness.declared import digest
from django_perfectqueue.fairness.limits import limit, remove_limit, set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Change, Limit, Meter

from ..factories import register, submit
from .forms import press
from .staff import AdminTestCase, staff

LIMITS = "/admin/perfectqueue/limit/"
CHANGES = "/admin/perfectqueue/change/"


def filled(**values):
    blank = {"scope": "name", "name": "smtp", "max_running": "", "rate": "", "period": "1"}
    return {**blank, "burst": "", **values}


class LimitTests(AdminTestCase):
    def test_what_is_edited_in_the_list_has_a_name(self):
        set_limit("smtp", max_running=2)
        page = self.client.get(LIMITS)
        self.assertContains(page, 'aria-label="max running"')

    def test_what_a_paused_limit_holds_back_leads_to_its_row(self):
        register("mail", now=None)
        for name, holder in (("stripe:*", "stripe:acme"), ("eu:smtp", "eu:smtp")):
            with self.subTest(name):
                set_limit(name, paused=True)
                task = submit(holder, queue="mail", limits=[holder], now=None)
                page = self.client.get(f"/admin/perfectqueue/task/{task.id}/change/")
                said = rf'href="([^"]*)">Limit &#x27;{holder}&#x27; is paused'
                [link] = re.findall(said, page.content.decode())
                rows = self.client.get(unescape(link)).context["cl"].result_list
                self.assertEqual([row.name for row in rows], [name])

    def test_a_limit_is_added(self):
        terms = {"max_running": "2", "rate": "10", "period": "60", "burst": "3"}
        self.assertRedirects(self.save(f"{LIMITS}add/", name="smtp", **terms), LIMITS)

        row = limit("smtp")
        self.assertEqual((row.max_running, row.rate, row.period, row.burst), (2, 10, 60, 3))
        self.assertEqual((Change.objects.get().by, LogEntry.objects.count()), ("boss", 1))

    def test_queues_and_types_are_suggested_for_the_name(self):
        register("nightly", now=None)
        submit("a", queue="nightly", now=None)
        page = self.client.get(f"{LIMITS}add/")
        self.assertContains(page, 'list="pq-name"')
        self.assertContains(page, '<option value="nightly">')

    def test_what_can_not_be_is_refused_at_its_field(self):
        set_limit("taken", max_running=1)
        for values, reported in (
            ({"name": "taken"}, "already exists"),
            ({"name": "a,b"}, "must not hold a comma"),
            ({"scope": "queue", "name": "x" * 101}, "at most 100 characters"),
            ({"burst": "3"}, "A burst needs a rate"),
            ({"rate": "0"}, "greater than or equal to 1"),
            ({"period": "0"}, "greater than or equal to 0.001"),
            ({"period": "nan"}, "Enter a number"),
            ({"max_running": "-1"}, "greater than or equal to 0"),
        ):
            with self.subTest(values):
                response = self.save(f"{LIMITS}add/", **{"name": "smtp", **values})
                self.assertContains(response, reported)
        self.assertEqual(Limit.objects.count(), 1)

    def test_the_list_tells_what_runs_now_and_when_the_next_may_start(self):
        set_limit("smtp", max_running=7, rate=10, period=60, burst=1)
        set_limit("reports", scope="queue", paused=True)
        set_limit("rare", rate=1, period=365 * 86_400)
        later = timezone.now() + timedelta(days=300)
        Meter.objects.create(key="name:rare", next_at=later)
        Meter.objects.create(key="name:smtp", running=5, next_at=later)

        response = self.client.get(LIMITS)

        self.assertContains(response, '<td class="field-running">5</td>')
        self.assertContains(response, '<td class="field-running">0</td>')
        self.assertContains(response, "10/min")
        # The one of smtp is further ahead than its rate can be: the store sets it back.
        self.assertContains(response, later.strftime(">%Y-%m-%d<"), count=1)

    def test_a_family_shows_its_names_and_what_code_declares_its_origin(self):
        row = set_limit("stripe:*", max_running=7)
        Meter.objects.create(key="name:stripe:<b>", running=5)
        Limit.objects.filter(pk=row.pk).update(declared_in=digest(row))
        response = self.client.get(LIMITS)
        self.assertContains(response, '<td class="field-names">stripe:&lt;b&gt; (5)</td>')
        self.assertContains(response, "declared in code</span>")
        set_limit("stripe:*", max_running=8)
        self.assertContains(self.client.get(LIMITS), "declared in code, changed since")

    def test_a_longer_list_asks_no_more_often(self):
        set_limit("l0", max_running=7)
        few = len(self.statements(LIMITS))
        for number in range(1, 20):
            set_limit(f"l{number}", max_running=7)

        self.assertEqual(len(self.statements(LIMITS)), few)

    def test_a_cap_is_edited_in_the_list(self):
        row = set_limit("smtp", max_running=7, rate=10, period=60)
        self.assertRedirects(self.save(LIMITS, **{"form-0-max_running": "3"}), LIMITS)

        row.refresh_from_db()
        self.assertEqual((row.max_running, row.rate), (3, 10))
        self.assertEqual((Change.objects.last().by, LogEntry.objects.count()), ("boss", 1))

    def test_its_scope_and_name_stay(self):
        row = set_limit("smtp", max_running=7)
        self.client.post(f"{LIMITS}{row.pk}/change/", filled(name="other", max_running="3"))

        row.refresh_from_db()
        self.assertEqual((row.name, row.max_running), ("smtp", 3))

    def test_a_pause_has_an_end_and_a_note(self):
        row = set_limit("a", scope="type", max_running=1)

        self.act(LIMITS, "pause", row, until="2030-01-01T04:00", note="ticket 812")

        terms = "until 2030-01-01 04:00, by boss: ticket 812"
        self.assertContains(self.client.get(LIMITS), terms)
        response = self.act(LIMITS, "pause", row, until="soon")
        self.assertIn("Give a time to come such as", self.reported(response)[0])
        self.assertEqual(limit("a", scope="type").note, "ticket 812")

    def test_limits_are_paused_unpaused_and_deleted(self):
        rows = [set_limit(name, max_running=2) for name in ("a", "b")]

        self.assertEqual(self.reported(self.act(LIMITS, "pause", *rows)), ["Done: 2 paused."])
        self.assertTrue(limit("a").paused)
        self.assertEqual(self.reported(self.act(LIMITS, "unpause", rows[0])), ["Done: 1 unpaused."])
        self.assertFalse(limit("a").paused)
        press(self.client, self.act(LIMITS, "delete_selected", *rows), "Yes")
        self.assertFalse(Limit.objects.exists())
        self.assertEqual(
            set(Change.objects.order_by("-id").values_list("by", flat=True)[:5]), {"boss"}
        )

    def test_a_type_is_paused_beside_its_figures(self):
        figures = "/admin/perfectqueue/overview/figures/?queue=default&type=mail"
        page = self.client.get(figures)
        page = press(self.client, page, "pause", until="1h", note="ticket 812")

        self.assertContains(page, "by boss: ticket 812")
        self.assertContains(page, '<span class="pq-status pq-failed">paused')
        self.assertTrue(limit("mail", scope="type").paused)
        page = press(self.client, page, "pause", until="soon")
        self.assertContains(page, "Give a time to come such as 1h")
        press(self.client, page, "unpause")
        self.assertIsNone(limit("mail", scope="type"))
        self.assertEqual(self.client.post(LIMITS, {"type": "a" * 256}).status_code, 400)

    def test_who_may_only_look_pauses_no_type(self):
        self.client.force_login(staff("view_overview", "view_limit"))
        page = self.client.get("/admin/perfectqueue/overview/figures/?queue=default&type=mail")
        self.assertNotContains(page, 'name="pause"')
        self.assertEqual(self.client.post(LIMITS, {"type": "mail", "pause": ""}).status_code, 403)

    def test_who_may_only_look_changes_nothing(self):
        row = set_limit("smtp", max_running=2)
        self.client.force_login(staff("view_limit"))

        self.assertEqual(self.client.get(LIMITS).status_code, 200)
        self.forge_action(LIMITS, "pause", row)
        url = f"{LIMITS}{row.pk}/change/"
        self.assertEqual(self.client.post(url, filled(max_running="3")).status_code, 403)
        self.assertEqual(self.client.get(f"{LIMITS}add/").status_code, 403)
        row.refresh_from_db()
        self.assertEqual((row.max_running, row.paused), (2, False))

    def test_who_may_not_look_does_not(self):
        self.client.force_login(staff("view_fairshare"))

        self.assertEqual(self.client.get(LIMITS).status_code, 403)

    def test_the_history_tells_what_came_through_every_door(self):
        row = set_limit("smtp", rate=10, period=60, by="carl@shell")

        response = self.client.get(f"{LIMITS}{row.pk}/history/")

        self.assertContains(response, "added: rate 10, period 60")
        self.assertContains(response, "<td>carl@shell</td>")


class ChangeTests(AdminTestCase):
    def test_all_changes_are_listed_of_what_is_gone_too(self):
        set_limit("smtp", max_running=2, by="ann")
        remove_limit("smtp", by="bob")
        set_share("acme", queue="reports", weight=3, by="carl")

        response = self.client.get(CHANGES)

        self.assertEqual(
            [row.by for row in response.context["cl"].result_list], ["carl", "bob", "ann"]
        )
        self.assertContains(response, "user &#x27;acme&#x27;, queue &#x27;reports&#x27;")
        self.assertContains(response, "removed")

    def test_they_are_found_by_kind_and_by_name(self):
        set_limit("smtp", max_running=2, by="ann")
        set_share("acme", weight=3, by="carl")

        for query, by in (
            ({"kind": "limit"}, "ann"),
            ({"q": "acme"}, "carl"),
            ({"q": "acm"}, None),
        ):
            with self.subTest(query):
                rows = self.client.get(CHANGES, query).context["cl"].result_list
                self.assertEqual([row.by for row in rows], [by] if by else [])

    def test_nothing_can_be_changed(self):
        set_share("acme", weight=3)
        url = f"{CHANGES}{Change.objects.get().pk}/"

        self.assertEqual(self.client.get(f"{url}change/").status_code, 200)
        self.assertEqual(self.client.post(f"{url}change/", {"by": "me"}).status_code, 403)
        self.assertEqual(self.client.post(f"{url}delete/", {"post": "yes"}).status_code, 403)
        self.assertEqual(self.client.get(f"{CHANGES}add/").status_code, 403)
