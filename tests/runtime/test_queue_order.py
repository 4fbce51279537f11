from itertools import islice

from django.test import SimpleTestCase

from django_perfectqueue.queue import Queue
from django_perfectqueue.runtime.queue_order import orders

from .workers import WorkerTestCase

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


class WorkerTests(WorkerTestCase):
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
        self.assertEqual(self.ran(), "a" * EACH + "b" * EACH)

    def test_with_round_robin_two_flooded_queues_both_go_on(self):
        self.assertEqual(self.ran("--queue-order", "round_robin"), "ab" * EACH)

    def test_shuffled_leaves_no_queue_out(self):
        order = self.ran(QUEUE_ORDER="shuffled")

        self.assertEqual((order.count("a"), order.count("b")), (EACH, EACH))
