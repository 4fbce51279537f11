from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings

from django_perfectqueue import store
from django_perfectqueue.fairness import set_limit, set_share
from django_perfectqueue.models import Account, Change, FairShare, QueueShare

from ..factories import acquire, register, submit
from .forms import press
from .staff import AdminTestCase, staff

QUEUES = "/admin/perfectqueue/queueshare/"
SHARES = "/admin/perfectqueue/fairshare/"
LANES = "/admin/perfectqueue/account/"


class QueueShareTests(AdminTestCase):
    def test_a_weight_is_added_edited_and_kept_in_the_changes(self):
        self.save(f"{QUEUES}add/", queue="mail", weight="2")
        row = QueueShare.objects.get()
        self.assertRedirects(self.save(QUEUES, **{"form-0-weight": "3"}), QUEUES)

        changes = self.client.get("/admin/perfectqueue/change/")
        self.assertContains(changes, "queue &#x27;mail&#x27;")
        self.assertContains(changes, "weight 2 → 3")
        self.assertContains(self.client.get(f"{QUEUES}{row.pk}/history/"), "weight 2 → 3")


class FairShareTests(AdminTestCase):
    def edit(self, **values):
        return self.save(SHARES, **{f"form-0-{name}": value for name, value in values.items()})

    def test_a_share_is_added(self):
        response = self.save(f"{SHARES}add/", user="ann", weight="2", max_running="3")

        self.assertRedirects(response, SHARES)
        share = FairShare.objects.get()
        self.assertEqual((share.user, share.weight, share.max_running), ("ann", 2.0, 3))

    def test_a_second_share_of_the_same_owner_is_refused(self):
        FairShare.objects.create(user="ann")

        response = self.save(f"{SHARES}add/", user="ann", weight="2")
        self.assertContains(response, "already exists")

    def test_a_weight_of_nothing_is_refused(self):
        response = self.save(f"{SHARES}add/", user="ann", weight="0")

        self.assertContains(response, "greater than or equal to 0.001")

    def test_an_edit_in_the_list_is_written_into_the_history(self):
        share = FairShare.objects.create(user="ann")
        self.assertRedirects(self.edit(weight="4", paused="on"), SHARES)

        share.refresh_from_db()
        self.assertEqual((share.weight, share.paused), (4.0, True))
        entry = LogEntry.objects.get()
        self.assertEqual((entry.action_flag, entry.object_id), (CHANGE, str(share.pk)))
        last = Change.objects.last()
        self.assertEqual((last.by, last.before["weight"], last.after["weight"]), ("boss", 1.0, 4.0))

    def test_its_owner_stays(self):
        """To hand a share to another user would leave the first one's lanes as they are."""
        share = FairShare.objects.create(user="ann")
        self.client.post(f"{SHARES}{share.pk}/change/", {"user": "bob", "weight": "3"})

        share.refresh_from_db()
        self.assertEqual((share.user, share.weight), ("ann", 3.0))

    def test_shares_are_deleted(self):
        share = FairShare.objects.create(user="ann")
        press(self.client, self.act(SHARES, "delete_selected", share), "Yes")

        self.assertFalse(FairShare.objects.exists())
        self.assertEqual((Change.objects.last().by, Change.objects.last().after), ("boss", None))

    def test_shares_are_paused_and_unpaused(self):
        shares = [set_share(user, weight=2) for user in ("ann", "bob")]
        set_share("bob", paused=True)

        response = self.act(SHARES, "pause", *shares)

        self.assertEqual(self.reported(response), ["1 was paused."])
        self.assertEqual(FairShare.objects.filter(paused=True).count(), 2)
        self.assertEqual(LogEntry.objects.get().get_change_message(), "Paused.")
        last = Change.objects.last()
        self.assertEqual((last.by, last.name, last.after["paused"]), ("boss", "ann", True))

        self.assertEqual(
            self.reported(self.act(SHARES, "pause", *shares))[0][:22], "Nothing had to be done"
        )
        self.assertEqual(self.reported(self.act(SHARES, "unpause", *shares)), ["2 were unpaused."])
        self.assertFalse(FairShare.objects.filter(paused=True).exists())

    def test_who_may_only_look_can_not_pause(self):
        share = set_share("ann", weight=2)
        self.client.force_login(staff("view_fairshare"))

        self.forge_action(SHARES, "pause", share)

        share.refresh_from_db()
        self.assertFalse(share.paused)
        self.assertNotContains(self.client.get(SHARES), "Pause selected")

    def test_the_history_tells_what_came_through_every_door(self):
        share = set_share("ann", weight=2, by="carl@shell")
        self.edit(weight="4")

        response = self.client.get(f"{SHARES}{share.pk}/history/")

        self.assertContains(response, "weight 2 → 4")
        self.assertContains(response, "<td>boss</td>")
        self.assertContains(response, "<td>carl@shell</td>")
        self.assertEqual(self.client.get(f"{SHARES}{share.pk + 1}/history/").status_code, 302)
        self.client.force_login(staff("view_task", name="other"))
        self.assertEqual(self.client.get(f"{SHARES}{share.pk}/history/").status_code, 403)

    def test_the_share_of_everyone_is_named_in_words(self):
        set_share("*", weight=2)

        self.assertContains(self.client.get(SHARES), "(everyone else)")

    @override_settings(PERFECTQUEUE={"DATABASE": "default"})
    def test_no_owner_is_named_in_words(self):
        FairShare.objects.create()

        response = self.client.get(SHARES)
        self.assertContains(response, "(tasks without a user)")
        self.assertContains(response, "(every queue)")


