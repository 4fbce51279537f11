from django.test import override_settings
from django.utils import translation

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare
from django_perfectqueue.store import Tally, UsageKey

from ..factories import acquire, register, submit, submit_many
from .staff import AdminTestCase, staff

USAGE = "/admin/perfectqueue/usage/"


def add(queue="default", **seconds):
    tallies = {}
    for user, amount in seconds.items():
        tally = Tally(ended=2, seconds=amount)
        tally.wait(1.0)
        tally.wait(1.9)
        tallies[UsageKey(queue, others=False, user=user)] = tally
    store.add_usage(tallies, using="default", at=store.clock(using="default"))


def compete():
    """Have two users get as much as each other, of whom one is entitled to more."""
    FairShare.objects.create(user="gold", weight=3)
    for user in ("basic", "gold", "idle"):
        submit_many(6, user=user, now=None)
    acquire(3, now=None)
    Account.objects.filter(user="idle").update(paused=True)
    store.note_waiting(using="default")
    add(**{"basic": 40.0, "gold": 40.0, "": 20.0})


class SharesReceivedTests(AdminTestCase):
    def lines(self, **query):
        response = self.client.get(USAGE, query)
        self.assertEqual(response.status_code, 200)
        return response.context["rows"]

    def test_it_shows_who_was_entitled_to_what_and_got_it(self):
        compete()

        response = self.client.get(USAGE)
        self.assertContains(response, '<td class="pq-number pq-below">\N{MINUS SIGN}20.0%</td>')
        self.assertContains(response, '<td class="pq-number pq-above">+20.0%</td>')
        self.assertContains(response, '<rect class="pq-bar-entitled" width="100.00"')
        self.assertContains(response, '<rect class="pq-bar-received" width="66.67"')
        self.assertContains(response, "paused")
        self.assertContains(response, "1 min 40 s")

    def test_it_says_that_no_worker_serves_the_queue(self):
        reported = "No worker serves queue 'reports'; its oldest task has been due for"
        add(ann=1.0)
        submit_many(2, queue="reports", user="ann", now=None)
        store.wake_forgotten_lanes(using="default")
        self.assertContains(self.client.get(USAGE, {"queue": "reports"}), reported)
        self.assertNotContains(self.client.get(USAGE), "No worker serves")
        register("reports", now=None)
        self.assertNotContains(self.client.get(USAGE, {"queue": "reports"}), "No worker serves")

    def test_a_window_and_a_queue_are_chosen(self):
        add(ann=1.0)
        add("reports", bob=1.0)
        submit(queue="reports")

        self.assertEqual([row["share"].user for row in self.lines()], ["ann"])
        [bob] = self.lines(queue="reports", over="day")
        self.assertEqual(bob["share"].user, "bob")
        self.assertContains(self.client.get(USAGE), "?queue=reports&amp;over=hour")

    def test_a_user_is_found_and_the_others_are_summed_up(self):
        add(ann=1.0, bob=3.0)

        ann, others = self.lines(user="ann")
        self.assertEqual((ann["received"], others["received"]), ("25.0%", "75.0%"))
        self.assertTrue(others["share"].others)

    def test_what_is_no_window_queue_or_user_does_no_harm(self):
        add(ann=1.0)

        self.assertEqual(len(self.lines(over="week")), 1)
        self.assertEqual(len(self.lines(queue="\x00", user="\x00")), 1)
        self.assertEqual(self.lines(queue="nowhere"), [])

    def test_before_anything_ran_it_says_so(self):
        self.assertContains(self.client.get(USAGE), "No task of this queue ran")
        with override_settings(PERFECTQUEUE={"USAGE_TIME": 0}):
            self.assertContains(self.client.get(USAGE), "USAGE_TIME is 0")

    def test_it_asks_the_database_no_more_the_more_users_there_are(self):
        add(ann=1.0)
        few = len(self.statements(USAGE))
        add(**{f"user-{number}": 1.0 for number in range(45)})

        self.assertEqual(len(self.statements(USAGE)), few)
        self.assertEqual(len(self.lines()), 46)

    def test_it_is_for_those_who_may_see_it(self):
        self.client.force_login(staff("view_account", name="without"))
        self.assertEqual(self.client.get(USAGE).status_code, 403)
        self.client.force_login(staff("view_usage", name="with"))
        self.assertEqual(self.client.get(USAGE).status_code, 200)

    def test_the_index_leads_there(self):
        self.assertContains(self.client.get("/admin/"), f'href="{USAGE}"')

    def test_figures_are_written_as_in_the_readers_language(self):
        add(ann=1.0, bob=3.0)

        with translation.override("de"):
            self.assertContains(self.client.get(USAGE), "25,0\N{NO-BREAK SPACE}%")
