"""The whole store against a model of it in a few lines."""

from datetime import timedelta

import hypothesis.strategies as st
from django.test import TestCase, override_settings
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    NotSupportedError,
    PreemptedError,
)
from django_perfectqueue.models import (
    Account,
    Attempt,
    DeadLetter,
    FairShare,
    Hold,
    Lane,
    Limit,
    Meter,
    Task,
    Ticket,
)
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.arithmetic.fair_order import RULES
from django_perfectqueue.store.limits.meters import forget_limits

from ..examples import examples
from ..factories import LEASE, NOON, acquire, assert_books_balance, fail, finish, purge, retry

KEYS = st.sampled_from([f"k{number}" for number in range(6)])
USERS = st.sampled_from(["", "ann", "bob"])
PICK = st.integers(0, 5)
ENDED = {"finished", "failed", "cancelled"}


class Store(RuleBasedStateMachine):
    """
    Each key's status is followed; leases are kept for ever, so that lapsed ones are used.
    """

    case: TestCase

    def __init__(self):
        super().__init__()
        for model in (
            Ticket,
            Attempt,
            DeadLetter,
            Task,
            Account,
            Lane,
            FairShare,
            Hold,
            Limit,
            Meter,
        ):
            rows = model.objects.all()
            rows._raw_delete(rows.db)
        self.now = NOON
        self.expected = {}
        self.due = {}
        # When those start that were never tried.
        self.starts = {}
        self.current = {}
        self.leases = []
        self.crashes = {}
        self.words = {}
        self.flagged = set()
        self.limits = {}
        self.queue = Queue()
        self.settings = override_settings(PERFECTQUEUE={"RETRY_WAIT": 0})
        self.settings.enable()

    def teardown(self):
        self.settings.disable()

    @rule(policy=st.sampled_from(sorted(RULES)))
    def change_policy(self, policy):
        """Whoever submits and acquires from now on goes by another one, whatever waits."""
        self.settings.disable()
        self.settings = override_settings(PERFECTQUEUE={"RETRY_WAIT": 0, "POLICY": policy})
        self.settings.enable()

    @rule(seconds=st.sampled_from([1, 10, LEASE / 2, LEASE]))
    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule(
        key=KEYS,
        user=USERS,
        delay=st.sampled_from([None, 20]),
        priority=st.integers(-1, 1),
        limits=st.sets(st.sampled_from(["free", "none"])),
    )
    def submit(self, key, user, delay, priority, limits):
        terms = {"run_at": delay, "priority": priority, "now": self.now}
        try:
            self.queue.submit(key, self.type_of(key), user=user, limits=self.names(limits), **terms)
        except AlreadyExistsError:
            assert key in self.expected
        else:
            assert key not in self.expected
            self.expected[key] = "live"
            self.due[key] = self.starts[key] = self.now + timedelta(seconds=delay or 0)
            self.crashes[key] = 0
            self.limits[key] = {f"name:{name}" for name in self.names(limits)}
            self.limits[key].add(f"type:{self.type_of(key)}")

    def names(self, limits):
        return sorted(limits)

    def type_of(self, key):
        return "report"

    @rule(limit=st.integers(1, 4))
    def acquire(self, limit):
        due = {key for key, status in self.expected.items() if self.is_due(key, status)}
        held = acquire(limit, now=self.now)
        self.follow_lapses()
        due = {key for key in due if self.expected[key] == "live"}

        self.check_count(held, limit, due)
        for lease in held:
            assert lease.key in due, lease
            assert lease.crashes == self.crashes[lease.key]
            self.expected[lease.key] = "running"
            self.current[lease.key] = lease
            self.starts.pop(lease.key, None)
            self.due[lease.key] = self.now + timedelta(seconds=LEASE)
            self.leases.append(lease)

    def check_count(self, held, limit, due):
        """No name of a task is that of a limit here."""
        assert len(held) == min(limit, len(due)), (held, due)

    def is_due(self, key, status):
        return status in ("live", "running") and self.due[key] <= self.now

    def follow_lapses(self):
        """An acquire has taken back every lease that had run out."""
        for key, status in self.expected.items():
            if status == "running" and self.due[key] <= self.now:
                self.crashes[key] += 1
                self.current.pop(key)
                if key in self.flagged:
                    self.end(key, "cancelled")
                elif self.crashes[key] >= 5:
                    self.end(key, "failed")
                else:
                    self.expected[key] = "live"

    def end(self, key, status):
        self.expected[key] = status
        self.current.pop(key, None)
        self.flagged.discard(key)

    def lease(self, number):
        lease = self.leases[number % len(self.leases)]
        return lease, self.current.get(lease.key) is lease

    has_leases = precondition(lambda self: self.leases)

    @has_leases
    @rule(number=PICK)
    def finish(self, number):
        lease, is_current = self.lease(number)
        was_finished = self.expected.get(lease.key) == "finished"
        refused = finish(lease, now=self.now)
        assert bool(refused) == (not is_current and not (was_finished and not refused))
        if is_current:
            self.end(lease.key, "finished")

    @has_leases
    @rule(number=PICK, wait=st.sampled_from([0, 30]))
    def retry(self, number, wait):
        lease, is_current = self.lease(number)
        try:
            word = retry(lease, wait=wait, now=self.now)
        except PreemptedError:
            assert not is_current
            return
        if is_current:
            self.let_go(lease.key, word == "retried", wait)
        self.knows(lease, is_current, word)

    @has_leases
    @rule(number=PICK)
    def release(self, number):
        lease, is_current = self.lease(number)
        words = store.settle([lease], store.Ending.release(), using="default", now=self.now)
        if is_current:
            self.let_go(lease.key, words[lease] == "released", 0)
        if lease in words:
            self.knows(lease, is_current, words[lease])

    def knows(self, lease, is_current, word):
        """A lease may end its attempt again in the same way, as after a lost answer."""
        if is_current:
            self.words[lease.fence] = word
        assert self.words.get(lease.fence) == word

    def let_go(self, key, going_on, wait):
        assert going_on == (key not in self.flagged)
        if going_on:
            self.current.pop(key)
            self.expected[key] = "live"
            self.due[key] = self.now + timedelta(seconds=wait)
        else:
            self.end(key, "cancelled")

    @has_leases
    @rule(number=PICK)
    def fail(self, number):
        lease, is_current = self.lease(number)
        try:
            fail(lease, now=self.now)
        except PreemptedError:
            assert not is_current
            return
        if is_current:
            self.end(lease.key, "failed")
        self.knows(lease, is_current, "failed")

    @has_leases
    @rule(number=PICK)
    def heartbeat(self, number):
        lease, is_current = self.lease(number)
        [pulse] = store.leases.heartbeat([lease], alive_time=LEASE, using="default", now=self.now)
        assert pulse.held == is_current
        assert pulse.cancel_requested == (is_current and lease.key in self.flagged)
        if is_current:
            self.due[lease.key] = self.now + timedelta(seconds=LEASE)

    @rule(key=KEYS)
    def cancel_request(self, key):
        if key not in self.expected:
            return
        status = self.expected[key]
        try:
            done = self.queue[key].cancel_request(now=self.now)
        except AlreadyFinishedError:
            assert status in ENDED
        else:
            assert status not in ENDED
            assert done == (status == "live")
            if done:
                self.end(key, "cancelled")
            else:
                self.flagged.add(key)

    @rule(key=KEYS)
    def force_finish(self, key):
        if key not in self.expected:
            return
        try:
            self.queue[key].force_finish(now=self.now)
        except AlreadyFinishedError:
            assert self.expected[key] in ENDED
        else:
            self.end(key, "finished")

    @rule(key=KEYS, priority=st.integers(-1, 1))
    def set_priority(self, key, priority):
        if key not in self.expected:
            return
        try:
            self.queue[key].set_priority(priority)
        except AlreadyFinishedError:
            assert self.expected[key] in ENDED
        else:
            assert self.expected[key] not in ENDED
            assert self.queue[key].metadata().ticket.rank == -priority

    @rule(key=KEYS)
    def retry_ended(self, key):
        status = self.expected.get(key)
        try:
            if status:
                self.queue[key].retry(now=self.now)
        except AlreadyFinishedError:
            assert status == "finished"
        except NotSupportedError:
            assert status in ("live", "running")
        else:
            if status:
                self.expected[key] = "live"
                self.due[key] = self.now
                if status in ENDED:
                    self.due[key] = max(self.now, self.starts.get(key, self.now))
                    self.crashes[key] = 0

    @rule()
    def purge(self):
        purge({"finished": 0.0, "failed": None}, now=self.now)
        kept = set(Task.objects.values_list("key", flat=True))
        for key, status in list(self.expected.items()):
            if key not in kept:
                assert status == "finished"
                del self.expected[key]

    @invariant()
    def statuses_agree(self):
        for key, status in Task.objects.with_status(self.now).values_list("key", "status"):
            expected = self.expected[key]
            if expected == "live":
                assert status in ("waiting", "scheduled", "retrying"), (key, status)
            elif expected == "running":
                assert status == ("stalled" if self.due[key] <= self.now else "running")
            else:
                assert status == expected, (key, status, expected)

    @invariant()
    def nothing_is_left_over(self):
        live = {key for key, status in self.expected.items() if status not in ENDED}
        assert set(Ticket.objects.values_list("task__key", flat=True)) == live
        assert_books_balance(self.case)


