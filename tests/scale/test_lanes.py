"""However many users wait, to find whom to serve next costs the same."""

import re

from django.test import tag

from django_perfectqueue.models import Account
from django_perfectqueue.store.arithmetic.fair_order import FIRST_COST, LEAST_COST

from .case import ScaleTestCase, measured, refresh
from .filling import mostly
from .scenarios import BATCH, Scenario, acquire, acquired, go_on
from .test_growth import MORE, ODD, allowed

FEW, MANY = 200, 100_000
TASKS = 8_000
CHOICE = re.compile(r"ORDER BY .turn.")
COSTS = {"long": 1.0, "unmeasured": FIRST_COST, "very short": LEAST_COST}
SCENARIOS = [
    Scenario("acquire", acquire, BATCH),
    Scenario("acquire one", lambda: acquire(1)),
    Scenario("acquire with finished", go_on, BATCH, acquired),
]


@tag("thorough")
class LaneTests(ScaleTestCase):
    @classmethod
    def fill(cls):
        cls.few = cls.read(FEW)
        cls.many = cls.read(MANY)

    @classmethod
    def read(cls, users):
        """Return what the acts read where so many users have waiting tasks."""
        cls.filling.clear()
        cls.filling.busy = users
        cls.filling.grow(max(TASKS, users), mostly("waiting"))
        meters = {}
        for name, cost in COSTS.items():
            Account.objects.update(cost=cost)
            refresh()
            for scenario in SCENARIOS:
                meters[name, scenario] = measured(scenario)
        return meters

    def test_the_choice_of_lanes_reads_the_same(self):
        for scenario in SCENARIOS:
            most = max(longest_choice(self.few[name, scenario]) for name in COSTS) * MORE + ODD
            for name in COSTS:
                with self.subTest(f"{scenario.name}, {name} tasks"):
                    many = self.many[name, scenario]
                    self.assertLessEqual(longest_choice(many), most, many.worst())

    def test_all_that_is_read_has_the_same_bound(self):
        for (tasks, scenario), many in self.many.items():
            with self.subTest(f"{scenario.name}, {tasks} tasks"):
                self.assertLessEqual(many.rows, allowed(scenario), many.worst())


def longest_choice(meter):
    """Return what the statement reads that chooses lanes, the longest if there are several."""
    return max(reading.rows for reading in meter.readings if CHOICE.search(reading.sql))
