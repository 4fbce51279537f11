from contextlib import suppress
from unittest import mock

from django.core.management import CommandError, call_command
from django.test import TestCase

from django_perfectqueue.management import base
from django_perfectqueue.models import Ticket
from django_perfectqueue.store import Ending, settle
from tests.factories import acquire, finish, retry, running, submit, submit_many

from .running import broken, refused, run, run_json


class ListTests(TestCase):
    def test_it_shows_who_waits_for_what(self):
        submit("later", now=None, user="acme", run_at="1h")
        running("held", now=None)
        broken("broken")

        out = run("pq_task", "list")

        self.assertRegex(out, r"key +type +user +status +created +when +attempts\n")
        self.assertRegex(out, r"later +report +acme +scheduled +\S+ ago +due in (1h|59m\d*s?) +0\n")
        self.assertRegex(out, r"held +report +- +running +\S+ ago +leased for \S+ +1\n")
        self.assertRegex(out, r"broken +report +- +failed +\S+ ago +ended \S+ ago +1\n")
        self.assertTrue(out.endswith("3 entries.\n"), out)

    def test_a_full_disk_is_one_line_and_an_exit_code(self):
        """As in pq_task list > /dev/full, which takes nothing once the buffer is written."""
        submit("a", now=None)
        with (
            suppress(OSError),  # as the file is closed
            open("/dev/full", "w") as full,
            mock.patch("sys.stdout", full),
            mock.patch.object(base, "close_stdout") as silent,
        ):
            with self.assertRaisesMessage(CommandError, "No space left on device"):
                call_command("pq_task", "list", stdout=full)
            silent.assert_called_once_with()

    def test_attempts_are_those_that_count(self):
        """
        A release counts none, and a close from outside neither; the one that runs does.
        """
        _task, lease = running("released", now=None)
        settle([lease], Ending.release(60), using="default")
        running("held", now=None)
        submit("closed", now=None).force_finish()
        _task, lease = running("done", now=None)
        retry(lease, now=None)
        [lease] = acquire(now=None)
        finish(lease, now=None)

        counts = {row["key"]: row["attempts"] for row in run_json("pq_task", "list")}

        self.assertEqual(counts, {"released": 0, "held": 1, "closed": 0, "done": 2})

    def test_the_newest_come_first_or_the_oldest(self):
        submit_many(3, now=None)
        keys = [row["key"] for row in run_json("pq_task", "list")]

        oldest_first = [row["key"] for row in run_json("pq_task", "list", "--oldest-first")]

        self.assertEqual(oldest_first, keys[::-1])
        self.assertEqual(keys[0][-1], "2")

    def test_a_long_queue_is_read_page_by_page(self):
        submit_many(5, now=None)
        every = [row["key"] for row in run_json("pq_task", "list")]

        out = run("pq_task", "list", "--first", "2")

        after = out.split()[-1]
        self.assertIn("2 entries. There are more: --after", out)
        following = [row["key"] for row in run_json("pq_task", "list", "--after", after)]
        self.assertEqual(following, every[2:])

    def test_limit_nought_is_all_of_them(self):
        """
        Read in pages, of which the last is a full one here.
        """
        submit_many(2000, now=None)

        rows = run_json("pq_task", "list", "--first", "0")

        self.assertEqual(len({row["id"] for row in rows}), 2000)

    def test_it_is_narrowed_by_status_user_type_and_key(self):
        running("b", now=None, priority=9)
        submit("a-1", now=None, user="u", type="x")
        submit("a-2", now=None)
        submit("A-3", now=None)
        for options, keys in (
            (["--status", "waiting"], ["A-3", "a-2", "a-1"]),
            (["--user", "u"], ["a-1"]),
            (["--user", ""], ["b", "A-3", "a-2"]),
            (["--type", "x"], ["a-1"]),
            (["--key-prefix", "a-"], ["a-2", "a-1"]),
            (["--key-prefix", "a-", "--user", "u"], ["a-1"]),
        ):
            with self.subTest(options):
                rows = run_json("pq_task", "list", *options)
                self.assertCountEqual([row["key"] for row in rows], keys)

    def test_the_data_is_shown_when_asked_for(self):
        submit("k", now=None, data={"uid": 1})

        self.assertNotIn("uid", run("pq_task", "list"))
        self.assertIn('{"uid": 1}', run("pq_task", "list", "--data"))
        [row] = run_json("pq_task", "list", "--data")
        self.assertEqual(row["data"], {"uid": 1})

    def test_a_key_can_not_steer_the_terminal(self):
        submit("a\x1b[31m\nb", now=None)

        self.assertIn(r"a\x1b[31m\nb ", run("pq_task", "list"))

    def test_json_carries_times_to_the_microsecond(self):
        _task, lease = running("k", now=None)
        held_until = Ticket.objects.get().timer_at

        [row] = run_json("pq_task", "list")

        self.assertEqual(row["lease_until"], held_until.isoformat())
        self.assertEqual(row["created_at"], lease.created_at.isoformat())
        self.assertEqual((row["status"], row["attempts"]), ("running", 1))

    def test_an_empty_queue_says_so_and_names_the_nearest(self):
        self.assertEqual(run("pq_task", "list"), "Queue 'default' has no tasks.\n")
        submit("k", queue="reports")

        out = run("pq_task", "list", "--queue", "report")

        self.assertEqual(out, "Queue 'report' has no tasks. Did you mean 'reports'?\n")
        self.assertIn("There is 'reports'.", run("pq_task", "list", "--queue", "xyz"))

    def test_nothing_that_fits_is_reported_from_an_empty_queue(self):
        submit("k")

        out = run("pq_task", "list", "--status", "failed")

        self.assertEqual(out, "Queue 'default' has no such tasks.\n")

    def test_a_wrong_limit(self):
        self.assertIn("from 0 to", refused(self, "pq_task", "list", "--first", "-1"))

    def test_its_statements_do_not_grow_with_what_is_stored(self):
        submit_many(50, now=None)

        with self.assertNumQueries(1):
            run("pq_task", "list", "--first", "20")
