import math

from django.test import SimpleTestCase
from hypothesis import example, given
from hypothesis import strategies as st

from django_perfectqueue.models import WAIT_BUCKETS
from django_perfectqueue.store.arithmetic.entitlement import (
    Contender,
    bucket_of,
    entitlements,
    percentile,
)

seconds = st.floats(0, 1e6)
contenders = st.builds(
    Contender,
    received=seconds,
    weight=st.floats(0.001, 1e6),
    eager=st.booleans(),
    most=st.one_of(st.just(math.inf), seconds),
)
crowds = st.dictionaries(st.integers(0, 30), contenders, max_size=12)


class EntitlementTests(SimpleTestCase):
    def entitled(self, **contenders):
        return entitlements({name: Contender(*terms) for name, terms in contenders.items()})

    def test_those_who_wait_share_by_weight(self):
        self.assertEqual(
            self.entitled(ann=(50.0, 1.0, True), bob=(50.0, 3.0, True)), {"ann": 25.0, "bob": 75.0}
        )

    def test_who_wants_less_than_its_part_leaves_the_rest_to_the_others(self):
        found = self.entitled(ann=(10.0, 1.0, False), bob=(30.0, 1.0, True), cem=(60.0, 1.0, True))
        self.assertEqual(found, {"ann": 10.0, "bob": 45.0, "cem": 45.0})

    def test_who_got_more_than_its_part_while_others_waited_was_not_entitled_to_it(self):
        found = self.entitled(ann=(90.0, 1.0, False), bob=(10.0, 1.0, True))
        self.assertEqual(found, {"ann": 50.0, "bob": 50.0})

    def test_who_waited_and_got_nothing_was_entitled_to_its_part(self):
        found = self.entitled(ann=(100.0, 1.0, True), bob=(0.0, 1.0, True))
        self.assertEqual(found["bob"], 50.0)

    def test_who_waited_behind_its_cap_is_entitled_to_no_more_than_that(self):
        found = self.entitled(ann=(100.0, 1.0, True), bob=(10.0, 1.0, True, 20.0))
        self.assertEqual(found, {"ann": 90.0, "bob": 20.0})

    def test_nobody_is_entitled_to_nothing(self):
        self.assertEqual(entitlements({}), {})

    @example({n: Contender(22.0 * (n == 2), [2e5, 3e5, 0.001][n], eager=False) for n in range(3)})
    @given(crowds)
    def test_entitlements_add_up_to_what_was_given(self, crowd):
        given_away = math.fsum(one.received for one in crowd.values())
        self.assertTrue(
            math.isclose(
                math.fsum(entitlements(crowd).values()), given_away, rel_tol=1e-9, abs_tol=1e-6
            )
        )

    @given(crowds)
    def test_nobody_is_entitled_to_more_than_it_wanted(self, crowd):
        total = math.fsum(one.received for one in crowd.values())
        for name, entitled in entitlements(crowd).items():
            self.assertGreaterEqual(entitled, 0.0)
            self.assertLessEqual(entitled, crowd[name].want(total))

    @given(crowds)
    def test_who_is_not_content_has_as_much_for_its_weight_as_anyone(self, crowd):
        """
        That is what max-min fair means: nobody could be given more but by taking it from
        one who has less for its weight.
        """
        total = math.fsum(one.received for one in crowd.values())
        found = entitlements(crowd)
        for name, one in crowd.items():
            if found[name] < one.want(total) - 1e-6 * total - 1e-6:
                level = found[name] / one.weight
                for other, entitled in found.items():
                    slack = 1e-6 * (level + total / crowd[other].weight) + 1e-6
                    self.assertLessEqual(entitled / crowd[other].weight, level + slack)


class WaitTests(SimpleTestCase):
    def percentile_of(self, waits, part):
        buckets = [0] * WAIT_BUCKETS
        for wait in waits:
            buckets[bucket_of(wait)] += 1
        return percentile(buckets, part, max(waits, default=0.0))

    def test_buckets_begin_where_the_one_before_ends(self):
        table = [(-5, 0), (0, 0), (0.0019, 0), (2**-9, 1), (0.5, 9), (1, 10), (1.99, 10), (2, 11)]
        table += [(2.0**17 - 1, 26), (2.0**17, 27), (1e12, 27)]
        for wait, bucket in table:
            with self.subTest(wait=wait):
                self.assertEqual(bucket_of(wait), bucket)

    def test_there_is_no_percentile_of_nothing(self):
        self.assertIsNone(self.percentile_of([], 0.5))

    def test_one_that_waits_for_days_is_reported_by_its_lower_bound(self):
        self.assertEqual(self.percentile_of([1e9], 0.95), 2.0**17)

    def test_a_few_that_waited_long_are_seen_in_the_95th_percentile_only(self):
        waits = [0.01] * 90 + [100.0] * 10
        self.assertLess(self.percentile_of(waits, 0.5), 0.02)
        self.assertGreater(self.percentile_of(waits, 0.95), 64.0)

    @given(st.lists(st.floats(-1, 1e6), min_size=1), st.floats(0.01, 1))
    def test_a_percentile_is_never_beyond_the_longest_wait(self, waits, part):
        self.assertLessEqual(self.percentile_of(waits, part), max(waits))

    @given(st.lists(st.floats(0.002, 1e5), min_size=1), st.floats(0.01, 1))
    def test_a_percentile_is_at_most_twice_or_half_of_the_true_one(self, waits, part):
        true = sorted(waits)[max(0, math.ceil(part * len(waits)) - 1)]
        self.assertLessEqual(self.percentile_of(waits, part), true * 2.01)
        self.assertGreaterEqual(self.percentile_of(waits, part), true / 2.01)
