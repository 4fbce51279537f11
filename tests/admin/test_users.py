from datetime import timedelta
from urllib.parse import urlencode

from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings
from django.utils import translation
from django.utils.html import escape

from django_perfectqueue import store
from django_perfectqueue.fairness import set_limit, set_share
from django_perfectqueue.models import Account, Change, FairShare
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records import Tally, UsageKey

from ..factories import acquire, register, submit, submit_many
from ..health.test_queues import now
from .forms import press
from .staff import AdminTestCase, staff

USERS = "/admin/perfectqueue/fairshare/"


def add(queue="default", **seconds):
    tallies = {}
    for user, amount in seconds.items():
        tally = Tally(ended=2, seconds=amount)
        tally.wait(1.0)
        tally.wait(1.9)
        tallies[UsageKey(queue, others=False, user=user)] = tally
    store.records.add_usage(tallies, using="default", at=store.records.clock(using="default"))


def compete():
    """Have two users get as much as each other, of whom one is entitled to more."""
    FairShare.objects.create(user="gold", weight=3)
    for user in ("basic", "gold", "idle"):
        submit_many(6, user=user, now=None)
    acquire(3, now=None)
    Account.objects.filter(user="idle").update(paused=True)
    store.records.note_waiting(using="default")
    add(**{"basic": 40.0, "gold": 40.0, "": 20.0})


class UsersCase(AdminTestCase):
    def one(self, user, **query):
        return f"{USERS}?{urlencode({'user': user, **query})}"

    def rows(self, **query):
        response = self.client.get(USERS, query)
        self.assertEqual(response.status_code, 200)
        return {row["name"]: row for row in response.context["rows"]}

    def send(self, button, *, url=USERS, **typed):
        return press(self.client, self.client.get(url), button, **typed)

    def number(self, user, url=USERS):
        names = [row["name"] for row in self.client.get(url).context["rows"]]
        return names.index(user)


