"""No write is accepted of a lease that is not the ticket's last."""

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.exceptions import PreemptedError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Account, Attempt, Meter, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.tasks.close import Loss
from tests.factories import (
    NOON,
    acquire,
    after,
    assert_books_balance,
    completion,
    finish,
    finish_and_acquire,
    keys,
    running,
    settle,
    status,
    submit,
)

HOLDER = 7


def forget():
    """Leave the rows as they were before every acquire, as a crash of the server may do."""
    Ticket.objects.update(state=0, attempt=0, holder=None, token=None, timer_at=None)
    Account.objects.update(running=0, has_waiting=True)
    Meter.objects.update(running=0)


def writes(lease):
    """Return each write that a holder may make, but for a finish."""
    terms = {"using": "default", "now": NOON}
    why = store.Failure()
    return {
        "retry": lambda: settle(lease, store.Ending.retry(wait=1, why=why), seconds=0, **terms),
        "snooze": lambda: settle(lease, store.Ending.snooze(1), seconds=0, **terms),
        "fail": lambda: settle(lease, store.Ending.fail(why=why), seconds=0, **terms),
        "cancel": lambda: settle(lease, store.Ending.cancel(), seconds=0, **terms),
        "update": lambda: store.update_payload(lease, "{}", alive_time=9, **terms),
    }


class FenceTests(TestCase):
    def assert_fenced(self, stale, live):
        """Every write of the stale lease is refused, and the live one is as it was."""
        before = Task.objects.values().get(), Ticket.objects.values().get()
        for name, write in writes(stale).items():
            with self.subTest(name), self.assertRaises(PreemptedError):
                write()
        self.assertEqual(
            store.settle([stale], store.Ending.release(), using="default", now=NOON), {}
        )
        self.assertEqual(len(finish(stale, result='"stale"')), 1)
        terms = {"using": "default", "now": after(1), "alive_time": 600}
        pulses = store.leases.heartbeat([stale], **terms)
        self.assertEqual([pulse.held for pulse in pulses], [False])
        self.assertEqual((Task.objects.values().get(), Ticket.objects.values().get()), before)
        self.assertEqual(finish(live, result='"live"'), [])
        self.assertEqual(Task.objects.get().result, "live")
        self.assertFalse(Attempt.objects.exists())
        assert_books_balance(self)

    def test_of_an_acquire_that_the_server_forgot_the_same_holder_has_nothing_left(self):
        """The number of the attempt and the holder are the same the second time."""
        submit(user="ann")
        [stale] = acquire(holder=HOLDER)
        forget()
        [live] = acquire(holder=HOLDER)

        self.assertEqual((stale.attempt, stale.holder), (live.attempt, live.holder))
        self.assert_fenced(stale, live)

    def test_what_is_in_line_again_is_not_taken_back(self):
        """Nobody can say whether it is the task that was acquired."""
        submit(user="ann")
        [stale] = acquire(holder=HOLDER)
        forget()

        self.assertEqual(len(finish(stale)), 1)
        self.assertEqual(keys(acquire(holder=HOLDER)), [stale.key])

    def test_a_task_that_got_the_id_of_a_lost_one_is_not_its_holders(self):
        """A standby that lacks the last commits gives their ids out again."""
        _lost, stale = running("lost", user="ann")
        Queue().clear()
        for number, taken in enumerate((False, True)):
            with self.subTest(taken=taken):
                task = submit(f"new{number}", user="bob")
                Task.objects.update(id=stale.task_id)
                Ticket.objects.update(task_id=stale.task_id)
                if taken:
                    acquire(holder=stale.holder)
                terms = {"using": "default", "alive_time": 60, "now": NOON}
                [pulse] = store.leases.heartbeat([stale], **terms)

                self.assertFalse(pulse.held)
                self.assertEqual(len(finish(stale)), 1)
                self.assertEqual(status(task), "running" if taken else "waiting")
                Queue().clear()

    def test_a_finish_is_not_reported_of_a_task_that_got_its_id(self):
        """The other has finished under the same number, by the same worker."""
        _lost, stale = running("lost")
        Queue().clear()
        submit("new")
        Task.objects.update(id=stale.task_id)
        Ticket.objects.update(task_id=stale.task_id)
        [other] = acquire(holder=stale.holder)
        self.assertEqual(finish(other), [])

        self.assertEqual(len(finish(stale)), 1)

    def test_what_was_taken_anew_under_an_unheard_lease_is_given_back(self):
        """Its holder knows the task, but by a lease of before."""
        submit()
        [stale] = acquire(holder=HOLDER)
        forget()
        acquire(holder=HOLDER)
        terms = {"using": "default", "alive_time": 60, "now": NOON, "loss": Loss()}

        self.assertEqual(store.upkeep.give_back(HOLDER, keep=[stale.fence], **terms), 1)
        self.assertEqual(status(Queue()[stale.key]), "waiting")


