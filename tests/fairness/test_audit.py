from unittest import mock

from django.db import transaction
from django.test import TestCase

from django_perfectqueue.fairness import audit
from django_perfectqueue.fairness.limits import remove_limit, set_limit
from django_perfectqueue.fairness.shares import reset_share, set_share
from django_perfectqueue.models import Change, FairShare
from django_perfectqueue.queue import Queue


def reported():
    """Return every change, the first one first, as who did it, to what, before and after."""
    rows = Change.objects.order_by("id")
    return [(row.by, row.name, row.before, row.after) for row in rows]


def terms(**others):
    return {"weight": 1.0, "max_running": None, "paused": False, **others}


class TrailTests(TestCase):
    """A change of a share or a limit leaves a trail, through whichever door."""

    def test_a_share_tells_who_has_changed_it_and_from_what_to_what(self):
        set_share("acme", weight=3, by="ann")
        set_share("acme", paused=True, by="bob")
        reset_share("acme", by="carl")

        self.assertEqual(
            reported(),
            [
                ("ann", "acme", None, terms(weight=3.0)),
                ("bob", "acme", terms(weight=3.0), terms(weight=3.0, paused=True)),
                ("carl", "acme", terms(weight=3.0, paused=True), None),
            ],
        )

    def test_a_limit_does_too(self):
        set_limit("smtp", rate=10, period=60, by="ann")
        remove_limit("smtp", by="bob")

        rate = {"max_running": None, "rate": 10, "period": 60.0, "burst": None, "paused": False}
        self.assertEqual(
            reported(), [("ann", "name:smtp", None, rate), ("bob", "name:smtp", rate, None)]
        )

    def test_so_does_a_pause_of_a_queue(self):
        Queue("reports").pause(by="ann")
        Queue("reports").unpause(by="bob")

        self.assertEqual(
            [(by, name) for by, name, _before, _after in reported()],
            [("ann", "queue:reports"), ("bob", "queue:reports")],
        )

    def test_a_row_that_is_saved_by_hand_does_too(self):
        with audit.acting("a script"):
            FairShare.objects.create(user="acme", weight=3)
        FairShare.objects.all().delete()

        self.assertEqual([row[0] for row in reported()], ["a script", ""])

    def test_a_share_that_passes_to_another_user_is_taken_from_the_first(self):
        share = FairShare.objects.create(user="acme", weight=3)
        share.user = "other"
        share.save()

        self.assertEqual(
            reported()[1:],
            [("", "acme", terms(weight=3.0), None), ("", "other", None, terms(weight=3.0))],
        )

    def test_what_has_changed_nothing_leaves_none(self):
        set_share("acme", weight=3)
        set_share("acme", weight=3)
        FairShare.objects.get().save()
        reset_share("other")

        self.assertEqual(len(reported()), 1)

    def test_what_is_rolled_back_leaves_none(self):
        with transaction.atomic():
            set_share("acme", weight=3)
            transaction.set_rollback(True)

        self.assertEqual(reported(), [])

    def test_of_one_only_so_many_are_kept(self):
        set_share("other", weight=3)
        with mock.patch.object(audit, "CHANGES_OF_ONE", 3):
            for weight in range(2, 8):
                set_share("acme", weight=weight)

        kept = [(name, after["weight"]) for _by, name, _before, after in reported()]
        self.assertEqual(kept, [("other", 3), ("acme", 5), ("acme", 6), ("acme", 7)])

    def test_and_so_many_of_all_together(self):
        with mock.patch.multiple(audit, CHANGES=3, EVERY=1):
            for number in range(6):
                set_share(f"user{number}", weight=3)

        self.assertEqual([row[1] for row in reported()], ["user3", "user4", "user5"])

    def test_a_name_that_is_too_long_is_cut(self):
        set_share("acme", weight=3, by="x" * 300)

        self.assertEqual(reported()[0][0], "x" * 255)
