"""pq_schedule: what it stores, shows and steers, and what it refuses."""

from datetime import timedelta
from unittest import mock

from django.test import TestCase
from django.utils import timezone, translation

from django_perfectqueue.models import Change, Schedule, Task
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store import schedules

from .running import refused, run, run_json

HOUR = timedelta(hours=1)


def put(name="nightly", *arguments):
    return run("pq_schedule", "put", name, "report", *(arguments or ("--every", "1h")))


def break_(name):
    """Have a schedule whose zone this host does not know, and let a worker look at it."""
    rows = Schedule.objects.filter(name=name)
    now = timezone.now()
    rows.update(timezone="Europe/Atlantis", cron="@daily", every=None, due_at=now, next_at=now)
    schedules.fire_schedules(using="default")


def make_late(name, since=HOUR):
    Schedule.objects.filter(name=name).update(due_at=timezone.now() - since)


class PutTests(TestCase):
    def test_it_speaks_english_whatever_the_language_is(self):
        with translation.override("de"):
            self.assertRegex(put(), r"when +every 1h\n")
            self.assertRegex(run("pq_schedule", "pause", "nightly"), r"paused +yes\n")

    def test_it_is_stored_with_its_terms_and_the_next_five_are_shown(self):
        out = run(
            *("pq_schedule", "put", "nightly", "report", '{"customer": 42}'),
            *("--cron", "0 3 * * mon-fri", "--timezone", "Europe/Zurich", "--user", "42"),
            *("--queue", "slow", "--priority", "3", "--limit", "smtp", "--limit", "pdf"),
            *("--time-limit", "5m", "--expires-after", "90", "--remaining", "7"),
            *("--overlap", "queue_one", "--catch-up", "all", "--deadline", "1h"),
            *("--jitter", "30s", "--delay", "2s", "--pause-after", "3"),
        )
        row = Schedule.objects.get()
        terms = (row.name, row.type, row.payload, row.cron, row.timezone, row.user, row.queue)
        self.assertEqual(
            terms,
            (
                *("nightly", "report", '{"customer":42}', "0 3 * * mon-fri"),
                *("Europe/Zurich", "42", "slow"),
            ),
        )
        self.assertEqual((row.priority, row.limits, row.time_limit), (3, "pdf,smtp", 300))
        self.assertEqual((row.expires_after, row.remaining, row.overlap), (90, 7, "queue_one"))
        self.assertEqual((row.catch_up, row.deadline, row.jitter), (None, 3600, 30))
        self.assertEqual((row.delay, row.pause_after), (2, 3))
        self.assertIn("Schedule 'nightly' is stored.", out)
        self.assertIn("03:00", out)
        self.assertIn("Europe/Zurich", out)
        for tick in Schedules()["nightly"].next(5):
            local = timezone.localtime(tick).isoformat(" ", "seconds")
            self.assertIn(local, out)

    def test_a_put_changes_the_one_of_its_name_and_a_change_only_what_is_given(self):
        put("s", "--every", "1h", "--user", "ann", "--deadline", "5m")
        run("pq_schedule", "change", "s", "--every", "2h", "--deadline", "none")
        more = ("--tag", "a", "--sequence", "line", "--max-attempts", "2", "--backoff", "10s,1m")
        run("pq_schedule", "change", "s", *more)
        row, [shown] = Schedules()["s"].row(), run_json("pq_schedule", "show", "s")
        self.assertEqual((row.tags, row.sequence, row.max_attempts), (["a"], "line", 2))
        self.assertEqual((shown["tags"], shown["sequence"]), (["a"], "line"))
        self.assertIn("Steps", shown["backoff"])
        row = Schedule.objects.get()
        self.assertEqual((row.every, row.user, row.deadline), (7200, "ann", None))
        put("s", "--every", "90")
        row = Schedule.objects.get()
        self.assertEqual((row.every, row.user), (90, ""))

    def test_a_start_and_an_end_are_times(self):
        put("s", "--every", "1h", "--starts-at", "2030-01-01T00:00Z", "--ends-at", "1893459600")
        self.assertEqual(
            [found["next"] for found in run_json("pq_schedule", "show", "s")],
            [["2030-01-01T00:00:00+00:00", "2030-01-01T01:00:00+00:00"]],
        )

    def test_what_is_wrong_is_refused_with_the_nearest_right_word_and_not_stored(self):
        for arguments, words in (
            (["nightly", "reprot", "--every", "1h"], "Did you mean 'report'"),
            (["n", "report"], "cron expression or an interval"),
            (["n", "report", "--every", "1h", "--cron", "@daily"], "not both"),
            (["n", "report", "--cron", "@dayly"], "Did you mean '@daily'"),
            (["n", "report", "--cron", "0 0 30 2 *"], "is wrong"),
            (["n", "report", "--cron", "@daily", "--timezone", "Europe/Zurch"], "Europe/Zurich"),
            (["n", "report", "--every", "0.5"], "at least 1 s"),
            (["n", "report", "--every", "soon"], "a span such as"),
            (["n", "report", "--every", "1h", "--overlap", "skipp"], "Did you mean 'skip'"),
            (["n", "report", "--every", "1h", "--catch-up", "-1"], "from 0"),
            (["n", "report", "--every", "1h", "--remaining", "two"], "invalid"),
            (["n", "report", "--every", "1h", "--starts-at", "soon"], "ISO 8601"),
            (["n", "report", "{", "--every", "1h"], "not JSON"),
            (["n", "report", "--every", "1h", "--queue", ""], "queue"),
        ):
            with self.subTest(arguments):
                self.assertIn(words, refused(self, "pq_schedule", "put", *arguments))
        self.assertFalse(Schedule.objects.exists())

    def test_a_change_of_nothing_and_a_word_that_is_none_are_refused(self):
        put()
        self.assertIn("Say what", refused(self, "pq_schedule", "change", "nightly"))
        self.assertIn("invalid choice", refused(self, "pq_schedule", "puase", "nightly"))

    def test_without_cronsim_it_says_what_to_install(self):
        with mock.patch.dict("sys.modules", cronsim=None):
            said = refused(self, "pq_schedule", "put", "n", "report", "--cron", "@daily")
            self.assertIn("django-perfectqueue[schedules]", said)
            put("hourly")
        put("daily", "--cron", "@daily")
        with mock.patch.dict("sys.modules", cronsim=None):
            self.assertIn("@daily", run("pq_schedule", "list"))


