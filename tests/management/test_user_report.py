from django.test import TestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.models import Account, FairShare
from django_perfectqueue.store.records import Tally, UsageKey
from tests.factories import acquire, submit_many

from .running import refused, run, run_json


def add(**seconds):
    tallies = {}
    for user, amount in seconds.items():
        tally = Tally(ended=2, seconds=amount)
        tally.longest, tally.waits[10] = 2.0, 2
        tallies[UsageKey("default", others=False, user=user)] = tally
    store.records.add_usage(tallies, using="default", at=store.records.clock(using="default"))


class SharesTests(TestCase):
    def setUp(self):
        FairShare.objects.create(user="gold", weight=3)
        for user in ("basic", "gold", "idle"):
            submit_many(6, user=user, now=None)
        acquire(3, now=None)

    def test_a_person_sees_who_was_entitled_to_what_and_got_it(self):
        Account.objects.filter(user="idle").update(paused=True)
        store.records.note_waiting(using="default")
        add(basic=50.0, gold=50.0)

        out = run("pq_user", "report")
        self.assertIn("Queue 'default' in the last hour: 1m40s of processor time\n", out)
        self.assertRegex(out, r"user +weight +running +waiting +entitled +received +more +tasks")
        self.assertRegex(out, r"\n  gold +3 +\d +\d +75.0% +50.0% +-25.0% +2 +1.4s +1.9s\n")
        self.assertRegex(out, r"\n  basic +1 +\d +\d +25.0% +50.0% +\+25.0% +2 +1.4s +1.9s\n")
        self.assertRegex(out, r"\n  idle +1 +\d +\d +0.0% +0.0% +0.0% +0 +- +- +paused\n")
        self.assertRegex(out, r"\n  \(all\) +100.0% +4 +1.4s +1.9s\n$")

    def test_those_who_received_most_come_first_and_the_rest_is_summed_up(self):
        add(ann=1.0, bob=2.0, cem=3.0)

        out = run("pq_user", "report", "--first", "1", "--over", "minute")
        self.assertRegex(out, r"\n  cem .* 50.0% .*\n  \(others\) .* 50.0% +0.0% +4 ")
        self.assertNotIn("(others)", run("pq_user", "report", "--first", "0"))

    def test_those_of_whom_most_waits_come_first_where_that_is_asked_for(self):
        add(ann=9.0, gold=1.0)
        submit_many(3, user="gold", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        [found] = run_json("pq_user", "report", "--by", "waiting")
        waiting = {one["user"]: one["waiting"] for one in found["shares"]}
        self.assertEqual(next(iter(waiting)), "gold")
        self.assertEqual(list(waiting.values()), sorted(waiting.values(), reverse=True))
        self.assertEqual(waiting.keys(), {"ann", "basic", "gold", "idle"})
        out = run("pq_user", "report", "--by", "waiting", "--first", "1")
        self.assertRegex(out, r"\n  gold .*\n  \(others\) ")
        self.assertRegex(run("pq_user", "report"), r"received .*\n  ann ")
        self.assertIn("'age'", refused(self, "pq_user", "report", "--by", "age"))

    def test_one_user_is_asked_for(self):
        add(ann=1.0, bob=2.0)

        [found] = run_json("pq_user", "report", "ann")
        self.assertEqual([one["user"] for one in found["shares"]], ["ann", ""])
        self.assertIn("User 'zoe' received nothing", run("pq_user", "report", "zoe"))

    def test_a_program_reads_the_figures(self):
        add(ann=1.0)

        [found] = run_json("pq_user", "report", "--over", "day")
        total = found["total"]["seconds"]
        self.assertEqual((found["queue"], found["over"], total), ("default", "day", 1.0))
        [ann] = found["shares"]
        self.assertEqual((ann["received"], ann["entitled"], ann["others"]), (1.0, 1.0, False))
        self.assertEqual((ann["p50"] > 1, ann["held"], ann["waiting"]), (True, "", 0))

    def test_tasks_without_a_user_have_a_line(self):
        add(**{"": 1.0})

        self.assertRegex(run("pq_user", "report"), r"\n  - .* 100.0%")

    def test_where_there_is_nothing_it_says_so(self):
        said = run("pq_user", "report", "--queue", "reports")

        self.assertEqual(
            said,
            "No task of queue 'reports' ran or waited for a worker in the last hour."
            " Workers write every ten seconds what they did.\n",
        )
        [found] = run_json("pq_user", "report", "--queue", "reports")
        total = found["total"]
        self.assertEqual((found["shares"], total["seconds"], total["p50"]), ([], 0.0, None))

    @override_settings(PERFECTQUEUE={"USAGE_TIME": 0})
    def test_where_it_is_switched_off_it_says_so(self):
        self.assertIn("USAGE_TIME is 0.", run("pq_user", "report"))

    def test_another_window_is_refused(self):
        self.assertIn(
            "invalid choice: 'week'", refused(self, "pq_user", "report", "--over", "week")
        )
