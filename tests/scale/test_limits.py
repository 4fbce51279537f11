"""However many names have a limit, an acquire reads the same."""

from django.test import tag

from ..store.limits import test_families, test_holds


@tag("thorough")
class LimitTests(test_holds.CostTests):
    many = 3_000


@tag("thorough")
class FamilyTests(test_families.CostTests):
    many = 3_000