class SteerTests(TestCase):
    def test_who_pauses_says_why_and_it_is_in_the_trail(self):
        put()
        out = run("pq_schedule", "pause", "nightly", "--note", "Until the VAT table is right")
        self.assertIn("Until the VAT table is right", out)
        row = Schedule.objects.get()
        self.assertEqual((row.state, row.note), ("paused", "Until the VAT table is right"))
        self.assertIn("@", row.paused_by)
        [listed] = run_json("pq_schedule", "list")
        self.assertEqual((listed["state"], listed["due_at"]), ("paused", None))
        self.assertIn("Until the VAT table is right", listed["why"])
        run("pq_schedule", "unpause", "nightly")
        self.assertEqual(Schedule.objects.get().state, "active")
        self.assertEqual(
            [change.by for change in Change.objects.filter(kind="sched", name="nightly")],
            [row.paused_by] * 3,
        )

    def test_run_submits_its_task_at_once(self):
        put()
        [done] = run_json("pq_schedule", "run", "nightly")
        self.assertEqual(Task.objects.get().key, done["key"])
        self.assertIn("is submitted", run("pq_schedule", "run", "nightly"))

    def test_a_backfill_says_first_what_it_would_do(self):
        put()
        span = ["--since", "2030-01-01T00:00Z", "--until", "2030-01-01T02:30Z"]
        out = run("pq_schedule", "backfill", "nightly", *span, "--dry-run")
        self.assertIn("3 tasks would be submitted", out)
        self.assertFalse(Task.objects.exists())
        [done] = run_json("pq_schedule", "backfill", "nightly", *span, "--yes")
        self.assertEqual(len(done["ticks"]), Task.objects.count())
        self.assertEqual(Task.objects.count(), 3)
        self.assertIn("0 tasks are", run("pq_schedule", "backfill", "nightly", *span, "--yes"))
        self.assertIn(
            "2 tasks are", run("pq_schedule", "backfill", "nightly", "--since", "2h", "--yes")
        )
        said = refused(self, "pq_schedule", "backfill", "nightly", "--since", "1000d", "--yes")
        self.assertIn("more than 1000", said)
        span = ["--since", "1m", "--until", "1h"]
        said = refused(self, "pq_schedule", "backfill", "nightly", *span, "--yes")
        self.assertIn("--until must be after --since", said)

    def test_a_deleted_one_is_gone_and_its_tasks_stay(self):
        put()
        run("pq_schedule", "run", "nightly")
        run("pq_schedule", "delete", "nightly")
        self.assertEqual((Schedule.objects.count(), Task.objects.count()), (0, 1))

    def test_a_name_that_is_none_is_refused_with_the_nearest(self):
        put()
        for verb in ("show", "pause", "unpause", "run", "delete", "change --every 1h"):
            verb, *more = verb.split()
            with self.subTest(verb):
                said = refused(self, "pq_schedule", verb, "nightli", *more)
                self.assertIn("Did you mean 'nightly'", said)