class TwiceInABatchTests(TestCase):
    """A processor that was frozen has a task again, and writes both."""

    def leases(self, **options):
        submit("k", **options)
        [old] = acquire(holder=HOLDER)
        [new] = acquire(holder=HOLDER, now=after(61))
        return [completion(old, result='"old"'), completion(new, result='"new"')]

    def assert_the_new_one_counts(self, refused, old):
        self.assertEqual(refused, [old])
        self.assertEqual(Queue()["k"].metadata().result, "new")
        self.assertEqual(Task.objects.get(key="k").attempt, 2)
        self.assertEqual(set(Account.objects.values_list("running", flat=True)), {0})
        assert_books_balance(self)

    def test_the_older_lease_is_refused_wherever_it_stands(self):
        for turned in (False, True):
            for options in ({"user": "ann"}, {"user": "ann", "limits": ["narrow"]}):
                with self.subTest(turned=turned, **options):
                    set_limit("narrow", max_running=1)
                    old, new = self.leases(**options)
                    done = [new, old] if turned else [old, new]
                    terms = {"using": "default", "worker": "tests", "now": after(62)}
                    refused = store.finish(done, **terms)
                    self.assert_the_new_one_counts(refused, old)
                    Queue().clear()

    def test_it_is_with_the_next_acquire_too(self):
        old, new = self.leases(user="ann")
        _leases, refused = finish_and_acquire([new, old], now=after(62), worker="tests")
        self.assert_the_new_one_counts(refused, old)

    def test_it_is_where_both_have_the_same_number(self):
        submit("k", user="ann")
        [first] = acquire(holder=HOLDER)
        forget()
        [second] = acquire(holder=HOLDER)
        old, new = completion(first, result='"old"'), completion(second, result='"new"')

        refused = store.finish([new, old], using="default", worker="tests", now=NOON)

        self.assertEqual(refused, [old])
        self.assertEqual(Queue()["k"].metadata().result, "new")
        assert_books_balance(self)

    def test_others_that_were_taken_with_the_older_lease_are_closed(self):
        """They have its token, and one of them is written twice."""
        for key in ("k", "other"):
            submit(key, user="ann")
        old, other = map(completion, acquire(2, holder=HOLDER))
        store.leases.heartbeat([other.lease], using="default", alive_time=90, now=after(30))
        [lease] = acquire(holder=HOLDER, now=after(61))
        new = completion(lease, result='"new"')

        done = [old, other, new, other]
        refused = store.finish(done, using="default", worker="tests", now=after(62))

        self.assert_the_new_one_counts(refused, old)
        self.assertEqual(status(Queue()["other"]), "finished")

    def test_a_cap_holds_afterwards(self):
        set_share("ann", max_running=1)
        old, new = self.leases(user="ann")
        for number in range(3):
            submit(f"next{number}", user="ann", now=after(61))
        store.finish([old, new], using="default", now=after(62))

        self.assertEqual(len(acquire(9, now=after(62))), 1)
        self.assertEqual(acquire(9, now=after(62)), [])


class TokenTests(TestCase):
    def test_a_batch_has_one_token_and_each_batch_another(self):
        for _number in range(4):
            submit()
        one, other = acquire(2, holder=HOLDER), acquire(2, holder=HOLDER)

        self.assertEqual([len({lease.token for lease in some}) for some in (one, other)], [1, 1])
        self.assertNotEqual(one[0].token, other[0].token)
