"""Who may begin: by what the other processors of the worker run."""

from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue.store.arithmetic.fair_order import lane_of
from django_perfectqueue.worker.buffers import Hand
from django_perfectqueue.worker.shared.status import (
    OVERRUN,
    SLOW,
    Crowd,
    ProcessorStatus,
    account_of,
)
from tests.factories import lease

ANN, BOB, NOW = 2, 4, 1_000.0


class CrowdCase(SimpleTestCase):
    def setUp(self):
        self.statuses = [ProcessorStatus.shared() for _number in range(4)]
        self.crowd = Crowd(self.statuses, 4)

    def run_in(self, number, account, *, ran=0.0, charge=0.01):
        self.statuses[number].begin(number + 1, since=NOW - ran, whose=(account, charge))

    def look(self):
        self.crowd.look(NOW)
        return self.crowd


def of(account, **facts):
    return lease(**{"lane": account, "share": 1, "charge": 0.01, **facts})


class CrowdTests(CrowdCase):
    def test_who_runs_less_than_its_share_has_room(self):
        self.run_in(0, ANN)
        crowd = self.look()

        self.assertFalse(crowd.has_room(of(ANN)))
        self.assertTrue(crowd.has_room(of(ANN, share=2)))
        self.assertTrue(crowd.has_room(of(BOB)))

    def test_a_task_that_was_not_acquired_by_shares_always_has(self):
        self.run_in(0, ANN)

        self.assertTrue(self.look().has_room(of(ANN, share=0)))

    def test_it_is_held_back_once_one_has_run_for_twice_as_long_as_expected(self):
        for ran, held in ((OVERRUN - 0.001, False), (0.1, False), (0.2, True)):
            self.run_in(0, ANN, ran=ran, charge=0.1)
            with self.subTest(ran=ran):
                self.assertEqual(self.look().holds_back(of(ANN)), held)
                self.assertEqual(self.crowd.overrun, {ANN: 1} if held else {})

    def test_it_is_held_back_where_nobody_knows_how_long_its_tasks_take(self):
        self.run_in(0, ANN, charge=0.0)
        self.assertTrue(self.look().holds_back(of(ANN)))
        self.run_in(0, ANN)
        self.assertTrue(self.look().holds_back(of(ANN, is_new=True)))
        self.assertFalse(self.crowd.holds_back(of(ANN)))

    def test_short_tasks_hold_up_nobody(self):
        self.run_in(0, ANN, charge=SLOW / 2)
        self.assertEqual(self.look().running, {})
        self.run_in(0, ANN, charge=SLOW / 2, ran=2 * SLOW)
        self.assertEqual(self.look().running, {ANN: 1})

    def test_what_has_ended_does_not_count(self):
        self.run_in(0, ANN)
        self.statuses[0].end()

        self.assertEqual(self.look().running, {})

    def test_one_processor_never_looks(self):
        alone = Crowd(self.statuses[:1], 1)
        self.assertEqual((alone.processors, alone.look_at), (0, float("inf")))

    def test_all_lanes_of_a_user_are_one(self):
        lane = lane_of("default", "ann", ["name:smtp"])
        held = lease(lane=lane, user="ann")

        self.assertEqual(account_of(held), lane_of("default", "ann"))


class HandTests(CrowdCase):
    def setUp(self):
        super().setUp()
        self.give_way = mock.Mock()
        self.hand = Hand(1, self.crowd, self.give_way)

    def order(self, *leases):
        """Return in which order these begin, none of which ends."""
        self.hand.add(leases)
        return [found.key for found in iter(lambda: self.hand.next(NOW), None)]

    def test_others_come_first_and_each_line_keeps_its_order(self):
        self.run_in(0, ANN)
        begun = self.order(of(ANN, key="a1"), of(ANN, key="a2"), of(BOB, key="b1"))

        self.assertEqual(begun, ["b1", "a1", "a2"])
        self.give_way.assert_not_called()

    def test_what_has_just_begun_counts_before_it_is_seen(self):
        begun = self.order(of(ANN, key="a1"), of(ANN, key="a2"), of(BOB, key="b1"))

        self.assertEqual(begun, ["a1", "b1", "a2"])

    def test_what_may_not_begin_is_given_back(self):
        self.run_in(0, ANN, ran=1.0)
        begun = self.order(of(ANN, key="a1"), of(BOB, key="b1"))

        self.assertEqual(begun, ["b1"])
        self.give_way.assert_called_once_with()
        self.assertEqual([one.key for one in self.hand.batch], ["a1"])

    def test_who_is_alone_uses_all_processors(self):
        for number in range(3):
            self.run_in(number, ANN, ran=1.0)

        self.assertEqual(self.order(of(ANN, key="a1", share=4)), ["a1"])

    def test_short_tasks_go_on_where_one_of_them_was_held_up(self):
        """Where processors share a core, some of the shortest tasks take long."""
        self.run_in(1, ANN, ran=1.0, charge=SLOW / 2)
        keys = [f"a{number}" for number in range(9)]
        for share in (4, 2):
            with self.subTest(share=share):
                some = [of(ANN, key=key, share=share, charge=SLOW / 2) for key in keys]
                self.assertEqual(self.order(*some), keys)
        new = [of(ANN, key=key, share=4, charge=SLOW / 2, is_new=True) for key in keys]
        self.assertEqual(self.order(*new), keys)
        self.give_way.assert_not_called()
