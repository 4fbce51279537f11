import io
from datetime import datetime, timedelta
from unittest import mock

from django.test import TestCase
from django.utils import translation
from django.utils.timezone import localtime, make_aware, now

from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Change, FairShare, Limit, QueueShare
from django_perfectqueue.queue import Queue
from tests.factories import running, submit

from .running import entered, refused, run, run_json


def terms(user="acme", queue=""):
    row = FairShare.objects.get(user=user, queue=queue)
    return row.weight, row.max_running, row.paused


class QueueShareTests(TestCase):
    def test_a_weight_that_is_no_number_is_refused(self):
        for arguments in (
            ("pq_user", "set", "u", "--weight"),
            ("pq_queue", "set", "mail", "--weight"),
        ):
            with self.subTest(arguments):
                self.assertIn("must be a number, not 'heavy'", refused(self, *arguments, "heavy"))

    def test_the_weight_of_a_queue_is_set_shown_and_taken_back(self):
        out = run("pq_queue", "set", "mail", "--weight", "2")
        self.assertEqual(out, "Queue 'mail', as a whole: weight 2.\n")
        self.assertEqual(QueueShare.objects.get().weight, 2)
        self.assertRegex(run("pq_queue", "show", "mail"), r"weight 2\.\n")
        self.assertRegex(run("pq_queue", "show", "mail"), r"\S+@\S+ +added: weight 2\n")

        self.assertIn("weight 1.", run("pq_queue", "reset", "mail"))
        self.assertFalse(QueueShare.objects.exists())

    def test_programs_read_it_as_json(self):
        [row] = run_json("pq_queue", "set", "mail", "--weight", "2")
        self.assertEqual((row["queue"], row["weight"], row["paused"]), ("mail", 2, False))
        [row] = run_json("pq_queue", "show", "mail")
        self.assertEqual((row["weight"], row["paused"], len(row["changes"])), (2, False, 1))

    def test_a_weight_that_can_not_be_is_refused(self):
        message = refused(self, "pq_queue", "set", "mail", "--weight", "0")
        self.assertIn("must be a number from 0.001", message)


class PauseTests(TestCase):
    def test_queues_are_paused_and_unpaused(self):
        out = run("pq_queue", "pause", "mail", "reports")
        self.assertRegex(out, r"Queue 'mail', as a whole: weight 1, paused, by \S+@\S+\.\n")
        submit("k", queue="sales", now=None)
        out = io.StringIO()
        entered("pq_queue", "pause", "slaes", stdout=out, stderr=out)
        self.assertIn("Queue 'slaes' has no tasks. Did you mean 'sales'?", out.getvalue())
        self.assertTrue(Queue("reports").is_paused())
        self.assertRegex(run("pq_queue", "show", "mail"), r"weight 1, paused, by \S+@\S+\.\n")
        [done] = run_json("pq_queue", "unpause", "mail")
        self.assertEqual((done["queue"], done["paused"]), ("mail", False))
        self.assertIn("as a whole: weight 1.\n", run("pq_queue", "unpause", "reports"))
        self.assertFalse(Queue("mail").is_paused())
        self.assertRegex(Change.objects.last().by, r"^\S+@\S+$")


