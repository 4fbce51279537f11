"""Batches in batches, steered at random: once all is put back, nothing stays blocked."""

import random
from contextlib import suppress

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.models import Batch, Dependency, Outcome, State, Task, Ticket
from django_perfectqueue.queue import Queue

from ...examples import examples

STEPS, ROUNDS = 60, 30
MODES = ("run", "cancel")


class Web:
    """A batch with others in it, whose tasks wait for one another; each has its callbacks."""

    def __init__(self, seed):
        self.drawn = random.Random(seed)
        self.queue = Queue()
        self.members, self.batches, self.held = [], [], []
        with self.queue.batch("web") as batch:
            self.fill(batch)

    def fill(self, batch):
        self.batches.append(batch)
        for number in range(self.drawn.randint(1, 4)):
            earlier = [f"{batch.name}-{other}" for other in range(number)]
            after = self.drawn.sample(earlier, self.drawn.randint(0, min(2, number)))
            mode, key = self.drawn.choice(MODES), f"{batch.name}-{number}"
            batch.submit(key, "strand", after=after, if_failed=mode)
            self.members.append(key)
        if batch.name.count(".") < 2 and self.drawn.random() < 0.6:
            with batch.batch(f"{batch.name}.in") as inner:
                self.fill(inner)
        for when in ("done", "finished", "failed"):
            batch.then(f"{batch.name}!{when}", "strand", when=when)

    def step(self):
        acts = {
            self.link: 8,
            self.unlink: 1,
            self.take: 12,
            self.end: 12,
            self.cancel_graph: 1,
            self.cancel_batch: 1,
            self.retry_batch: 3,
            self.retry_all: 1,
            self.cancel_all: 1,
        }
        [act] = self.drawn.choices([*acts], [*acts.values()])
        with suppress(TaskError):
            act()
        store.records.follow(using="default")

    def blocked(self):
        tickets = Ticket.objects.filter(state=State.BLOCKED).order_by("task_id")
        return list(tickets.values_list("task__key", flat=True))

    def link(self):
        if blocked := self.blocked():
            child, parent = self.drawn.choice(blocked), self.drawn.choice(blocked + self.members)
            self.queue[child].wait_for([parent], if_failed=self.drawn.choice(MODES))

    def unlink(self):
        if blocked := self.blocked():
            self.queue[self.drawn.choice(blocked)].wait_no_longer_for()

    def take(self):
        self.held += filter(None, [self.queue.poll()])

    def end(self):
        if self.held:
            task = self.held.pop(self.drawn.randrange(len(self.held)))
            if task.batch and self.drawn.random() < 0.2:
                with suppress(TaskError):
                    task.batch.submit(f"{task.key}+{task.attempt}", "strand")
            (task.fail if self.drawn.random() < 0.4 else task.finish)()

    def cancel_graph(self):
        self.queue[self.drawn.choice(self.members)].cancel_request(together=True)

    def cancel_batch(self):
        self.drawn.choice(self.batches).cancel_request()

    def retry_batch(self):
        self.drawn.choice(self.batches).retry()

    def retry_all(self):
        dead = Task.objects.filter(dead_letter__isnull=False).values_list("pk", flat=True)
        store.retry(list(dead), using="default")

    def cancel_all(self):
        chosen = store.dependencies.choose(
            Ticket.objects.values_list("pk", flat=True), using="default"
        )
        store.cancel_now(chosen.ids, using="default")

    def settle(self):
        """Put back what has died until nothing is left; a callback that is not needed is not."""
        for _round in range(ROUNDS):
            self.batches[0].retry()
            self.put_back_parents()
            store.records.follow(using="default")
            while task := self.queue.poll():
                self.held.append(task)
            while self.held:
                self.held.pop().finish()
            store.records.follow(using="default")
            if not Ticket.objects.exists():
                break

    def put_back_parents(self):
        edges = Dependency.objects.filter(state=Dependency.State.FAILED, parent_id__gt=0)
        for child, parent in edges.filter(child__ticket__state=State.BLOCKED).values_list(
            "child__key", "parent_id"
        ):
            key = Task.objects.get(pk=parent).key
            with suppress(TaskError):
                if key.endswith("!failed"):
                    self.queue[child].wait_no_longer_for([key])
                else:
                    self.queue[key].retry()


class SteeredTests(TestCase):
    def test_nothing_stays_blocked_once_all_is_put_back(self):
        for seed in range(examples(160)):
            with self.subTest(seed=seed):
                web = Web(seed)
                for _step in range(STEPS):
                    web.step()
                web.settle()
                left = Ticket.objects.values_list("task__key", flat=True)
                self.assertEqual(list(left), [])
                dead = Task.objects.exclude(outcome=Outcome.FINISHED).filter(key__in=web.members)
                self.assertEqual(list(dead), [])
                self.assertEqual({batch.progress().open for batch in web.batches}, {0})
            Queue().clear()
            Batch.objects.all().delete()
