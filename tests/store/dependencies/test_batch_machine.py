"""The counts and callbacks of batches against a model of them in a few lines."""

import hypothesis.strategies as st
from django.test import TestCase
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run

from django_perfectqueue import store
from django_perfectqueue.exceptions import BatchEndedError
from django_perfectqueue.models import Batch, BatchDelta
from django_perfectqueue.queue import Queue

from ...examples import examples

BATCHES = st.sampled_from(["outer", "inner", "other"])
PICK = st.integers(0, 30)
DEAD = {"failed", "cancelled"}


class Batches(RuleBasedStateMachine):
    """``inner`` is in ``outer``; each has its callbacks from the start."""

    case: TestCase

    def __init__(self):
        super().__init__()
        Queue().clear()
        for model in (Batch, BatchDelta):
            model.objects.all().delete()
        self.status, self.batch, self.number, self.held = {}, {}, 0, {}
        self.ended, self.stopped = set(), set()
        self.callbacks = {}
        self.made = {}
        with Queue().batch("outer") as outer:
            self.begin("outer", outer)
            with outer.batch("inner") as inner:
                self.begin("inner", inner)
        with Queue().batch("other") as other:
            self.begin("other", other)
        self.settle()

    def begin(self, name, batch):
        self.made[name] = batch
        self.add(name)
        for when in ("done", "finished", "failed"):
            batch.then(f"{name}-{when}", "callback", when=when, priority=-1)
            self.callbacks[name, when] = "blocked"

    def add(self, name):
        self.number += 1
        key = f"k{self.number}"
        self.made[name].submit(key, "report")
        self.status[key], self.batch[key] = "waiting", name

    def counts(self, name):
        words = [self.status[key] for key, own in self.batch.items() if own == name]
        finished, dead = words.count("finished"), sum(word in DEAD for word in words)
        total = len(words)
        if name == "outer":
            total += 1
            inner = self.counts("inner")
            if "inner" in self.ended and inner[0] == inner[1] + inner[2]:
                finished, dead = finished + (not inner[2]), dead + bool(inner[2])
        return total, finished, dead

    def settle(self):
        for name in ("inner", "outer", "other"):
            total, finished, dead = self.counts(name)
            if total > finished + dead:
                self.ended.discard(name)
                continue
            self.ended.add(name)
            fates = {
                "done": "waiting",
                "finished": "blocked" if dead else "waiting",
                "failed": "waiting" if dead else "cancelled",
            }
            for when, fate in fates.items():
                if self.callbacks[name, when] == "blocked":
                    self.callbacks[name, when] = fate

    @rule(name=BATCHES)
    def submit(self, name):
        if name in self.ended | self.stopped:
            with self.case.assertRaises(BatchEndedError):
                self.made[name].submit("refused", "report")
        else:
            self.add(name)

    @rule()
    def take(self):
        task = Queue().poll()
        if task and task.type == "callback":
            name, when = task.key.split("-")
            assert self.callbacks[name, when] == "waiting", task.key
            assert task.closes.name == name
            task.finish()
            self.callbacks[name, when] = "finished"
        elif task:
            assert task.batch.name == self.batch[task.key]
            self.held[task.key], self.status[task.key] = task, "running"
        else:
            assert "waiting" not in {*self.status.values(), *self.callbacks.values()}

    @rule(pick=PICK, fails=st.booleans())
    def end(self, pick, fails):
        if self.held:
            key = sorted(self.held)[pick % len(self.held)]
            task = self.held.pop(key)
            (task.fail if fails else task.finish)()
            self.status[key] = "failed" if fails else "finished"
            self.settle()

    @rule(name=BATCHES)
    def retry(self, name):
        names = {name, "inner"} if name == "outer" else {name}
        dead = [k for k, own in self.batch.items() if own in names and self.status[k] in DEAD]
        assert self.made[name].retry() == len(dead)
        self.stopped -= names
        self.status.update(dict.fromkeys(dead, "waiting"))
        self.settle()

    @rule(pick=PICK)
    def retry_one(self, pick):
        if dead := sorted(key for key, word in self.status.items() if word in DEAD):
            key = dead[pick % len(dead)]
            Queue()[key].retry()
            self.status[key] = "waiting"
            self.settle()

    @rule(pick=PICK)
    def replace(self, pick):
        free = sorted(key for key, word in self.status.items() if word != "running")
        if free:
            key = free[pick % len(free)]
            Queue().submit(key, "report", on_conflict="replace")
            self.status[key] = "waiting"
            self.settle()

    @rule(pick=PICK)
    def cancel(self, pick):
        waiting = sorted(key for key, word in self.status.items() if word == "waiting")
        if waiting:
            key = waiting[pick % len(waiting)]
            assert Queue()[key].cancel_request()
            self.status[key] = "cancelled"
            self.settle()

    @rule(name=BATCHES, chance=st.integers(0, 5))
    def cancel_all(self, name, chance):
        if chance or self.held:
            return
        names = {name, "inner"} if name == "outer" else {name}
        self.made[name].cancel_request()
        self.stopped |= names
        for key, own in self.batch.items():
            if own in names and self.status[key] == "waiting":
                self.status[key] = "cancelled"
        self.settle()

    @invariant()
    def is_as_expected(self):
        while store.records.follow(using="default"):
            pass  # The end of a batch is counted in the one around it by the next sweep.
        for name, batch in self.made.items():
            found = batch.progress()
            assert (found.total, found.finished, found.dead) == self.counts(name), name
            assert found.ended == (name in self.ended), name
        expected = {f"{name}-{when}": word for (name, when), word in self.callbacks.items()}
        found = {task.key: task.status for task in Queue().list().filter(type="callback")}
        assert found == expected, f"{found} instead of {expected}"
        assert not BatchDelta.objects.exists()


class BatchTests(TestCase):
    def test_batches_are_counted_as_in_the_model(self):
        machine = type("Machine", (Batches,), {"case": self})
        run(
            machine,
            settings=settings(max_examples=examples(40), stateful_step_count=40),
        )
