"""Tasks of unknown types wait out of their lines, and are found again."""

from datetime import datetime, timezone
from functools import partial

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import PARKED_FROM, State, Ticket
from django_perfectqueue.store.tasks.park import MOST_TYPES, unpark, unpark_some
from django_perfectqueue.worker.helpers.janitor import Scan

from ...factories import acquire, keys, submit


def nothing(type_):
    return False


def everything(type_):
    return True


def park_all():
    """Do as a processor does that knows none of the types; return what it has seen."""
    seen = set()
    while leases := acquire(100, now=None):
        seen |= set(keys(leases))
        store.settle(leases, store.Ending.release(5.0), using="default")
        store.park(leases, nothing, using="default")
    return seen


class FarTests(TestCase):
    """A user's own time may be as far away as the places of parked tickets."""

    FAR = datetime(9500, 1, 1, tzinfo=timezone.utc)

    def test_what_is_scheduled_for_such_a_time_is_no_parked_task(self):
        submit("never", run_at=self.FAR, now=None)
        submit("strange", now=None)
        park_all()
        unpark(everything, using="default")

        self.assertEqual(keys(acquire(10, now=None)), ["strange"])
        ticket = Ticket.objects.get(task__key="never")
        self.assertEqual((ticket.state, ticket.timer_at), (State.SCHEDULED, self.FAR))
        self.assertFalse(ticket.is_parked)

    def test_a_processor_that_unparks_some_leaves_it_where_it_is(self):
        submit("never", run_at=self.FAR, now=None)
        submit("strange", now=None)
        park_all()
        unpark_some(everything, using="default")

        self.assertEqual(keys(acquire(10, now=None)), ["strange"])
        ticket = Ticket.objects.get(task__key="never")
        self.assertEqual((ticket.state, ticket.timer_at), (State.SCHEDULED, self.FAR))


class RoundsTests(TestCase):
    def test_of_very_many_types_all_are_due_again(self):
        types = [f"strange-{number}" for number in range(MOST_TYPES + 20)]
        for type_ in types:
            submit(type_, type=type_, now=None)
        park_all()
        scan, seen = Scan(partial(unpark, everything, using="default"), PARKED_FROM), set()
        for _look in range(3):
            scan()
            seen |= park_all()

        self.assertEqual(seen, set(types))
