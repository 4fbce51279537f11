from datetime import timedelta

from django.test import TestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import limit, set_limit, set_share, share
from django_perfectqueue.fairness.edit import end_pauses
from django_perfectqueue.models import Change, Limit
from django_perfectqueue.queue import Queue

from ..factories import register, submit
from ..health.test_queues import now

HOUR = timedelta(hours=1)


class PauseTests(TestCase):
    def test_a_pause_says_until_when_why_and_by_whom(self):
        until = now() + HOUR
        set_share("ann", paused=True, until=until, note="ticket 812", by="carl")
        set_limit("mail", scope="type", paused=True, until=until, note="ticket 813", by="carl")
        Queue().pause(until=until, note="ticket 814", by="carl")

        rows = share("ann"), limit("mail", scope="type"), limit("default", scope="queue")
        self.assertEqual({(row.paused_until, row.paused_by) for row in rows}, {(until, "carl")})
        self.assertEqual([row.note[-3:] for row in rows], ["812", "813", "814"])
        register("default", now=None)
        reason = submit(user="bob", now=None).why_waiting()
        self.assertEqual((reason.at, reason.by, reason.note), (until, "carl", "ticket 814"))
        self.assertRegex(reason.sentence, r"is paused \(until .*, by carl: ticket 814\)\.$")

    def test_it_ends_by_the_clock_of_the_server(self):
        set_share("ann", weight=2, paused=True, until=now() - HOUR, note="over", by="carl")
        set_share("bob", paused=True, until=now() + HOUR)
        set_share("dora", paused=True)
        set_limit("mail", max_running=2, paused=True, until=now() - HOUR)
        Queue().pause(until=now() - HOUR)

        self.assertEqual(end_pauses(using="default"), 3)

        ann = share("ann")
        self.assertEqual(
            (ann.paused, ann.paused_until, ann.note, ann.paused_by), (False, None, "", "")
        )
        self.assertEqual(ann.weight, 2.0)
        self.assertTrue(share("bob").paused and share("dora").paused)
        self.assertEqual(Limit.objects.get().max_running, 2)
        self.assertFalse(Queue().is_paused())
        self.assertEqual(Change.objects.get(kind="share", before__paused=True).by, "")
        self.assertEqual(end_pauses(using="default"), 0)

    def test_what_no_longer_holds_is_kept_of_no_pause(self):
        set_share("ann", paused=True, until=now() + HOUR, note="first", by="carl")
        set_share("ann", paused=False)
        set_share("ann", paused=True, by="dora")

        row = share("ann")
        self.assertEqual((row.paused_until, row.note, row.paused_by), (None, "", "dora"))

    def test_what_can_be_no_end_and_no_note_is_refused(self):
        for given in (
            {"until": "4:00"},
            {"until": now().replace(tzinfo=None)},
            {"note": "x" * 256},
        ):
            with self.subTest(given), self.assertRaises(ConfigError):
                set_share("ann", paused=True, **given)
        with self.assertRaisesMessage(ConfigError, "until must be a datetime with a time zone"):
            set_share("ann", until="1h")

    def test_an_end_needs_a_pause(self):
        for set_it in (set_share, set_limit):
            with self.assertRaisesMessage(ConfigError, "a pause: give paused=True, too."):
                set_it("ann", until=now() + HOUR)
            set_it("ann", paused=True)
            row = set_it("ann", until=now() + HOUR)
            self.assertTrue(row.paused and row.paused_until)
