from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings

from django_perfectqueue.models import FairShare, Lane

from ..factories import acquire, submit
from .staff import AdminTestCase

SHARES = "/admin/perfectqueue/fairshare/"
LANES = "/admin/perfectqueue/lane/"


class FairShareTests(AdminTestCase):
    def edit(self, share, **values):
        fields = {"weight": share.weight, "max_running": "", **values}
        return self.client.post(
            SHARES,
            {
                "form-TOTAL_FORMS": 1,
                "form-INITIAL_FORMS": 1,
                "form-0-id": share.pk,
                "_save": "Save",
                **{f"form-0-{name}": value for name, value in fields.items()},
            },
        )

    def test_a_share_is_added(self):
        data = {"user": "ann", "queue": "", "weight": "2", "max_running": "3"}
        response = self.client.post(f"{SHARES}add/", data)

        self.assertRedirects(response, SHARES)
        share = FairShare.objects.get()
        self.assertEqual((share.user, share.weight, share.max_running), ("ann", 2.0, 3))

    def test_a_second_share_of_the_same_owner_is_refused(self):
        FairShare.objects.create(user="ann")

        response = self.client.post(f"{SHARES}add/", {"user": "ann", "weight": "2"})
        self.assertContains(response, "already exists")

    def test_a_weight_of_nothing_is_refused(self):
        response = self.client.post(f"{SHARES}add/", {"user": "ann", "weight": "0"})

        self.assertContains(response, "greater than or equal to 0.001")

    def test_an_edit_in_the_list_is_written_into_the_history(self):
        share = FairShare.objects.create(user="ann")
        self.assertRedirects(self.edit(share, weight="4", paused="on"), SHARES)

        share.refresh_from_db()
        self.assertEqual((share.weight, share.paused), (4.0, True))
        entry = LogEntry.objects.get()
        self.assertEqual((entry.action_flag, entry.object_id), (CHANGE, str(share.pk)))

    def test_its_owner_stays(self):
        """To hand a share to another user would leave the first one's lanes as they are."""
        share = FairShare.objects.create(user="ann")
        self.client.post(f"{SHARES}{share.pk}/change/", {"user": "bob", "weight": "3"})

        share.refresh_from_db()
        self.assertEqual((share.user, share.weight), ("ann", 3.0))

    def test_shares_are_deleted(self):
        share = FairShare.objects.create(user="ann")
        data = {"action": "delete_selected", "_selected_action": [share.pk], "post": "yes"}
        self.client.post(SHARES, data)

        self.assertFalse(FairShare.objects.exists())

    @override_settings(PERFECTQUEUE={"DATABASE": "default"})
    def test_no_owner_is_named_in_words(self):
        FairShare.objects.create()

        response = self.client.get(SHARES)
        self.assertContains(response, "(tasks without a user)")
        self.assertContains(response, "(every queue)")


class LaneTests(AdminTestCase):
    def test_it_shows_who_is_served_and_what_waits(self):
        for user in ("ann", "ann", "bob"):
            submit(user=user)
        acquire()
        Lane.objects.filter(user="bob").update(paused=True)

        response = self.client.get(LANES)
        self.assertContains(response, "served")
        self.assertContains(response, "paused")
        self.assertContains(response, '<td class="field-waiting">1</td>', 2)

    def test_a_user_is_found(self):
        for user in ("ann", "bob"):
            submit(user=user)
        acquire()

        response = self.client.get(LANES, {"q": "bob"})
        self.assertEqual([lane.user for lane in response.context["cl"].result_list], ["bob"])

    def test_nothing_can_be_changed(self):
        submit()
        acquire()
        url = f"{LANES}{Lane.objects.get().pk}/change/"

        self.assertEqual(self.client.get(url).status_code, 200)
        self.assertEqual(self.client.post(url, {"running": 7}).status_code, 403)
        self.assertEqual(self.client.get(f"{LANES}add/").status_code, 403)