class LimitedStore(Store):
    """The same where limits hold tasks back, and come and go."""

    MOST = {"name:one": 1, "name:two": 2}

    def __init__(self):
        super().__init__()
        self.most = dict(self.MOST)
        for key, most in self.most.items():
            scope, _colon, name = key.partition(":")
            Limit.objects.create(scope=scope, name=name, max_running=most)

    def names(self, limits):
        return sorted({"free": "one", "none": "two"}[name] for name in limits)

    def type_of(self, key):
        return "report" if key < "k3" else "mail"

    @rule(most=st.sampled_from([None, 0, 1]))
    def limit_a_type(self, most):
        Limit.objects.filter(scope="type").delete()
        self.most.pop("type:mail", None)
        if most is not None:
            Limit.objects.create(scope="type", name="mail", max_running=most)
            self.most["type:mail"] = most
        forget_limits("default")

    def running_behind(self, held=()):
        """Return how many run behind each limit; a limit counts none that ran before it."""
        counted = Meter.objects.values_list("key", "running")
        return {key: running for key, running in counted if key in self.most}

    def check_count(self, held, limit, due):
        running = self.running_behind()
        for key, most in self.most.items():
            if any(key in self.limits[lease.key] for lease in held):
                assert running.get(key, 0) <= most, (key, running)
        if not held:
            for key in due:
                full = [
                    name
                    for name in self.limits[key]
                    if name in self.most and running.get(name, 0) >= self.most[name]
                ]
                assert full, (key, running, self.most)


class StoreMachineTests(TestCase):
    def test_the_store_does_what_a_model_of_it_does(self):
        self.compare(Store)

    def test_it_does_where_limits_hold_tasks_back(self):
        self.addCleanup(forget_limits, "default")
        self.compare(LimitedStore)

    def compare(self, machine):
        run(
            type("Machine", (machine,), {"case": self}),
            settings=settings(max_examples=examples(40), stateful_step_count=30),
        )