class LaneTests(AdminTestCase):
    def test_it_shows_who_is_served_and_what_waits(self):
        register("default", now=None)
        for user in ("ann", "ann", "bob"):
            submit(user=user)
        acquire()
        Account.objects.filter(user="bob").update(paused=True)

        response = self.client.get(LANES)
        self.assertContains(response, "served")
        self.assertContains(response, "paused")
        self.assertContains(response, '<td class="field-waiting">1</td>', 2)

    def test_nobody_is_served_where_there_is_no_worker(self):
        register("default", now=None)
        submit(queue="reports", user="ann", now=None)
        store.wake_forgotten_lanes(using="default")

        response = self.client.get(LANES)
        self.assertContains(response, '<span class="pq-status pq-failed">no worker</span>')
        self.assertNotContains(response, "pq-running")

    def test_nobody_is_served_who_has_no_task(self):
        register("default", now=None)
        submit(user="ann", now=None)
        store.wake_forgotten_lanes(using="default")
        with self.captureOnCommitCallbacks(execute=True):
            set_share("bob", weight=2)
        self.assertFalse(Account.objects.get(user="bob").has_waiting)
        Account.objects.filter(user="bob").update(has_waiting=True)

        response = self.client.get(LANES, {"q": "bob"})
        self.assertContains(response, "nothing waits")
        self.assertNotContains(response, "pq-running")

    def test_many_lanes_take_no_more_statements(self):
        for number in range(3):
            submit(user=f"user-{number}", now=None)
        store.wake_forgotten_lanes(using="default")
        few = len(self.statements(LANES))
        for number in range(20):
            submit(user=f"other-{number}", now=None)
        store.wake_forgotten_lanes(using="default")
        self.assertEqual(len(self.statements(LANES)), few)

    def test_a_user_is_found(self):
        for user in ("ann", "bob"):
            submit(user=user)
        acquire()

        response = self.client.get(LANES, {"q": "bob"})
        self.assertEqual([lane.user for lane in response.context["cl"].result_list], ["bob"])

    def test_a_user_has_one_row_whatever_limits_its_tasks_keep_to(self):
        register("default", now=None)
        set_limit("mail", max_running=1)
        for limits in ([], ["mail"], ["mail"]):
            submit(user="ann", limits=limits, now=None)
        acquire(3, now=None)

        response = self.client.get(LANES, {"q": "ann"})
        self.assertContains(response, '<td class="field-of_limits">mail</td>')
        self.assertContains(response, '<td class="field-running">2</td>', 1)
        self.assertContains(response, "held back by a limit", 1)

    def test_nothing_can_be_changed(self):
        submit()
        acquire()
        url = f"{LANES}{Account.objects.get().pk}/change/"

        self.assertEqual(self.client.get(url).status_code, 200)
        self.assertEqual(self.client.post(url, {"running": 7}).status_code, 403)
        self.assertEqual(self.client.get(f"{LANES}add/").status_code, 403)