class UsersTests(UsersCase):
    def test_it_shows_who_was_entitled_to_what_and_got_it(self):
        compete()

        response = self.client.get(USERS)
        self.assertContains(response, '<td class="pq-number pq-below">\N{MINUS SIGN}20.0%</td>')
        self.assertContains(response, '<td class="pq-number pq-above">+20.0%</td>')
        self.assertContains(response, '<rect class="pq-bar-entitled" width="100.00"')
        self.assertContains(response, '<rect class="pq-bar-received" width="66.67"')
        row = self.rows()["basic"]
        self.assertEqual((row["share"].received, row["share"].seconds), (0.4, 40.0))
        self.assertEqual((row["share"].running, row["waiting"]), (1, "5"))
        self.assertEqual(round(row["share"].p95, 1), 1.9)

    def test_all_who_are_known_are_listed(self):
        add(ann=1.0)
        submit(user="bob", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")
        set_share("carl", weight=2)
        set_share("dora", queue="reports", weight=2)

        self.assertEqual(set(self.rows()), {"ann", "bob", "carl", "*"})
        self.assertEqual(set(self.rows(queue="reports")), {"carl", "dora", "*"})
        self.assertContains(self.client.get(USERS), "(everyone else)")

    def test_a_window_and_a_queue_are_chosen(self):
        add(ann=1.0)
        add("reports", bob=1.0)
        submit(queue="reports")

        self.assertIn("ann", self.rows())
        self.assertEqual(set(self.rows(queue="reports", over="day")), {"bob", "*"})
        self.assertContains(self.client.get(USERS), "?over=hour&amp;queue=reports")

    def test_what_is_no_window_queue_or_user_does_no_harm(self):
        add(ann=1.0)

        self.assertIn("ann", self.rows(over="week"))
        self.assertIn("ann", self.rows(queue="\x00"))
        self.assertEqual(set(self.rows(queue="nowhere")), {"*"})
        for user in ("\x00", "x" * 256):
            self.assertEqual(self.client.get(self.one(user)).status_code, 400)

    def test_without_figures_it_says_so(self):
        with override_settings(PERFECTQUEUE={"USAGE_TIME": 0}):
            self.assertContains(self.client.get(USERS), "USAGE_TIME is 0")

    def test_it_asks_the_database_no_more_the_more_users_there_are(self):
        add(ann=1.0)
        few = len(self.statements(USERS))
        add(**{f"user-{number}": 1.0 for number in range(45)})

        self.assertEqual(len(self.statements(USERS)), few)
        self.assertEqual(len(self.rows()), 47)

    def test_those_of_whom_most_waits_come_first_where_that_is_asked_for(self):
        add(**{f"user-{number:02}": 1.0 + number for number in range(60)})
        submit_many(3, user="late", now=None)
        submit_many(2, user="user-00", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        self.assertIn("user-59", next(iter(self.rows())))
        response = self.client.get(USERS, {"by": "waiting", "over": "day"})
        names = [row["name"] for row in response.context["rows"]]
        self.assertEqual(names[:3], ["late", "user-00", "user-59"])
        self.assertContains(response, "?over=day&amp;queue=default&amp;by=received")
        self.assertContains(response, "?over=minute&amp;queue=default&amp;by=waiting")

    def test_none_who_is_paused_is_cut_away(self):
        add(**{f"user-{number:02}": 1.0 for number in range(60)})
        paused = {f"paused-{number:02}" for number in range(60)}
        for user in paused:
            set_share(user, paused=True)

        for by in ("received", "waiting"):
            rows = self.rows(by=by)
            self.assertLessEqual(paused | {"*"}, rows.keys())
            self.assertEqual(len([name for name in rows if name and "user" in name]), 50, by)
        number = self.number("paused-59")
        self.send("save", **{f"weight-{number}": "4"})
        self.assertEqual(FairShare.objects.get(user="paused-59").weight, 4.0)

    def test_values_are_edited_in_place(self):
        submit(user="ann", now=None)
        acquire(now=None)
        number = self.number("ann")

        response = self.send("save", **{f"weight-{number}": "4", f"max_running-{number}": "2"})

        self.assertEqual(self.reported(response), ["Done: 1 saved."])
        share = FairShare.objects.get()
        self.assertEqual((share.user, share.queue), ("ann", ""))
        self.assertEqual((share.weight, share.max_running), (4.0, 2))
        entry = LogEntry.objects.get()
        self.assertEqual((entry.action_flag, entry.object_id), (CHANGE, str(share.pk)))
        last = Change.objects.last()
        self.assertEqual((last.by, last.after["weight"]), ("boss", 4.0))

    def test_the_share_of_the_queue_is_edited_where_the_user_has_one(self):
        set_share("ann", weight=2)
        set_share("ann", queue="default", weight=3)

        self.send("save", **{f"weight-{self.number('ann')}": "5"})

        self.assertEqual(set(FairShare.objects.values_list("queue", "weight")),
                         {("", 2.0), ("default", 5.0)})  # fmt: skip

    def test_what_can_be_no_value_is_refused(self):
        set_share("ann", weight=2)

        response = self.send("save", **{f"weight-{self.number('ann')}": "0"})

        self.assertIn("greater than or equal to 0.001", self.reported(response)[0])
        self.assertEqual(FairShare.objects.get().weight, 2.0)

    def test_who_may_only_look_can_change_nothing(self):
        set_share("ann", weight=2)
        self.client.force_login(staff("view_fairshare"))

        page = self.client.get(USERS).content.decode()
        self.assertNotIn('name="weight-0"', page)
        self.assertNotIn('name="pause"', page)
        typed = {"name-0": "ann", "weight-0": "3", "chosen": ["ann"]}
        for button in ("save", "pause", "unpause"):
            self.assertEqual(self.client.post(USERS, {**typed, button: ""}).status_code, 403)
        self.assertEqual(FairShare.objects.get().weight, 2.0)
        self.client.force_login(staff("view_task", name="other"))
        self.assertEqual(self.client.get(USERS).status_code, 403)

    def test_the_index_leads_there(self):
        self.assertContains(self.client.get("/admin/"), f'href="{USERS}"')

    def test_figures_are_written_as_in_the_readers_language(self):
        add(ann=1.0, bob=3.0)

        with translation.override("de"):
            self.assertContains(self.client.get(USERS), "25,0\N{NO-BREAK SPACE}%")


class PauseTests(UsersCase):
    def test_a_user_is_paused_until_a_time_with_a_note(self):
        register("default", now=None)
        set_share("ann", queue="reports", weight=2)
        submit("k1", user="ann", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        with self.captureOnCommitCallbacks(execute=True):
            self.send("pause", url=self.one("ann"), until="1h", note="ticket 812")

        [everywhere, reports] = FairShare.objects.order_by("queue")
        self.assertTrue(everywhere.paused and reports.paused)
        self.assertAlmostEqual(
            everywhere.paused_until, now() + timedelta(hours=1), delta=timedelta(minutes=1)
        )
        self.assertEqual((everywhere.note, everywhere.paused_by), ("ticket 812", "boss"))
        page = self.client.get(USERS)
        self.assertContains(page, "by boss: ticket 812")
        self.assertRegex(Queue()["k1"].why_waiting().sentence, r"\(until .*, by boss: ticket 812\)")
        self.assertContains(self.client.get(self.one("ann")), "Its user is paused (until")
        self.assertContains(
            self.story(Queue()["k1"]), f'href="{escape(self.one("ann", queue="default"))}"'
        )

        response = self.send("unpause", url=self.one("ann"))
        self.assertEqual(self.reported(response), ["Done: 1 unpaused."])
        self.assertFalse(FairShare.objects.filter(paused=True).exists())
        self.assertEqual(set(FairShare.objects.values_list("note", "paused_by")), {("", "")})
        response = self.send("unpause", url=self.one("ann"))
        self.assertEqual(self.reported(response)[0][:15], "Nothing changed")

    def test_those_who_are_ticked_are_paused(self):
        for user in ("ann", "bob", "carl"):
            set_share(user, weight=2)

        response = self.send("pause", chosen=["ann", "carl"])

        self.assertEqual(self.reported(response), ["Done: 2 paused."])
        self.assertEqual(FairShare.objects.get(paused=False).user, "bob")

    def test_what_is_no_time_is_refused(self):
        response = self.send("pause", url=self.one("ann"), until="soon")

        self.assertIn("Give a time to come such as", self.reported(response)[0])
        self.assertFalse(FairShare.objects.exists())


class UserTests(UsersCase):
    def test_the_page_of_a_user_has_all_that_support_asks_for(self):
        register("default", now=None)
        set_limit("mail", max_running=0)
        submit("k1", user="ann", limits=["mail"], now=None)
        set_share("ann", weight=2, by="carl")
        set_share("ann", queue="reports", weight=3, by="carl")

        page = self.client.get(self.one("ann"))

        self.assertContains(page, "Limit &#x27;mail&#x27; lets 0 tasks run at once")
        self.assertContains(page, ">k1</a>")
        self.assertContains(page, "every queue</a>: weight 2")
        self.assertContains(page, "reports</a>: weight 3")
        self.assertContains(page, "added: weight 2")
        self.assertContains(page, "carl")
        self.assertEqual(set(self.rows(user="ann")), {"ann"})

    def test_tasks_are_for_those_who_may_see_them(self):
        submit("the-key-of-ann", user="ann", now=None)
        self.client.force_login(staff("view_fairshare"))

        self.assertNotContains(self.client.get(self.one("ann")), "the-key-of-ann")

    def test_a_user_that_nobody_knows_has_a_page(self):
        self.assertContains(self.client.get(self.one("nobody")), "nobody")
        self.assertContains(self.client.get(self.one("")), "(tasks without a user)")

    def test_a_name_is_escaped(self):
        name = '<script>alert("x")</script>'
        set_share(name, weight=2)

        for url in (USERS, self.one(name)):
            page = self.client.get(url).content.decode()
            self.assertNotIn(name, page)
            self.assertIn(escape(name), page)


class ShareTests(UsersCase):
    def test_a_share_is_added(self):
        response = self.save(f"{USERS}add/", user="ann", weight="2", max_running="3")

        self.assertRedirects(response, USERS)
        share = FairShare.objects.get()
        self.assertEqual((share.user, share.weight, share.max_running), ("ann", 2.0, 3))

    def test_a_second_share_of_the_same_owner_is_refused(self):
        FairShare.objects.create(user="ann")

        response = self.save(f"{USERS}add/", user="ann", weight="2")
        self.assertContains(response, "already exists")

    def test_its_owner_stays(self):
        """To hand a share to another user would leave the first one's lanes as they are."""
        share = FairShare.objects.create(user="ann")
        self.client.post(f"{USERS}{share.pk}/change/", {"user": "bob", "weight": "3"})

        share.refresh_from_db()
        self.assertEqual((share.user, share.weight), ("ann", 3.0))

    def test_a_share_is_deleted(self):
        share = set_share("ann", weight=2)
        press(self.client, self.client.get(f"{USERS}{share.pk}/delete/"), "Yes")

        self.assertFalse(FairShare.objects.exists())
        self.assertEqual((Change.objects.last().by, Change.objects.last().after), ("boss", None))

    def test_the_history_tells_what_came_through_every_door(self):
        share = set_share("ann", weight=2, by="carl@shell")
        self.send("save", **{f"weight-{self.number('ann')}": "4"})

        response = self.client.get(f"{USERS}{share.pk}/history/")

        self.assertContains(response, "weight 2 → 4")
        self.assertContains(response, "<td>boss</td>")
        self.assertContains(response, "<td>carl@shell</td>")
        self.assertEqual(self.client.get(f"{USERS}{share.pk + 1}/history/").status_code, 302)
        self.client.force_login(staff("view_task", name="other"))
        self.assertEqual(self.client.get(f"{USERS}{share.pk}/history/").status_code, 403)