class ShowTests(TestCase):
    def test_the_list_says_when_and_how_the_last_one_ended(self):
        self.assertIn("no schedules", run("pq_schedule", "list"))
        put("a", "--every", "90")
        put("b", "--cron", "0 3 * * *", "--timezone", "Europe/Zurich")
        put("c", "--cron", "0 9 * * *")
        self.assertIn("(UTC)", run("pq_schedule", "show", "c"))
        run("pq_schedule", "delete", "c")
        run("pq_schedule", "run", "a")
        out = run("pq_schedule", "list")
        self.assertEqual(out, run("pq_schedule", "list"))
        for words in ("every 1m30s", "03:00", "(Europe/Zurich)", "waiting", "active"):
            self.assertIn(words, out)
        first, second = run_json("pq_schedule", "list")
        self.assertEqual(
            (first["name"], first["every"], first["last_status"]), ("a", 90, "waiting")
        )
        self.assertEqual((second["name"], second["last_status"]), ("b", None))
        self.assertIn("There are more", run("pq_schedule", "list", "--first", "1"))

    def test_one_is_shown_with_its_next_ticks_and_its_last_tasks(self):
        put("s", "--every", "1h", "--user", "ann")
        run("pq_schedule", "backfill", "s", "--since", "3h", "--yes")
        out = run("pq_schedule", "show", "s")
        for task in Task.objects.all():
            self.assertIn(f"{task.key.rpartition('@')[2]}  waiting", out)
        for words in ("every 1h", "ann", "skip", "active"):
            self.assertIn(words, out)
        [facts] = run_json("pq_schedule", "show", "s")
        self.assertEqual((len(facts["next"]), len(facts["last"])), (5, 3))
        self.assertEqual(facts["last_status"], "waiting")
        self.assertEqual(facts["data"], None)

    def test_the_options_that_all_share_may_stand_before_the_word_or_after_it(self):
        put()
        for arguments in (["--json", "list"], ["list", "--json"]):
            self.assertIn('"name": "nightly"', run("pq_schedule", *arguments))
        self.assertIn("no database", refused(self, "pq_schedule", "list", "--database", "x"))
        self.assertIn("no database", refused(self, "pq_schedule", "--database", "x", "list"))

    def test_what_comes_from_outside_can_not_steer_the_terminal(self):
        Schedules().put("s\x1b[31m", "report", every=60, user="u\x1b[31m")
        Schedules()["s\x1b[31m"].pause("n\x1b[31m")
        self.assertNotIn(
            "\x1b", run("pq_schedule", "list") + run("pq_schedule", "show", "s\x1b[31m")
        )


class CheckTests(TestCase):
    def test_a_broken_and_a_late_one_are_said(self):
        put("good")
        self.assertIn("No schedule is", refused(self, "pq_status", "health"))
        put("bad")
        break_("bad")
        put("late")
        make_late("late")
        said = refused(self, "pq_status", "health")
        self.assertIn("'bad' is broken: There is no time zone 'Europe/Atlantis'", said)
        self.assertIn("'late' is late: it has been due for 1 h", said)
        self.assertNotIn("good", said)
        self.assertNotIn(r"\n", said)
        self.assertIn("It has been due for 1 h", run("pq_schedule", "show", "late"))
        self.assertIn("Europe/Atlantis", run("pq_schedule", "show", "bad"))

    def test_one_that_is_due_just_now_is_not_late(self):
        put()
        make_late("nightly", timedelta(seconds=5))
        self.assertIn("No schedule is", refused(self, "pq_status", "health"))
