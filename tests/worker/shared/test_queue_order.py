from itertools import islice

from django.test import SimpleTestCase, tag
from hypothesis import given, settings
from hypothesis import strategies as st

from django_perfectqueue.fairness.shares import set_queue_weight
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.shared.queue_order import QueueAccounts, orders

from ...waiting import LONG, wait_until
from ..workers import WorkerTestCase

EACH = 12


class OrdersTests(SimpleTestCase):
    def first(self, order, count, queues=("a", "b", "c")):
        return ["".join(names) for names in islice(orders(order, queues), count)]

    def test_in_order_the_first_is_always_tried_first(self):
        self.assertEqual(self.first("ordered", 3), ["abc"] * 3)

    def test_round_robin_begins_one_further_each_time(self):
        self.assertEqual(self.first("round_robin", 4), ["abc", "bca", "cab", "abc"])

    def test_shuffled_tries_all_of_them_in_any_order(self):
        found = self.first("shuffled", 200)

        self.assertEqual({"".join(sorted(names)) for names in found}, {"abc"})
        self.assertEqual({names[0] for names in found}, set("abc"))

    def test_a_lone_queue_is_always_the_first(self):
        for order in ("ordered", "round_robin", "shuffled"):
            self.assertEqual(self.first(order, 3, ["a"]), ["a"] * 3)


class AccountsTests(SimpleTestCase):
    """Each step: what is due of each queue, how many are taken, who is served, for how long."""

    def run_steps(self, steps, weights=None):
        accounts, now = QueueAccounts("ab"), 0.0
        accounts.weights = weights or {}
        served = ""
        for due, seconds in steps:
            order = accounts.order(now)
            taken = next((queue for queue in order if due.get(queue)), None)
            accounts.took(order, taken or "", 1, now)
            served += taken or "-"
            if taken:
                accounts.begin(taken, now)
                now += seconds.get(taken, 1.0)
                accounts.end(taken, seconds.get(taken, 1.0))
        return served

    def test_who_is_served(self):
        both, a, b, none = {"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {}
        alike, short = {}, {"b": 0.25}
        cases = {
            "alike, in turn": ([(both, alike)] * 4, None, "abab"),
            "time counts, not turns": ([(both, short)] * 10, None, "abbbbabbbb"),
            "twice the weight, twice the time": ([(both, alike)] * 6, {"a": 2.0}, "abaaba"),
            "what is alone is served": ([(a, alike)] * 3, None, "aaa"),
            "who comes back is first, and saves no credit": (
                [(a, alike)] * 5 + [(both, alike)] * 4,
                None,
                "aaaaababa",
            ),
            "who was alone has no debt": (
                [(a, alike)] * 5 + [(b, alike)] + [(both, alike)] * 4,
                None,
                "aaaaababab",
            ),
            "a busy time that has ended is forgotten": (
                [(a, alike)] * 5 + [(none, alike)] + [(b, alike)] + [(both, alike)] * 4,
                None,
                "aaaaa-baaba",
            ),
        }
        for name, (steps, weights, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(self.run_steps(steps, weights), expected)

    def test_what_runs_and_what_is_held_count_already(self):
        accounts = QueueAccounts("ab", places=2)
        accounts.took("ab", "aa", 2, 0.0)
        accounts.begin("a", 0.0, 0)
        accounts.begin("a", 0.0, 1)
        self.assertEqual(accounts.order(1.0), ["b", "a"])
        accounts.end("a", 1.0, 0)
        accounts.end("a", 1.0, 1)
        accounts.took("ba", "bb", 2, 1.0)
        accounts.begin("b", 1.0)
        accounts.end("b", 1.5)
        self.assertEqual(accounts.order(2.5), ["b", "a"])
        self.assertEqual(accounts.order(2.5, held="b"), ["a", "b"])

    def test_what_its_processor_died_of_is_charged_to_the_queue(self):
        accounts = QueueAccounts("ab")
        accounts.took("ab", "a", 1, 0.0)
        accounts.begin("a", 0.0)
        accounts.sign_on(30.0)
        self.assertEqual([one.time for one in accounts.accounts], [30.0, 0.0])
        accounts.sign_on(40.0)
        self.assertEqual([one.time for one in accounts.accounts], [30.0, 0.0])


QUEUES = "abc"
BATCH = 3
LONGEST = 2.0


class Adversary:
    """Queues that come and go as they like, on one processor that serves batches of tasks."""

    def __init__(self, weights):
        self.accounts = QueueAccounts(QUEUES)
        self.accounts.weights = dict(zip(QUEUES, weights, strict=True))
        self.now = 0.0
        self.due = dict.fromkeys(QUEUES, 0)
        self.got = dict.fromkeys(QUEUES, 0.0)
        self.since = {queue: [] for queue in QUEUES}

    def watch(self):
        """Note what all have got so far, for each queue that has a backlog from now on."""
        for queue in QUEUES:
            if self.due[queue] > BATCH:
                self.since[queue].append(dict(self.got))
            else:
                self.since[queue].clear()

    def gains(self):
        """Yield what each other got beside a queue since a moment from which that had a backlog."""
        for queue, moments in self.since.items():
            for before in moments:
                mine = self.got[queue] - before[queue]
                for other in QUEUES:
                    yield other, mine, self.got[other] - before[other]

    def batch(self):
        order, missing, taken = self.accounts.order(self.now), BATCH, []
        for queue in order:
            count = min(missing, self.due[queue])
            self.due[queue] -= count
            taken += [queue] * count
            missing -= count
        self.accounts.took(order, taken, BATCH, self.now)
        return taken

    def serve(self, taken, lengths):
        for queue in taken:
            seconds = lengths[queue]
            self.accounts.begin(queue, self.now)
            self.now += seconds
            self.accounts.end(queue, seconds)
            self.got[queue] += seconds / self.accounts.weights[queue]


weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=3, max_size=3)
phases = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(st.sampled_from([0, 0, 1, BATCH, 10 * BATCH]), min_size=3, max_size=3),
        st.lists(st.floats(0.001, LONGEST), min_size=3, max_size=3),
    ),
    max_size=8,
)


