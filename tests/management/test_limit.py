from datetime import timedelta

from django.test import TestCase
from django.utils import timezone

from django_perfectqueue.fairness.limits import limit, set_limit
from django_perfectqueue.models import Change, Limit, Meter

from .running import refused, run, run_json


def terms(name="smtp", scope="name"):
    row = limit(name, scope=scope)
    return row.max_running, row.rate, row.period, row.burst, row.paused


class LimitTests(TestCase):
    def test_only_what_is_given_is_changed(self):
        run("pq_limit", "set", "smtp", "--rate", "10/min", "--at-once", "3")
        self.assertEqual(terms(), (None, 10, 60, 3, False))
        run("pq_limit", "set", "smtp", "--max-running", "2")
        run("pq_limit", "pause", "smtp")
        self.assertEqual(terms(), (2, 10, 60, 3, True))
        run("pq_limit", "unpause", "smtp")
        run("pq_limit", "set", "smtp", "--rate", "none")
        self.assertEqual(terms(), (2, None, 1, None, False))

    def test_rates_are_written_as_people_do(self):
        for text, rate, period in (
            ("5/s", 5, 1),
            ("5/sec", 5, 1),
            ("10/min", 10, 60),
            ("10/m", 10, 60),
            ("10/60", 10, 60),
            ("10/0.5", 10, 0.5),
            ("100/hour", 100, 3600),
            ("7/d", 7, 86400),
            ("3/1m30s", 3, 90),
        ):
            with self.subTest(text):
                run("pq_limit", "set", "smtp", "--rate", text)
                self.assertEqual(terms()[1:3], (rate, period))

    def test_it_says_what_holds_now(self):
        for arguments, reported in (
            (["--rate", "10/min"], "10/min"),
            (["--rate", "2/90"], "2/1m30s"),
            (["--at-once", "1"], "2/1m30s, up to 1 at once"),
            (["--max-running", "3", "--rate", "none"], "at most 3 running"),
            (["--max-running", "none"], "no limit"),
        ):
            with self.subTest(arguments):
                out = run("pq_limit", "set", "smtp", *arguments)
                self.assertEqual(out, f"Limit 'name:smtp': {reported}.\n")

    def test_each_scope_is_named_before_the_name(self):
        for scope in ("name", "queue", "type", "user"):
            run("pq_limit", "set", f"{scope}:a:b", "--max-running", "1")

        found = sorted(Limit.objects.values_list("scope", "name"))
        self.assertEqual(found, [(scope, "a:b") for scope in ("name", "queue", "type", "user")])

    def test_a_queue_is_paused_and_nothing_is_left_of_it(self):
        run("pq_limit", "pause", "queue:reports")
        self.assertTrue(terms("reports", "queue")[-1])

        out = run("pq_limit", "unpause", "queue:reports")

        self.assertEqual(out, "There is no limit 'queue:reports' any more.\n")
        self.assertFalse(Limit.objects.exists())

    def test_a_limit_that_limits_more_outlives_its_pause(self):
        run("pq_limit", "set", "smtp", "--max-running", "2")
        self.assertIn("at most 2 running, paused", run("pq_limit", "pause", "smtp"))

        self.assertIn("at most 2 running.", run("pq_limit", "unpause", "smtp"))

    def test_it_is_deleted(self):
        set_limit("smtp", max_running=2)

        reported = run("pq_limit", "delete", "smtp")
        self.assertEqual(reported, "There is no limit 'name:smtp' any more.\n")
        self.assertFalse(Limit.objects.exists())
        self.assertRegex(Change.objects.last().by, r"^\S+@\S+$")

    def test_alone_it_lists_all_with_what_runs_now(self):
        self.assertEqual(run("pq_limit", "list"), "There are no limits.\n")
        set_limit("smtp", max_running=2, rate=1, period=3600)
        set_limit("reports", scope="queue", paused=True)
        Meter.objects.create(key="name:smtp", running=1, next_at=timezone.now() + hours(1))

        out = run("pq_limit", "list")

        self.assertRegex(out, r"name:smtp +1 +2  1/h +-  in (1h|59m)\S*\n")
        self.assertRegex(out, r"queue:reports +0 +-  - +-  - +paused\n")

    def test_the_next_may_start_when_rate_and_cap_let_it(self):
        for given, running, at, reported in (
            ({"rate": 1, "period": 3600}, 0, None, "now"),
            ({"rate": 1, "period": 3600}, 0, -hours(1), "now"),
            ({"rate": 2, "period": 7200}, 0, hours(1), "now"),
            ({"rate": 2, "period": 7200, "burst": 1}, 0, hours(1), "in "),
            # The rate was slower when the meter was set: the store sets it back.
            ({"rate": 1, "period": 60}, 0, hours(1), "now"),
            ({"max_running": 2}, 1, None, "-"),
            ({"max_running": 2}, 2, None, "when one ends"),
            ({"max_running": 0}, 0, None, "-"),
            ({"rate": 1, "paused": True}, 0, None, "-"),
        ):
            with self.subTest(given, running=running):
                Limit.objects.all().delete()
                Meter.objects.all().delete()
                set_limit("smtp", **given)
                next_at = at and timezone.now() + at
                Meter.objects.create(key="name:smtp", running=running, next_at=next_at)
                self.assertRegex(run("pq_limit", "list"), rf"  {reported}[^\n]*\n$")

    def test_one_is_shown_with_who_has_changed_it(self):
        set_limit("smtp", rate=10, period=60, by="ann")

        self.assertRegex(run("pq_limit", "show", "smtp"), r"  ann +added: rate 10, period 60\n")
        [found] = run_json("pq_limit", "show", "smtp")
        self.assertEqual(found["changes"][0]["by"], "ann")

    def test_programs_get_json(self):
        [found] = run_json("pq_limit", "set", "smtp", "--rate", "10/min")

        self.assertEqual(
            found,
            {
                "limit": "name:smtp",
                "origin": None,
                "members": {},
                "scope": "name",
                "name": "smtp",
                "max_running": None,
                "rate": 10,
                "period": 60.0,
                "burst": None,
                "paused": False,
                "paused_until": None,
                "paused_by": None,
                "note": None,
                "running": 0,
                "next_at": None,
            },
        )
        self.assertEqual(len(run_json("pq_limit", "list")), 1)
        deleted = [{"limit": "name:smtp", "deleted": True}]
        self.assertEqual(run_json("pq_limit", "delete", "smtp"), deleted)

    def test_a_family_shows_what_runs_in_it_and_which_names_most(self):
        set_limit("stripe:*", max_running=4)
        set_limit("stripe:own", max_running=9)
        for number in range(8):
            Meter.objects.create(key=f"name:stripe:{number}", running=number % 4)
        Meter.objects.create(key="name:stripe:own", running=9)
        out = run("pq_limit", "list")
        names = r"stripe:3 \(3\), stripe:7 \(3\), stripe:2 \(2\), stripe:6 \(2\), stripe:1 \(1\), …"
        self.assertRegex(out, rf"name:stripe:\* +12 +4  - +-  - +{names}\n")
        [found] = run_json("pq_limit", "show", "name:stripe:*")
        self.assertEqual((found["running"], len(found["members"])), (12, 6))

    def test_a_name_of_a_family_shows_what_holds_for_it(self):
        set_limit("stripe:*", max_running=4)

        self.assertRegex(run("pq_limit", "show", "name:stripe:17"), r"name:stripe:\* +0 +4 ")
        refused(self, "pq_limit", "delete", "name:stripe:17")
        run("pq_limit", "pause", "name:stripe:17")
        self.assertTrue(terms("stripe:17")[-1])

    def test_a_long_list_is_cut_and_says_so(self):
        for number in range(3):
            set_limit(f"l{number}", max_running=2)

        self.assertIn("There are more", run("pq_limit", "list", "--first", "2"))
        self.assertEqual(len(run_json("pq_limit", "list", "--first", "0")), 3)

    def test_bad_input_is_reported_in_a_sentence(self):
        for arguments, reported in (
            (["show", "smtp"], "There is no limit 'name:smtp'."),
            (["delete", "smtp"], "There is no limit"),
            (["unpause", "smtp"], "There is no limit"),
            (["pause", "que:x"], "There is no scope 'que'"),
            (["pause", "que:x"], "Did you mean 'queue'?"),
            (["pause", "queue:"], "must be a text of 1"),
            (["pause", "a,b"], "comma"),
            (["set", "smtp", "--rate", "0/min"], "so many per time"),
            (["set", "smtp", "--rate", "10"], "so many per time"),
            (["set", "smtp", "--rate", "10/fortnight"], "so many per time"),
            (["set", "smtp", "--rate", "1/0"], "The period must be a number"),
            (["set", "smtp", "--at-once", "3"], "needs a rate"),
            (["set", "smtp"], "Say what to change: --max-running, --rate, --at-once."),
            (["pause"], "required"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, "pq_limit", *arguments))
        self.assertFalse(Limit.objects.exists())

    def test_the_nearest_name_is_said(self):
        set_limit("smtp", max_running=2)

        for verb in ("show", "pause"):
            said = refused(self, "pq_limit", verb, "smpt")
            self.assertEqual(said, "There is no limit 'name:smpt'. Did you mean 'name:smtp'?")
        self.assertEqual(Limit.objects.count(), 1)


def hours(count):
    return timedelta(hours=count)
