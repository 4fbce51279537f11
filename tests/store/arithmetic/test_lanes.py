from collections import Counter
from dataclasses import replace
from itertools import groupby

import hypothesis.strategies as st
from django.test import SimpleTestCase
from hypothesis import given, settings

from django_perfectqueue.store.arithmetic.fair_order import (
    ANY,
    FIRST_COST,
    UserLanes,
    counted,
    lane_id,
    lanes_read,
    next_picks,
)

COSTS = st.sampled_from([1e-4, 0.01, 9.0])
SPARE = st.sampled_from([0, 1, 3, ANY])


def lane(number, *, virtual_time=0.0, cost=1.0, weight=1.0, room=None):
    return UserLanes(id=number, virtual_time=virtual_time, cost=cost, weight=weight, room=room)


def order(lanes, count, holder=1):
    """Return the lane of each task, without those behind the count."""
    picks = next_picks(lanes, count, holder=holder)
    return [pick.lane for pick in picks for _ in range(pick.count)][:count]


class NextPicksTests(SimpleTestCase):
    def test_equals_take_turns(self):
        self.assertEqual(order([lane(1), lane(2)], 4), [1, 2, 1, 2])

    def test_a_weight_of_three_gets_three_turns_of_four(self):
        picks = order([lane(1, weight=3.0), lane(2)], 40)

        self.assertEqual((picks.count(1), picks.count(2)), (30, 10))

    def test_time_is_shared_and_not_turns(self):
        picks = order([lane(1, cost=20.0), lane(2)], 42)

        self.assertEqual((picks.count(1), picks.count(2)), (2, 40))

    def test_very_short_tasks_are_served_several_at_a_time(self):
        """Each lane that a batch touches is one account to write."""
        lanes = [lane(number, cost=0.0001) for number in range(50)]
        served = [lane for lane, _tasks in groupby(order(lanes, 100))]
        self.assertEqual((len(served), len(set(served))), (5, 5))

    def test_two_that_look_at_once_choose_different_lanes(self):
        """Else each reads past the tickets that the other has locked, and waits for its lanes."""
        lanes = [lane(number, cost=0.0001) for number in range(200)]
        one, other = (set(order(lanes, 200, holder)) for holder in (1, 2))
        self.assertLessEqual(len(one & other), 3)

    def test_they_do_where_the_lanes_differ_by_less_than_a_quantum(self):
        lanes = [lane(n, cost=0.0001, virtual_time=n * 1e-6) for n in range(200)]
        one, other = (set(order(lanes, 200, holder)) for holder in (1, 2))
        self.assertLessEqual(len(one & other), 3)

    def test_a_quantum_of_virtual_time_is_not_overlooked(self):
        late = [lane(number, cost=0.0001, virtual_time=0.1) for number in range(20)]
        early = [lane(number, cost=0.0001, virtual_time=0.09) for number in range(20, 40)]
        self.assertLessEqual(set(order(late + early, 200)), set(range(20, 40)))

    def test_behind_those_asked_for_come_lanes_that_had_no_turn(self):
        lanes = [lane(number, cost=0.0001) for number in range(50)]
        capped = lane(50, cost=0.0001, virtual_time=1.0, room=3)
        picks = next_picks([*lanes, capped], 100, holder=1)

        self.assertEqual(sum(pick.count for pick in picks[:5]), 100)
        self.assertEqual(len({pick.lane for pick in picks}), 51)
        self.assertEqual((picks[-1].lane, picks[-1].count), (50, 3))

    def test_what_is_beyond_its_share_comes_behind_all_others(self):
        """Nobody knows how long these tasks take; those of others are to run first."""
        first = replace(lane(1), spare=1)
        self.assertEqual(order([first, lane(2, virtual_time=50.0)], 3), [1, 2, 2])
        self.assertEqual(order([replace(first, spare=0), lane(2, virtual_time=50.0)], 2), [2, 2])

    def test_where_no_others_wait_it_is_served(self):
        self.assertEqual(order([replace(lane(1), spare=1)], 3), [1, 1, 1])
        capped = lane(2, virtual_time=50.0, room=1)
        self.assertEqual(order([replace(lane(1), spare=0), replace(capped, spare=0)], 2), [1, 1])

    def test_very_short_ones_are_no_more_than_that_in_a_row(self):
        first = replace(lane(1, cost=0.0001), spare=3)
        picks = next_picks([first, lane(2)], 10, holder=1)

        self.assertEqual([(pick.lane, pick.count) for pick in picks[:2]], [(1, 3), (2, 1)])

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(
        st.lists(st.tuples(st.floats(0, 9), st.sampled_from([1e-4, 0.01, 9.0]), SPARE), min_size=1),
        st.integers(1, 40),
    )
    def test_no_more_than_is_spare_comes_before_others(self, given, count):
        lanes = [
            replace(lane(number, virtual_time=time, cost=cost), spare=spare)
            for number, (time, cost, spare) in enumerate(given)
        ]
        served = order(lanes, count)
        self.assertEqual(len(served), count)
        spare = sum(one.spare for one in lanes)
        first = Counter(served[:spare])
        for one in lanes:
            self.assertLessEqual(first[one.id], one.spare)

    def test_who_has_been_charged_less_goes_first(self):
        picks = order([lane(1, virtual_time=5.0), lane(2)], 5)

        self.assertEqual(picks, [2, 2, 2, 2, 2])

    def test_who_was_never_measured_goes_soon_but_not_with_all(self):
        """A newcomer among long tasks would else wait for a round, or take the whole batch."""
        lanes = [lane(1, cost=1.0), lane(2, cost=-FIRST_COST), lane(3, cost=2.0)]

        picks = next_picks(lanes, 10, holder=1, usual=1.0)

        self.assertEqual(picks[0].lane, 2)
        self.assertEqual(counted(picks), {1: 4, 2: 4, 3: 2})
        self.assertEqual({pick.cost for pick in picks if pick.lane == 2}, {1.0})

    def test_those_of_whom_none_was_measured_share_by_weight(self):
        lanes = [lane(1, cost=-FIRST_COST, weight=3.0), lane(2, cost=FIRST_COST)]

        self.assertEqual(dict(Counter(order(lanes, 40))), {1: 30, 2: 10})

    def test_a_cap_holds_inside_a_batch(self):
        """A batch that overshot would run more than the user may, however fair its order."""
        picks = next_picks([lane(1, room=2), lane(2, room=0), lane(3, weight=0.1)], 10, holder=1)

        self.assertEqual(counted(picks), {1: 2, 3: 8})

    def test_the_ancestors_caps_as_weights_give_the_ancestors_order(self):
        """Caps of 10, 5 and 1 give 5, 3 and 0 of eight slots, and all of sixteen."""
        users = [lane(n, weight=float(cap), room=cap) for n, cap in ((1, 10), (2, 5), (3, 1))]

        eight, sixteen = Counter(order(users, 8)), Counter(order(users, 20))

        self.assertEqual((eight[1], eight[2], eight[3]), (5, 3, 0))
        self.assertEqual((sixteen[1], sixteen[2], sixteen[3]), (10, 5, 1))

    def test_lanes_without_any_room_give_nothing(self):
        self.assertEqual(order([lane(1, room=0)], 3), [])

    def test_a_cost_of_nothing_does_not_give_all_turns(self):
        picks = order([lane(1, cost=0.0), lane(2, cost=0.0)], 80)

        self.assertEqual((picks.count(1), picks.count(2)), (40, 40))


class LanesReadTests(SimpleTestCase):
    def test_one_for_each_task_unless_they_are_very_short(self):
        self.assertEqual(lanes_read(40, cost=0.0, before=1), 40)
        self.assertEqual(lanes_read(40, cost=0.01, before=1), 40)

    def test_several_times_what_a_batch_of_very_short_tasks_needs(self):
        self.assertEqual(lanes_read(200, cost=0.0001, before=1), 50)

    def test_as_many_more_as_the_lanes_had_less(self):
        self.assertEqual(lanes_read(200, cost=0.0001, before=30), 150)
        self.assertEqual(lanes_read(200, cost=0.0001, before=200), 200)


class LaneIdTests(SimpleTestCase):
    def test_queue_and_user_are_distinguished(self):
        self.assertNotEqual(lane_id("a", "bc"), lane_id("ab", "c"))

    def test_it_fits_a_signed_column(self):
        for number in range(1000):
            self.assertLess(abs(lane_id("queue", str(number))), 2**63)