class PauseWithAnEndTests(TestCase):
    """A pause says until when it is, who made it and why, wherever it is shown."""

    pauses = (("pq_queue", "default"), ("pq_user", "acme"), ("pq_limit", "type:report.draw"))

    def test_it_is_shown_until_when_by_whom_and_why(self):
        for command, name in self.pauses:
            with self.subTest(command):
                end = f"{localtime() + timedelta(hours=30):%Y-%m-%dT%H:%M}"
                Limit.objects.all().delete()
                with mock.patch("getpass.getuser", return_value="ann"):
                    run(command, "pause", name, "--unpause-at", end, "--note", "ticket 812")

                terms = f"paused, until {end.replace('T', ' ')}, by ann@\\S+: ticket 812"
                self.assertRegex(run(command, "show", name), terms)
                self.assertRegex(run(command, "list"), terms)
                if command != "pq_queue":  # Its page shows who changed the weight.
                    log = r"ann@\S+ +.*paused until \d+-\d+-\d+ \d+:\d+:00\+"
                    self.assertRegex(run(command, "show", name), log)
                found = run_json(command, "list")[0]
                self.assertRegex(found["paused_by"], r"^ann@")
                self.assertEqual((found["paused"], found["note"]), (True, "ticket 812"))
                self.assertEqual(datetime.fromisoformat(found["paused_until"]), aware(end))
                [shown] = run_json(command, "show", name)
                self.assertEqual(shown["paused_until"], found["paused_until"])

    def test_the_overview_says_it_too(self):
        run("pq_queue", "pause", "default", "--unpause-at", "30h", "--note", "ticket 812")

        self.assertRegex(run("pq_status"), r"paused, until \S+ \S+, by \S+: ticket 812\n")

    def test_another_pause_without_them_has_no_end_and_no_note(self):
        for command, name in self.pauses:
            with self.subTest(command):
                run(command, "pause", name, "--unpause-at", "1h", "--note", "ticket 812")
                run(command, "pause", name)

                [found] = run_json(command, "show", name)
                self.assertEqual((found["paused_until"], found["note"]), (None, None))

    def test_a_user_is_paused_in_every_queue_or_in_one(self):
        set_share("acme", queue="mail", weight=2)
        set_share("acme", queue="reports", weight=3)
        run("pq_user", "pause", "acme", "--queue", "mail")
        self.assertEqual(
            [terms(queue=name)[2] for name in ("mail", "reports")],
            [True, False],
        )
        run("pq_user", "pause", "acme", "--note", "ticket 812")
        rows = FairShare.objects.values_list("paused", "note")
        self.assertEqual(list(rows), [(True, "ticket 812")] * 3)
        run("pq_user", "unpause", "acme")
        self.assertFalse(FairShare.objects.filter(paused=True).exists())

    def test_one_user_goes_on_while_everyone_else_is_paused(self):
        run("pq_user", "pause", "*")
        self.assertEqual(run("pq_user", "unpause", "acme"), "User 'acme', every queue: weight 1.\n")
        self.assertIn(
            "everyone else, every queue: weight 1, paused".capitalize(), run("pq_user", "show", "*")
        )

    def test_who_was_not_paused_gets_no_share(self):
        self.assertIn("weight 1.", run("pq_user", "unpause", "acme"))
        self.assertFalse(FairShare.objects.exists())

    def test_a_time_of_day_is_the_next_one(self):
        clock = f"{localtime() - timedelta(hours=2):%H:%M}"
        run("pq_user", "pause", "acme", "--unpause-at", clock)

        wait = FairShare.objects.get().paused_until - now()
        self.assertAlmostEqual(wait / timedelta(hours=1), 22, delta=0.1)

    def test_an_end_that_is_no_time_to_come_is_refused(self):
        for command, name in self.pauses:
            for text in ("2020-01-01T00:00", "soon", ""):
                with self.subTest(command, text=text):
                    message = refused(self, command, "pause", name, "--unpause-at", text)
                    self.assertIn("must be a time to come, such as 1h, 18:00", message)
            self.assertIn("255", refused(self, command, "pause", name, "--note", "x" * 256))
        self.assertFalse(FairShare.objects.exists() or Limit.objects.exists())


def aware(text):
    return make_aware(datetime.fromisoformat(text))