class AdversaryTests(SimpleTestCase):
    @settings(max_examples=200)
    @given(weights, phases)
    def test_nobody_gets_more_than_a_queue_that_has_a_backlog(self, weights, phases):
        """
        While a queue has a backlog no other gets more time for its weight, whatever comes
        and goes, but for the length of a few batches.
        """
        one = Adversary(weights)
        bound = 3 * BATCH * LONGEST / min(weights)
        for steps, coming, lengths in phases:
            for _step in range(steps):
                for queue, count in zip(QUEUES, coming, strict=True):
                    one.due[queue] += count
                one.watch()
                one.serve(one.batch(), dict(zip(QUEUES, lengths, strict=True)))
                for other, mine, theirs in one.gains():
                    self.assertLessEqual(theirs - mine, bound, other)


class WorkerTests(WorkerTestCase):
    """Through a worker of its own."""

    def ran(self, *arguments, **settings):
        """Return the queues of the tasks that a processor ran, in order."""
        for name in ("a", "b"):
            Queue(name).submit_many(
                {"key": f"{name}{number}", "type": "note", "data": {"diary": str(self.diary)}}
                for number in range(EACH)
            )
        self.burst("--queue", "a", "--queue", "b", "--prefetch", "0", *arguments, **settings)
        return "".join(key[0] for key, _pid in self.notes("ran"))

    def test_in_order_the_first_queue_is_served_till_it_is_empty(self):
        self.assertEqual(self.ran("--queue-order", "ordered"), "a" * EACH + "b" * EACH)

    def test_with_round_robin_two_flooded_queues_both_go_on(self):
        self.assertEqual(self.ran("--queue-order", "round_robin"), "ab" * EACH)

    def test_shuffled_leaves_no_queue_out(self):
        order = self.ran(QUEUE_ORDER="shuffled")

        self.assertEqual((order.count("a"), order.count("b")), (EACH, EACH))

    def rows(self):
        """Return of each task its queue, and when it started and ended, in seconds."""
        rows = list(Task.objects.values_list("queue", "started_at", "ended_at"))
        first = min(row[1] for row in rows)
        return [(q, (s - first).total_seconds(), (e - first).total_seconds()) for q, s, e in rows]

    def submit_sleeps(self, queue, count, seconds):
        Queue(queue).submit_many(
            {"key": str(number), "type": "spend", "data": {"seconds": seconds}}
            for number in range(count)
        )

    @tag("thorough")
    def test_mails_are_served_soon_beside_an_import(self):
        self.submit_sleeps("default", 150, 0.02)
        Queue("mail").submit_many({"key": str(number), "type": "report"} for number in range(8))
        worker = self.burst("--queue", "default", "--queue", "mail")

        last = max(start for queue, start, _end in self.rows() if queue == "mail")
        before = sum(queue == "default" and start < last for queue, start, _end in self.rows())
        self.assertLess(before, 75)
        self.assertIn("Queues: default, mail share by weight (1 : 1)", worker.output)

    @tag("thorough")
    def test_twice_the_weight_has_twice_the_time(self):
        set_queue_weight("a", 2)
        for arguments in (
            ("--prefetch", "0"),
            ("--prefetch", "0", "--max-requests", "1"),
            ("--prefetch", "0", "--processor-type", "thread", "--concurrency", "2"),
            ("--prefetch", "0", "--processor-type", "async", "--concurrency", "2"),
        ):
            with self.subTest(arguments=arguments):
                Queue("a").clear()
                Queue("b").clear()
                slow = "--max-requests" in arguments
                self.submit_sleeps("a", 30 if slow else 150, 0.01)
                self.submit_sleeps("b", 10 if slow else 50, 0.03)
                worker = self.burst("--queue", "b", "--queue", "a", *arguments)
                self.assert_share(2 / 3, within=0.1 if slow else 0.04)
                self.assertIn("Queues: b, a share by weight (1 : 2)", worker.output)

    def assert_share(self, share, *, within):
        """Compare what the queue a got of the time, as long as both had tasks."""
        rows = self.rows()
        until = min(max(end for name, _start, end in rows if name == queue) for queue in "ab")
        got = dict.fromkeys("ab", 0.0)
        for queue, start, end in rows:
            got[queue] += max(0.0, min(end, until) - start)
        self.assertAlmostEqual(got["a"] / sum(got.values()), share, delta=within)

    @tag("thorough")
    def test_a_weight_that_is_changed_holds_for_workers_that_run(self):
        set_queue_weight("a", 1000)
        self.submit_sleeps("a", 1000, 0.02)
        self.submit_sleeps("b", 1000, 0.02)
        self.worker("--queue", "a", "--queue", "b", "--prefetch", "0")

        def ended(queue):
            return Task.objects.filter(queue=queue, ended_at__isnull=False).count()

        wait_until(lambda: ended("a") >= 20, within=LONG)
        before = ended("b")
        set_queue_weight("a", 0.001)
        wait_until(lambda: ended("b") >= before + 50, within=LONG)
        self.assertLess(ended("a"), 900)

    def test_it_says_in_which_order_queues_are_served(self):
        self.submit_sleeps("a", 1, 0)
        worker = self.burst("--queue", "a", "--queue", "b", QUEUE_ORDER="ordered")
        self.assertIn("Queues, each served before those behind it: a, b", worker.output)
