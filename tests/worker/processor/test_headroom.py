"""Processors that HEADROOM keeps for short tasks."""

import signal
import time

from django_perfectqueue.models import Account, State, Ticket

from ...waiting import wait_until
from ..workers import WorkerTestCase

TERMS = {"SHORT_TASK": 0.5}


class HeadroomTests(WorkerTestCase):
    def measured(self, **spans):
        """Have a user of each name whose task has taken so many seconds."""
        for user, seconds in spans.items():
            self.submit(f"before-{user}", "spend", data={"seconds": seconds}, user=user)
        self.burst()

    def held_by(self, user, count, *arguments, more=2):
        """Return a worker of which so many processors or places run tasks of a user."""
        for number in range(count + more):
            self.submit(f"{user}-{number}", user=user)
        worker = self.worker(*arguments, **TERMS)
        self.wait_for_note("start", count)
        return worker

    def began(self):
        return len(self.notes("start"))

    def end(self, worker):
        self.open_gate()
        wait_until(lambda: not Ticket.objects.exists())
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertFalse(Account.objects.exclude(running=0).exists())

    def assert_kept(self, count, *arguments):
        self.measured(long=1.0, light=0.01)
        worker = self.held_by("long", count, *arguments)
        for number in range(5):
            self.submit(f"light-{number}", "note", user="light")
        self.wait_for_note("ran", 5)
        self.assertEqual(self.began(), count)
        self.assertIn(", 1 of them kept for short tasks", worker.output)
        self.end(worker)

    def test_light_users_are_served_while_long_tasks_hold_the_others(self):
        self.assert_kept(2, "--processors", "3", "--headroom", "1")

    def test_a_part_of_the_processors_is_rounded_up(self):
        self.assert_kept(1, "--processors", "2", "--headroom", "0.1")

    def test_threads_of_a_processor_are_kept_together(self):
        places = ("--processor-type", "thread", "--concurrency", "2")
        self.assert_kept(2, "--processors", "2", "--headroom", "1", *places)

    def test_a_new_user_is_served_and_those_with_long_tasks_are_tried_seldom(self):
        self.measured(long=1.0, light=0.01)
        worker = self.held_by("long", 1, "--processors", "2", "--headroom", "1")
        self.submit("new", "note", user="new")
        self.wait_for_note("ran", 1)
        self.submit("trial", "spend", data={"seconds": 0.6}, user="newer")
        self.wait_for_status("trial", "finished")
        self.submit("next", "note", user="newest")
        time.sleep(0.5)
        self.submit("light-0", "note", user="light")
        self.wait_for_note("ran", 2)
        self.assertEqual([key for key, _pid in self.notes("ran")], ["new", "light-0"])
        self.end(worker)

    def test_a_long_task_yields_to_another_though_a_kept_processor_is_idle(self):
        self.measured(long=1.0, other=1.0)
        self.submit("long", "march", user="long")
        terms = {**TERMS, "YIELD_AFTER": 0.1, "POLL_INTERVAL": 600.0}
        self.worker("--processors", "2", "--headroom", "1", **terms)
        self.wait_for_note("step-20")
        self.submit("other", "note", user="other")
        self.wait_for_note("ran")
        self.open_gate()
        self.wait_for_status("long", "finished")

    def test_a_burst_leaves_nothing_behind(self):
        self.measured(long=1.0, light=0.01)
        for number in range(3):
            self.submit(f"light-{number}", "note", user="light")
            self.submit(f"long-{number}", "spend", data={"seconds": 0.1}, user="long")
        self.burst("--processors", "2", "--headroom", "1", **TERMS)
        self.assertFalse(Ticket.objects.filter(state=State.WAITING).exists())

    def test_where_there_is_one_processor_it_takes_all(self):
        self.measured(long=1.0)
        worker = self.held_by("long", 1, "--headroom", "1", more=0)
        self.end(worker)