class ShareTests(TestCase):
    def test_it_speaks_english_whatever_the_language_is(self):
        with translation.override("de"):
            self.assertEqual(
                run("pq_user", "set", "ann", "--weight", "2"),
                "User 'ann', every queue: weight 2.\n",
            )
            self.assertIn("5/min", run("pq_limit", "set", "smtp", "--rate", "5/min"))

    def test_only_what_is_given_is_changed(self):
        run("pq_user", "set", "acme", "--weight", "3", "--max-running", "5")
        self.assertEqual(terms(), (3, 5, False))
        run("pq_user", "pause", "acme")
        self.assertEqual(terms(), (3, 5, True))
        run("pq_user", "unpause", "acme")
        run("pq_user", "set", "acme", "--max-running", "none")
        self.assertEqual(terms(), (3, None, False))

    def test_it_says_what_holds_now(self):
        run("pq_user", "set", "acme", "--weight", "3", "--max-running", "5")
        out = run("pq_user", "set", "acme", "--weight", "2")

        self.assertEqual(out, "User 'acme', every queue: weight 2, at most 5 running.\n")

    def test_a_queue_has_a_share_of_its_own(self):
        run("pq_user", "set", "acme", "--queue", "reports", "--weight", "3")

        self.assertEqual(terms(queue="reports"), (3, None, False))
        self.assertFalse(FairShare.objects.filter(queue="").exists())

    def test_the_tasks_without_a_user_and_everyone_have_one(self):
        run("pq_user", "set", "--no-user", "--weight", "2")
        run("pq_user", "set", "*", "--weight", "3")

        self.assertEqual((terms(""), terms("*")), ((2, None, False), (3, None, False)))

    def test_a_share_is_shown_with_where_it_comes_from(self):
        self.assertIn("this is the default", run("pq_user", "show", "acme"))
        set_share("*", weight=2)
        self.assertIn(
            "User 'acme', every queue: weight 2.\n"
            "It has no share of its own here: this is that of everyone else in every queue.\n",
            run("pq_user", "show", "acme"),
        )
        set_share("acme", weight=3)
        self.assertNotIn("of its own", run("pq_user", "show", "acme"))

    def test_a_share_is_shown_with_who_has_changed_it(self):
        set_share("acme", weight=3, by="ann")
        run("pq_user", "set", "acme", "--max-running", "0")

        out = run("pq_user", "show", "acme")

        self.assertRegex(out, r"\n20\S+ \S+  \S+@\S+ +max running - → 0\n")
        self.assertRegex(out, r"\n20\S+ \S+  ann +added: weight 3\n")
        [found] = run_json("pq_user", "show", "acme")
        self.assertEqual([change["before"] for change in found["changes"]][1], None)
        self.assertEqual(found["changes"][0]["after"]["max_running"], 0)

    def test_who_ran_it_is_kept(self):
        with mock.patch("getpass.getuser", return_value="ann"):
            run("pq_user", "pause", "acme")
        with mock.patch("getpass.getuser", side_effect=OSError):
            run("pq_user", "unpause", "acme")

        by = list(Change.objects.order_by("id").values_list("by", flat=True))
        self.assertRegex(by[0], r"^ann@\S+$")
        self.assertRegex(by[1], r"^\d+@\S+$")

    def test_a_reset_leaves_what_everyone_has(self):
        set_share("*", weight=2)
        set_share("acme", weight=3)

        out = run("pq_user", "reset", "acme")

        self.assertEqual(out, "User 'acme', every queue: weight 2.\n")
        self.assertEqual([row.user for row in FairShare.objects.all()], ["*"])
        self.assertIn("This user had no share of its own.\n", run("pq_user", "reset", "acme"))

    def test_alone_it_lists_all_shares(self):
        self.assertIn("There are no shares", run("pq_user", "list"))
        set_share(None, weight=4)
        set_share("acme", weight=3, max_running=5)
        set_share("acme", queue="reports", paused=True)

        self.assertEqual(
            run("pq_user", "list"),
            "user  queue    weight  at most\n"
            "-     (every)       4        -\n"
            "acme  (every)       3        5\n"
            "acme  reports       3        5  paused\n",
        )
        self.assertNotIn("(every)", run("pq_user", "list", "--queue", "reports"))

    def test_a_long_list_is_cut_and_says_so(self):
        for number in range(3):
            set_share(f"user{number}", weight=2)

        self.assertIn("There are more", run("pq_user", "list", "--first", "2"))
        self.assertEqual(len(run_json("pq_user", "list", "--first", "2")), 2)
        self.assertEqual(len(run_json("pq_user", "list", "--first", "0")), 3)
        self.assertNotIn("There are more", run("pq_user", "list", "--first", "3"))

    def test_programs_get_json(self):
        [found] = run_json("pq_user", "set", "acme", "--queue", "reports", "--weight", "3")

        self.assertEqual(
            found,
            {
                "user": "acme",
                "queue": "reports",
                "weight": 3.0,
                "max_running": None,
                "paused": False,
                "paused_until": None,
                "paused_by": None,
                "note": None,
                "from": {"user": "acme", "queue": "reports"},
            },
        )

    def test_bad_input_is_reported_in_a_sentence(self):
        for arguments, reported in (
            (["set", "acme", "--weight", "0"], "The weight must be a number"),
            (["set", "acme", "--weight", "nan"], "not nan"),
            (["set", "acme", "--weight", "-3"], "not -3"),
            (["set", "acme", "--max-running", "-1"], "from 0"),
            (["set", "acme"], "Say what to change: --weight, --max-running."),
            (["pause", "acme", "--no-user"], "or --no-user"),
            (["set", "--weight", "3"], "Give users"),
            (["reset"], "Give users"),
            (["puase", "acme"], "Did you mean 'pause'?"),
            (["set", "acme", "--wieght", "2"], "Did you mean '--weight'?"),
            (["pause", "x" * 256], "1 to 255 characters"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, "pq_user", *arguments))
        self.assertFalse(FairShare.objects.exists())


class ForgetTests(TestCase):
    def setUp(self):
        submit("k1", user="acme", now=None)
        set_share("acme", weight=2)

    def test_a_user_is_forgotten_once_that_is_confirmed(self):
        found = "tasks 1, shares 1, changes 1"

        out = run("pq_user", "forget", "acme", "--dry-run")
        self.assertEqual(out, f"User 'acme' would be forgotten: {found}.\n")
        said = refused(self, "pq_user", "forget", "acme")
        self.assertIn(f"This forgets the user 'acme': {found}. Add --yes", said)
        self.assertTrue(FairShare.objects.exists())

        out = run("pq_user", "forget", "acme", "--yes")
        self.assertEqual(out, f"User 'acme' is forgotten: {found}.\n")
        self.assertFalse(FairShare.objects.exists() or Change.objects.exists())
        [facts] = run_json("pq_user", "forget", "acme", "--yes")
        self.assertEqual((facts["user"], facts["tasks"], facts["dry_run"]), ("acme", 0, False))
        out = run("pq_user", "forget", "acme", "--yes")
        self.assertEqual(out, "User 'acme' is forgotten: nothing is stored.\n")

    def test_where_a_task_still_runs_it_is_to_be_done_again(self):
        running("k2", user="acme", now=None)

        said = refused(self, "pq_user", "forget", "acme", "--yes")

        self.assertIn("Tasks that still run, and are asked to stop: 1.", said)
        self.assertIn("The user must", refused(self, "pq_user", "forget", "a\x00", "--yes"))
