import math

from asgiref.sync import async_to_sync
from django.core.serializers import deserialize, serialize
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.shares import (
    areset_share,
    aset_share,
    ashare,
    queue_weight,
    reset_queue_weight,
    reset_share,
    set_queue_weight,
    set_share,
    share,
)
from django_perfectqueue.models import EVERYONE, Account, FairShare
from tests.factories import acquire, submit, submit_many


class QueueWeightTests(TestCase):
    def test_it_is_set_read_and_taken_back(self):
        self.assertEqual(queue_weight("mail"), 1)
        self.assertEqual(set_queue_weight("mail", 2.5, by="ann").weight, 2.5)
        self.assertEqual(queue_weight("mail"), 2.5)
        self.assertTrue(reset_queue_weight("mail"))
        self.assertFalse(reset_queue_weight("mail"))
        self.assertEqual(queue_weight("mail"), 1)

    def test_what_can_not_be_is_refused(self):
        for queue, weight in (("mail", 0), ("mail", math.inf), ("", 1), ("x" * 101, 1)):
            with self.subTest(queue=queue, weight=weight), self.assertRaises(ConfigError):
                set_queue_weight(queue, weight)


class ShareTests(TransactionTestCase):
    """A share that is edited holds for tasks that wait already."""

    def setUp(self):
        submit_many(4, user="acme")
        submit("first", user="other")
        acquire(1)
        self.assertEqual(Account.objects.count(), 2)

    def lane(self, user="acme"):
        return Account.objects.get(user=user)

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

        weights = dict(Account.objects.filter(user="acme").values_list("queue", "weight"))
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


def terms(row):
    return (row.weight, row.max_running, row.paused)


class DoorTests(TestCase):
    """Programs see and change shares without knowing the rows."""

    def test_only_what_is_given_is_changed(self):
        set_share("acme", weight=3)
        set_share("acme", max_running=5)
        set_share("acme", paused=True)

        self.assertEqual(terms(FairShare.objects.get()), (3, 5, True))

        set_share("acme", max_running=None, paused=False)

        self.assertEqual(terms(FairShare.objects.get()), (3, None, False))

    def test_a_new_share_has_the_rest_of_the_one_that_held(self):
        set_share(EVERYONE, weight=2)
        set_share("acme", max_running=5)
        set_share("acme", queue="reports", paused=True)

        rows = {(row.user, row.queue): terms(row) for row in FairShare.objects.all()}
        self.assertEqual(rows["acme", ""], (2, 5, False))
        self.assertEqual(rows["acme", "reports"], (2, 5, True))

    def test_what_holds_can_be_asked_for(self):
        self.assertEqual(terms(share("acme")), (1, None, False))
        set_share(EVERYONE, weight=2)
        self.assertEqual((share("acme").user, share("acme").weight), ("*", 2))
        set_share("acme", weight=3)
        set_share("acme", queue="reports", weight=4)

        self.assertEqual(share("acme").weight, 3)
        self.assertEqual(share("acme", queue="reports").weight, 4)
        self.assertEqual(share(None).weight, 2)

    def test_who_is_reset_has_the_share_of_everyone(self):
        set_share(EVERYONE, weight=2)
        set_share("acme", weight=3)

        self.assertTrue(reset_share("acme"))
        self.assertFalse(reset_share("acme"))

        self.assertEqual(share("acme").weight, 2)

    def test_the_tasks_without_a_user_have_a_share(self):
        set_share(None, weight=3)

        self.assertEqual(share("").weight, 3)
        self.assertEqual(FairShare.objects.get().user, "")

    def test_what_can_not_be_is_refused_with_what_can(self):
        for given, reported in (
            ({"weight": 0}, "The weight must be a number from 0.001 to 1,000,000, not 0."),
            ({"weight": -1}, "not -1"),
            ({"weight": math.nan}, "not nan"),
            ({"weight": math.inf}, "not inf"),
            ({"weight": True}, "not True"),
            ({"weight": "3"}, "not '3'"),
            ({"weight": None}, "not None"),
            ({"max_running": -1}, "The max_running must be a whole number from 0"),
            ({"max_running": 1.5}, "not 1.5"),
            ({"max_running": 2**31}, "not 2147483648"),
            ({"paused": "no"}, "paused must be True or False, not 'no'."),
        ):
            with self.subTest(given), self.assertRaisesMessage(ConfigError, reported):
                set_share("acme", **given)
        for name in ("x" * 256, "a\x00b", 7):
            with self.subTest(name), self.assertRaisesMessage(ConfigError, "The user"):
                set_share(name, weight=2)
        with self.assertRaisesMessage(ConfigError, "The queue"):
            set_share("acme", queue="x" * 101, weight=2)
        self.assertFalse(FairShare.objects.exists())

    def test_each_has_an_async_twin(self):
        async def use():
            await aset_share("acme", weight=3)
            found = await ashare("acme")
            return found.weight, await areset_share("acme")

        self.assertEqual(async_to_sync(use)(), (3, True))
