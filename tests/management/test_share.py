from unittest import mock

from django.test import TestCase
from django.utils import translation

from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Change, FairShare, QueueShare

from .running import refused, run, run_json


def terms(user="acme", queue=""):
    row = FairShare.objects.get(user=user, queue=queue)
    return row.weight, row.max_running, row.paused


class QueueShareTests(TestCase):
    def test_a_weight_that_is_no_number_is_refused(self):
        self.assertIn(
            "must be a number, not 'heavy'", refused(self, "pq_share", "u", "--weight", "heavy")
        )

    def test_the_weight_of_a_queue_is_set_shown_and_taken_back(self):
        out = run("pq_share", "--of-queue", "mail", "--weight", "2")
        self.assertEqual(out, "Queue 'mail', as a whole: weight 2.\n")
        self.assertEqual(QueueShare.objects.get().weight, 2)
        self.assertIn(out, run("pq_share"))
        self.assertRegex(run("pq_share", "--of-queue", "mail"), r"\S+@\S+ +added: weight 2\n")

        run("pq_share", "--of-queue", "mail", "--reset")
        self.assertIn("weight 1.", run("pq_share", "--of-queue", "mail"))
        self.assertFalse(QueueShare.objects.exists())

    def test_programs_read_it_as_json(self):
        run("pq_share", "--of-queue", "mail", "--weight", "2")
        [row] = run_json("pq_share")
        self.assertEqual(row, {"of_queue": "mail", "weight": 2})
        [row] = run_json("pq_share", "--of-queue", "mail")
        self.assertEqual((row["weight"], len(row["changes"])), (2, 1))

    def test_what_a_queue_has_not_is_refused(self):
        for arguments, expected in {
            ("ann", "--weight", "2"): "a share without a user",
            ("--queue", "a", "--weight", "2"): "a share without a user",
            ("--pause",): "A queue has a weight only",
            ("--weight", "2", "--reset"): "can't be changed as well",
            ("--weight", "0"): "must be a number from 0.001",
        }.items():
            with self.subTest(arguments=arguments):
                self.assertIn(expected, refused(self, "pq_share", "--of-queue", "mail", *arguments))


class ShareTests(TestCase):
    def test_it_speaks_english_whatever_the_language_is(self):
        with translation.override("de"):
            self.assertEqual(
                run("pq_share", "ann", "--weight", "2"), "User 'ann', every queue: weight 2.\n"
            )
            self.assertIn("5 per minute", run("pq_limit", "smtp", "--rate", "5/min"))

    def test_only_what_is_given_is_changed(self):
        run("pq_share", "acme", "--weight", "3", "--max-running", "5")
        self.assertEqual(terms(), (3, 5, False))
        run("pq_share", "acme", "--pause")
        self.assertEqual(terms(), (3, 5, True))
        run("pq_share", "acme", "--unpause", "--no-cap")
        self.assertEqual(terms(), (3, None, False))

    def test_it_says_what_holds_now(self):
        out = run("pq_share", "acme", "--weight", "3", "--max-running", "5", "--pause")

        self.assertEqual(out, "User 'acme', every queue: weight 3, at most 5 running, paused.\n")

    def test_a_queue_has_a_share_of_its_own(self):
        run("pq_share", "acme", "--queue", "reports", "--weight", "3")

        self.assertEqual(terms(queue="reports"), (3, None, False))
        self.assertFalse(FairShare.objects.filter(queue="").exists())

    def test_the_tasks_without_a_user_and_everyone_have_one(self):
        run("pq_share", "--no-user", "--weight", "2")
        run("pq_share", "*", "--weight", "3")

        self.assertEqual((terms(""), terms("*")), ((2, None, False), (3, None, False)))

    def test_a_share_is_shown_with_where_it_comes_from(self):
        self.assertIn("this is the default", run("pq_share", "acme"))
        set_share("*", weight=2)
        self.assertIn(
            "User 'acme', every queue: weight 2.\n"
            "It has no share of its own here: this is that of everyone else in every queue.\n",
            run("pq_share", "acme"),
        )
        set_share("acme", weight=3)
        self.assertNotIn("of its own", run("pq_share", "acme"))

    def test_a_share_is_shown_with_who_has_changed_it(self):
        set_share("acme", weight=3, by="ann")
        run("pq_share", "acme", "--max-running", "0")

        out = run("pq_share", "acme")

        self.assertRegex(out, r"\n20\S+ \S+  \S+@\S+ +max running - → 0\n")
        self.assertRegex(out, r"\n20\S+ \S+  ann +added: weight 3\n")
        [found] = run_json("pq_share", "acme")
        self.assertEqual([change["before"] for change in found["changes"]][1], None)
        self.assertEqual(found["changes"][0]["after"]["max_running"], 0)

    def test_who_ran_it_is_kept(self):
        with mock.patch("getpass.getuser", return_value="ann"):
            run("pq_share", "acme", "--pause")
        with mock.patch("getpass.getuser", side_effect=OSError):
            run("pq_share", "acme", "--unpause")

        by = list(Change.objects.order_by("id").values_list("by", flat=True))
        self.assertRegex(by[0], r"^ann@\S+$")
        self.assertRegex(by[1], r"^\d+@\S+$")

    def test_a_reset_leaves_what_everyone_has(self):
        set_share("*", weight=2)
        set_share("acme", weight=3)

        out = run("pq_share", "acme", "--reset")

        self.assertEqual(out, "User 'acme', every queue: weight 2.\n")
        self.assertEqual([row.user for row in FairShare.objects.all()], ["*"])
        self.assertIn("There was no share of its own.\n", run("pq_share", "acme", "--reset"))

    def test_alone_it_lists_all_shares(self):
        self.assertIn("There are no shares", run("pq_share"))
        set_share(None, weight=4)
        set_share("acme", weight=3, max_running=5)
        set_share("acme", queue="reports", paused=True)

        self.assertEqual(
            run("pq_share"),
            "user  queue    weight  at most\n"
            "-     (every)       4        -\n"
            "acme  (every)       3        5\n"
            "acme  reports       3        5  paused\n",
        )
        self.assertNotIn("(every)", run("pq_share", "--queue", "reports"))

    def test_a_long_list_is_cut_and_says_so(self):
        for number in range(3):
            set_share(f"user{number}", weight=2)

        self.assertIn("There are more", run("pq_share", "--limit", "2"))
        self.assertEqual(len(run_json("pq_share", "--limit", "2")), 2)
        self.assertEqual(len(run_json("pq_share", "--limit", "0")), 3)
        self.assertNotIn("There are more", run("pq_share", "--limit", "3"))

    def test_programs_get_json(self):
        [found] = run_json("pq_share", "acme", "--queue", "reports", "--weight", "3")

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
            (["acme", "--weight", "0"], "The weight must be a number"),
            (["acme", "--weight", "nan"], "not nan"),
            (["acme", "--weight", "-3"], "not -3"),
            (["acme", "--max-running", "-1"], "from 0"),
            (["acme", "--pause", "--unpause"], "not allowed with"),
            (["acme", "--no-user"], "not both"),
            (["acme", "--reset", "--pause"], "--reset takes the share away"),
            (["--weight", "3"], "Say whose share"),
            (["--reset"], "Say whose share"),
            (["x" * 256, "--pause"], "1 to 255 characters"),
        ):
            with self.subTest(arguments):
                self.assertIn(reported, refused(self, "pq_share", *arguments))
        self.assertFalse(FairShare.objects.exists())
