import io
from unittest import mock

from django.test import TestCase
from django.utils import translation

from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Change, FairShare, QueueShare
from django_perfectqueue.queue import Queue
from tests.factories import submit

from .running import entered, refused, run, run_json


def terms(user="acme", queue=""):
    row = FairShare.objects.get(user=user, queue=queue)
    return row.weight, row.max_running, row.paused


class QueueShareTests(TestCase):
    def test_a_weight_that_is_no_number_is_refused(self):
        for arguments in (("pq_user", "set", "u", "--weight"), ("pq_queue", "weight", "mail")):
            with self.subTest(arguments):
                self.assertIn("must be a number, not 'heavy'", refused(self, *arguments, "heavy"))

    def test_the_weight_of_a_queue_is_set_shown_and_taken_back(self):
        out = run("pq_queue", "weight", "mail", "2")
        self.assertEqual(out, "Queue 'mail', as a whole: weight 2.\n")
        self.assertEqual(QueueShare.objects.get().weight, 2)
        self.assertRegex(run("pq_queue", "show", "mail"), r"weight 2\n")
        self.assertRegex(run("pq_queue", "show", "mail"), r"\S+@\S+ +added: weight 2\n")

        self.assertIn("weight 1.", run("pq_queue", "weight", "mail", "none"))
        self.assertFalse(QueueShare.objects.exists())

    def test_programs_read_it_as_json(self):
        [row] = run_json("pq_queue", "weight", "mail", "2")
        self.assertEqual(row, {"queue": "mail", "weight": 2})
        [row] = run_json("pq_queue", "show", "mail")
        self.assertEqual((row["weight"], row["paused"], len(row["changes"])), (2, False, 1))

    def test_a_weight_that_can_not_be_is_refused(self):
        message = refused(self, "pq_queue", "weight", "mail", "0")
        self.assertIn("must be a number from 0.001", message)


class PauseTests(TestCase):
    def test_queues_are_paused_and_unpaused(self):
        out = run("pq_queue", "pause", "mail", "reports")
        self.assertIn("Queue 'mail' is paused: what runs goes on.\n", out)
        submit("k", queue="sales", now=None)
        out = io.StringIO()
        entered("pq_queue", "pause", "slaes", stdout=out, stderr=out)
        self.assertIn("Queue 'slaes' has no tasks. Did you mean 'sales'?", out.getvalue())
        self.assertTrue(Queue("reports").is_paused())
        self.assertIn("  weight 1, paused\n", run("pq_queue", "show", "mail"))
        [done] = run_json("pq_queue", "unpause", "mail")
        self.assertEqual(done, {"queue": "mail", "paused": False})
        self.assertIn("is not paused any more", run("pq_queue", "unpause", "reports"))
        self.assertIn("was not paused", run("pq_queue", "unpause", "reports"))
        self.assertFalse(Queue("mail").is_paused())
        self.assertRegex(Change.objects.last().by, r"^\S+@\S+$")


class ShareTests(TestCase):
    def test_it_speaks_english_whatever_the_language_is(self):
        with translation.override("de"):
            self.assertEqual(
                run("pq_user", "set", "ann", "--weight", "2"),
                "User 'ann', every queue: weight 2.\n",
            )
            self.assertIn("5 per minute", run("pq_limit", "set", "smtp", "--rate", "5/min"))

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
        out = run("pq_user", "pause", "acme")

        self.assertEqual(out, "User 'acme', every queue: weight 3, at most 5 running, paused.\n")

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
        self.assertIn("There was no share of its own.\n", run("pq_user", "reset", "acme"))

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
