"""Dependencies against a model of them in a few lines."""

from functools import partial

import hypothesis.strategies as st
from django.test import TestCase
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
)
from django_perfectqueue.models import Dependency, DependencyEvent
from django_perfectqueue.queue import Queue

from ...examples import examples

NAMES = [f"k{number}" for number in range(6)]
KEYS = st.sampled_from(NAMES)
PARENTS = st.sets(KEYS, max_size=3)
MODES = st.sampled_from(["wait", "cancel", "run"])
DEAD = {"failed", "cancelled"}
LIVE = {"waiting", "blocked", "running"}


class Graph(RuleBasedStateMachine):
    """Each task's status and each dependency's state, after what has followed."""

    case: TestCase

    def __init__(self):
        super().__init__()
        Queue().clear()
        for model in (Dependency, DependencyEvent):
            model.objects.all().delete()
        self.queue = Queue()
        self.status = {}
        self.edges = {}
        self.held = {}

    def unmet(self, child):
        return {p for (c, p), (_mode, state) in self.edges.items() if c == child and state != "met"}

    def descendants(self, key):
        found, left = set(), [key]
        while left:
            parent = left.pop()
            some = {c for (c, p), (_m, state) in self.edges.items() if p == parent}
            some = {c for c in some - found if parent in self.unmet(c)}
            found |= some
            left += some
        return found

    def closes_a_circle(self, key, parents):
        """One that has finished stays so: who waits for it does not wait."""
        unfinished = {p for p in parents if p == key or self.status[p] != "finished"}
        return bool(unfinished & (self.descendants(key) | {key}))

    def mark(self, edge, state):
        self.edges[edge] = (self.edges[edge][0], state)

    def end(self, key, status):
        self.status[key] = status
        self.held.pop(key, None)
        for (child, parent), (mode, state) in list(self.edges.items()):
            if parent != key or state == "met":
                continue
            if status == "finished" or (mode == "run" and state == "awaited"):
                self.mark((child, parent), "met")
            elif state == "awaited":
                self.mark((child, parent), "failed")
                if mode == "cancel" and self.status[child] == "blocked":
                    self.end(child, "cancelled")
        self.settle()

    def settle(self):
        for key, status in self.status.items():
            if status == "blocked" and not self.unmet(key):
                self.status[key] = "waiting"

    def add(self, key, parents, mode):
        self.edges = {edge: what for edge, what in self.edges.items() if edge[0] != key}
        self.status[key] = "blocked" if parents else "waiting"
        for parent in sorted(parents):
            self.edges[key, parent] = (mode, "awaited")
        for parent in sorted(parents):
            if self.status[parent] not in LIVE:
                self.end(parent, self.status[parent])
        self.settle()

    @rule(key=KEYS, parents=PARENTS, mode=MODES, replace=st.booleans())
    def submit(self, key, parents, mode, replace):
        there = self.status.get(key)
        error = None
        if parents - self.status.keys():
            error = NotFoundError
        elif there and not replace:
            error = AlreadyExistsError
        elif there == "running":
            error = NotSupportedError
        elif there and self.closes_a_circle(key, parents):
            error = (InvalidTaskError, NotFoundError)
        if key in parents and not there:
            error = (InvalidTaskError, NotFoundError)
        conflict = "replace" if replace else "raise"
        submit = partial(self.queue.submit, key, "report", if_failed=mode, on_conflict=conflict)
        if error:
            with self.case.assertRaises(error):
                submit(after=sorted(parents))
            return
        submit(after=sorted(parents))
        if there:
            for (child, parent), (_mode, state) in list(self.edges.items()):
                if parent == key and state != "met":
                    self.mark((child, parent), "awaited")
        self.add(key, parents, mode)

    @rule()
    def take(self):
        task = self.queue.poll()
        waiting = {key for key, status in self.status.items() if status == "waiting"}
        if task is None:
            assert not waiting, f"Not taken: {waiting}"
            return
        assert task.key in waiting, task.key
        self.held[task.key], self.status[task.key] = task, "running"

    @rule(pick=st.integers(0, 5), fails=st.booleans())
    def end_one(self, pick, fails):
        if not self.held:
            return
        key = sorted(self.held)[pick % len(self.held)]
        task = self.held[key]
        (task.fail if fails else task.finish)()
        self.end(key, "failed" if fails else "finished")

    @rule(key=KEYS)
    def force(self, key):
        try:
            self.queue[key].force_finish()
        except (NotFoundError, AlreadyFinishedError):
            assert self.status.get(key) not in LIVE
        else:
            self.end(key, "finished")

    @rule(key=KEYS)
    def cancel(self, key):
        if self.status.get(key) in ("waiting", "blocked"):
            store.cancel_each([self.queue[key].id], using="default")
            self.end(key, "cancelled")

    @rule(key=KEYS)
    def put_back(self, key):
        if self.status.get(key) not in DEAD:
            return
        self.queue[key].retry()
        self.status[key] = "blocked"
        for (child, parent), (_mode, state) in list(self.edges.items()):
            if parent == key and state == "failed":
                self.mark((child, parent), "awaited")
        self.settle()

    @rule(key=KEYS, parents=PARENTS, mode=MODES)
    def wait_for_more(self, key, parents, mode):
        if self.status.get(key) != "blocked" or parents - self.status.keys():
            return
        parents = {parent for parent in parents if (key, parent) not in self.edges}
        if self.closes_a_circle(key, parents):
            with self.case.assertRaises(InvalidTaskError):
                self.queue[key].wait_for(parents, if_failed=mode)
            return
        self.queue[key].wait_for(parents, if_failed=mode)
        for parent in parents:
            self.edges[key, parent] = (mode, "awaited")
        for parent in parents:
            if self.status[parent] not in LIVE:
                self.end(parent, self.status[parent])

    @rule(key=KEYS, parents=PARENTS)
    def wait_for_less(self, key, parents):
        if self.status.get(key) != "blocked":
            return
        parents = {parent for parent in parents if (key, parent) in self.edges}
        self.queue[key].wait_no_longer_for(parents)
        for parent in parents:
            self.edges.pop((key, parent), None)
        self.settle()

    @invariant()
    def is_as_expected(self):
        store.records.follow(using="default")
        found = {task.key: task.status for task in self.queue.list()}
        assert found == self.status, f"{found} instead of {self.status}"
        assert not DependencyEvent.objects.exists()


class GraphTests(TestCase):
    def test_tasks_wait_for_one_another_as_in_the_model(self):
        machine = type("Machine", (Graph,), {"case": self})
        run(
            machine,
            settings=settings(max_examples=examples(60), stateful_step_count=40),
        )
