from django.core.serializers import deserialize, serialize
from django.db import transaction
from django.test import TransactionTestCase

from django_perfectqueue.models import FairShare, Lane
from tests.factories import acquire, submit, submit_many


class ShareTests(TransactionTestCase):
    """A share that is edited holds for tasks that wait already."""

    def setUp(self):
        submit_many(4, user="acme")
        submit("first", user="other")
        acquire(1)
        self.assertEqual(Lane.objects.count(), 2)

    def lane(self, user="acme"):
        return Lane.objects.get(user=user)

    def taken(self):
        return [lease.user for lease in acquire(10)]

    def test_a_new_share_is_in_force_at_once(self):
        FairShare.objects.create(user="acme", weight=3, max_running=7)

        self.assertEqual((self.lane().weight, self.lane().max_running), (3, 7))
        self.assertEqual((self.lane("other").weight, self.lane("other").max_running), (1, None))

    def test_a_pause_stops_the_next_acquire_and_its_end_lets_it_go_on(self):
        share = FairShare.objects.create(user="acme", paused=True)
        self.assertNotIn("acme", self.taken())

        share.paused = False
        share.save()

        self.assertIn("acme", self.taken())

    def test_a_share_that_is_taken_away_leaves_one_of_equals(self):
        FairShare.objects.create(user="acme", weight=3, paused=True).delete()

        self.assertEqual((self.lane().weight, self.lane().paused), (1, False))

    def test_deleting_many_is_followed_too(self):
        FairShare.objects.create(user="acme", weight=3)

        FairShare.objects.all().delete()

        self.assertEqual(self.lane().weight, 1)

    def test_a_share_that_passes_to_another_user_leaves_the_first(self):
        share = FairShare.objects.create(user="acme", weight=3)

        share.user = "other"
        share.save()

        self.assertEqual((self.lane().weight, self.lane("other").weight), (1, 3))

    def test_a_share_of_one_queue_that_moves_to_another_leaves_the_first(self):
        submit("k", user="acme", queue="reports")
        acquire(1, queues=["reports"])
        share = FairShare.objects.create(user="acme", queue="default", weight=3)

        share.queue = "reports"
        share.save()

        weights = dict(Lane.objects.filter(user="acme").values_list("queue", "weight"))
        self.assertEqual(weights, {"default": 1, "reports": 3})

    def test_nothing_changes_before_the_commit(self):
        """
        A form that saves and then fails has touched no lane.
        """
        with transaction.atomic():
            FairShare.objects.create(user="acme", weight=3)
            self.assertEqual(self.lane().weight, 1)
            transaction.set_rollback(True)
        self.assertEqual(self.lane().weight, 1)

        with transaction.atomic():
            FairShare.objects.create(user="acme", weight=3)
        self.assertEqual(self.lane().weight, 3)

    def test_a_fixture_is_followed_too(self):
        share = FairShare.objects.create(user="acme", weight=3)
        fixture = serialize("json", [share]).replace('"weight": 3', '"weight": 5')

        for loaded in deserialize("json", fixture):
            loaded.save()

        self.assertEqual(self.lane().weight, 5)

    def test_saving_what_has_not_changed_does_no_harm(self):
        share = FairShare.objects.create(user="acme", weight=3)

        share.save()

        self.assertEqual(self.lane().weight, 3)
