"""However many names have a limit, an acquire reads the same."""

from ..store.limits import test_holds


class LimitTests(test_holds.CostTests):
    many = 3_000
