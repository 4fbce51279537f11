"""
A client of the storm, which ``benchmarks.chaos.process`` runs.

It uses every verb at random, writes down what it asks and what it is answered, and holds
leases for longer than they last. It ends by SIGTERM, or by whatever the storm does to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import transaction

from django_perfectqueue import store
from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.fairness.limits import remove_limit, set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import Outcome, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import ClaimRequest, new_holder

from ..calls import Ref, Undone, ask, seen, within
from ..process import Acting
from ..terms import Terms
from . import storm

MOST_HELD = 30
RECENT = 40
BACKLOG = 250
FORGETS_OFTEN = 0.06
CHANGED = (("name", storm.LOOSE), ("type", storm.SHAKY), ("user", "ann"))
"""The limits that are set and removed meanwhile."""


class Client(Acting):
    """``held`` are leases, of which some have run out; ``keys`` are what it operates on."""

    def __init__(self, terms: Terms, name: str) -> None:
        super().__init__(terms, name)
        self.queues = {queue: Queue(queue) for queue in storm.QUEUES}
        self.held: list[Any] = []
        self.keys: list[tuple[str, str]] = []
        self.batches: list[tuple[str, str]] = []
        self.count = 0

    # Submits

    def new_task(self) -> dict[str, Any]:
        self.count += 1
        life = f"{self.name}-{self.count}"
        return storm.drawn_task(self.drawn, life, self.terms.alive_time)

    def arguments(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return a task as Queue.submit_many() takes it."""
        return {
            "key": task["key"],
            "type": task["type"],
            "data": {"life": task["life"], "edit": None},
            "user": task["user"] or None,
            "limits": task["limits"],
            "priority": task["priority"],
            "run_at": task["delay"],
            "expires_at": task["expires"],
        }

    def store(self, task: dict[str, Any], **more: Any) -> None:
        self.queues[task["queue"]].submit(**self.arguments(task), **more)

    def submit(self) -> None:
        if seen(Ticket.objects.count, 0) > BACKLOG:
            return
        self.drawn.choice(
            (
                *[self.submit_some] * 4,
                self.submit_in_savepoint,
                self.submit_many,
                self.submit_known_key,
                self.submit_batch,
                self.submit_child,
            )
        )()

    def submitted(
        self, tasks: list[dict[str, Any]], how: str, act: Callable[[], Any], **more: Any
    ) -> None:
        ask("submit", act, how=how, tasks=tasks, **more)
        self.keys += [(task["queue"], task["key"]) for task in tasks]
        del self.keys[:-RECENT]

    def submit_some(self) -> None:
        """Submit a task, or some in a transaction of its own, which it may roll back."""
        how = self.drawn.choice(("", "", "transaction", "rolled back"))
        tasks = [self.new_task() for _ in range(self.drawn.randint(1, 3) if how else 1)]

        def act() -> None:
            with within(how, self.drawn):
                for task in tasks:
                    self.store(task)

        self.submitted(tasks, how, act)

    def submit_in_savepoint(self) -> None:
        kept, dropped = self.new_task(), self.new_task()

        def act() -> None:
            with transaction.atomic():
                self.store(kept)
                try:
                    with transaction.atomic():
                        self.store(dropped)
                        raise Undone
                except Undone:
                    # Where the savepoint is gone with its connection, Django rolls all of it
                    # back at the end, and raises nothing.
                    if transaction.get_rollback():
                        raise

        self.submitted([kept, dropped], "savepoint", act, dropped=[dropped["life"]])

    def submit_many(self) -> None:
        first, *rest = (self.new_task() for _ in range(self.drawn.randint(2, 12)))
        tasks = [first, *(task for task in rest if task["queue"] == first["queue"])]
        queue = self.queues[first["queue"]]
        self.submitted(tasks, "", lambda: queue.submit_many(map(self.arguments, tasks)))

    def submit_known_key(self) -> None:
        """Submit under a key that is taken, or was."""
        if not self.keys:
            return
        queue, key = self.drawn.choice(self.keys)
        task = {**self.new_task(), "queue": queue, "key": key}
        rule = self.drawn.choice(("raise", "ignore", "replace"))
        self.submitted([task], "", lambda: self.store(task, on_conflict=rule), on_conflict=rule)

    def submit_child(self) -> None:
        """Submit a task that waits for others; what is gone is refused."""
        if not self.keys:
            return
        parents = self.drawn.sample(self.keys, min(len(self.keys), self.drawn.randint(1, 3)))
        queue = parents[0][0]
        after = [key for known, key in dict.fromkeys(parents) if known == queue]
        task = {**self.new_task(), "queue": queue, "after": after}
        self.submitted([task], "", lambda: self.store(task, after=after, if_failed="run"))

    def submit_batch(self) -> None:
        """Submit tasks together, one in a batch within, and one that waits for their end."""
        *members, inner, last = (self.new_task() for _ in range(self.drawn.randint(3, 6)))
        queue, name = self.queues[last["queue"]], f"batch-{last['life']}"
        members = [{**one, "queue": queue.name, "batch": name} for one in members]
        inner = {**inner, "queue": queue.name, "batch": name}
        last["after"] = [one["key"] for one in (*members, inner)]

        def act() -> None:
            with queue.batch(name) as batch:
                batch.submit_many(map(self.arguments, members))
                with batch.batch(f"{name}-inner") as within:
                    within.submit(**self.arguments(inner))
                batch.then(**self.arguments(last))

        self.submitted([*members, inner, last], "", act)
        self.batches = [*self.batches, (queue.name, name)][-RECENT:]

    # Takes

    def acquire(self) -> None:
        finished = self.completions(self.some_held()) if self.drawn.random() < 0.3 else []
        queues = self.some_queues()
        refused: list[Any] = []

        def act(terms: dict[str, Any]) -> list[Any]:
            request = ClaimRequest(
                queues=queues,
                limit=self.drawn.choice((1, 1, 2, 5, 20)),
                serial=self.drawn.random() < 0.3,
                **terms,
            )
            taken, some = store.finish_and_acquire(finished, request, worker=self.name)
            refused.extend(some)
            return taken

        self.take(
            "acquire",
            act,
            refused,
            leases=[self.ref(done.lease) for done in finished],
        )
        self.drop([done.lease for done in finished])

    def take_alone(self) -> None:
        [queue, *_others] = self.some_queues()

        def act(terms: dict[str, Any]) -> list[Any]:
            return store.take_alone(ClaimRequest(queues=[queue], limit=3, **terms))

        self.take("take_alone", act, [])

    def take(
        self, verb: str, act: Callable[[dict[str, Any]], Any], refused: list[Any], **given: Any
    ) -> None:
        terms = {
            "alive_time": self.terms.alive_time,
            "holder": new_holder(),
            "using": "default",
        }
        taken: list[Any] = []

        def reported() -> dict[str, Any]:
            taken.extend(act(terms))
            return {
                "taken": [{"ref": self.ref(one), "edit": edit_of(one)} for one in taken],
                "refused": [self.ref(done.lease) for done in refused],
            }

        ask(verb, reported, **given)
        self.held += taken
        self.keys += [(lease.queue, lease.key) for lease in taken]
        del self.keys[:-RECENT]

    def some_queues(self) -> list[str]:
        queues = self.drawn.sample(storm.QUEUES, len(storm.QUEUES))
        return queues[: self.drawn.randint(1, len(queues))]

    # What a holder may do

    def some_held(self) -> list[Any]:
        """Draw leases that it holds, or once held."""
        most = self.drawn.choice((1, 1, 1, 3, 10))
        return self.drawn.sample(self.held, min(most, len(self.held)))

    def drop(self, leases: Sequence[Any]) -> None:
        """Forget leases, but for some that are to be used when they no longer hold."""
        gone = {lease for lease in leases if self.drawn.random() > FORGETS_OFTEN}
        self.held = [lease for lease in self.held if lease not in gone][-MOST_HELD:]

    def ref(self, lease: Any) -> Ref:
        return (lease.task_id, lease.attempt, lease.holder)

    def completions(self, leases: Sequence[Any]) -> list[Any]:
        now = time.monotonic()
        return [
            store.Completion(
                lease=lease,
                result=json.dumps({"attempt": lease.attempt}),
                started=now - self.drawn.uniform(0.0, 0.1),
                ended=now,
            )
            for lease in leases
        ]

    def settle(self, verb: str, leases: Sequence[Any], act: Callable[[], Any], **more: Any) -> None:
        """Call a verb with leases; it returns the refused ones, or those that it cancelled."""
        ask(verb, act, leases=[self.ref(lease) for lease in leases], **more)
        self.drop(leases)

    def finish(self) -> None:
        leases = self.some_held()
        how = self.drawn.choice(("", "", "", "transaction", "rolled back"))

        def act() -> dict[str, Any]:
            with within(how, self.drawn):
                return self.close(leases)

        if leases:
            self.settle("finish", leases, act, how=how)

    def release(self) -> None:
        if not (leases := self.some_held()):
            return

        def act() -> dict[str, Any]:
            wait = self.drawn.choice((0.0, 0.2))
            words = store.settle(leases, store.Ending.release(wait), using="default")
            return {
                "refused": [self.ref(lease) for lease in leases if lease not in words],
                "cancelled": [self.ref(lease) for lease in words if words[lease] == "cancelled"],
            }

        self.settle("release", leases, act)

    def heartbeat(self) -> None:
        if not (leases := self.some_held()):
            return

        def act() -> dict[str, Any]:
            pulses = store.leases.heartbeat(
                leases, alive_time=self.terms.alive_time, using="default"
            )
            lost = [lease for lease, pulse in zip(leases, pulses, strict=True) if not pulse.held]
            return {"refused": list(map(self.ref, lost))}

        ask("heartbeat", act, leases=list(map(self.ref, leases)))

    def with_one(self, verb: str, ending: Any) -> None:
        """Settle one lease; its task may be cancelled instead."""
        terms = {"seconds": self.drawn.uniform(0.0, 0.2), "using": "default", "worker": self.name}
        for lease in self.some_held()[:1]:

            def reported(lease: Any = lease) -> dict[str, Any]:
                words = store.settle([lease], ending, **terms)
                if lease not in words:
                    raise store.leases.refusal(lease, using="default")
                instead = words[lease] == "cancelled" and verb != "cancel"
                return {"cancelled": [self.ref(lease)] if instead else []}

            self.settle(verb, [lease], reported)

    def retry(self) -> None:
        why, wait = store.Failure(error="Error"), self.drawn.uniform(0.0, 1.0)
        self.with_one("retry", store.Ending.retry(wait, why))

    def snooze(self) -> None:
        self.with_one("snooze", store.Ending.snooze(self.drawn.uniform(0.0, 1.0)))

    def fail(self) -> None:
        self.with_one("fail", store.Ending.fail(store.Failure(error="Error")))

    def cancel(self) -> None:
        self.with_one("cancel", store.Ending.cancel())

    def update(self) -> None:
        for lease in self.some_held()[:1]:
            self.count += 1
            edit = f"{self.name}/{self.count}"
            payload = json.dumps({"life": life_of(lease), "edit": edit})
            terms = {"alive_time": self.terms.alive_time, "using": "default"}
            act = partial(store.update_payload, lease, payload, **terms)
            ask("update", act, leases=[self.ref(lease)], edit=edit)

    def forget(self) -> None:
        """Let some leases run out."""
        self.drop(self.some_held())

    # What anyone may do

    def operate(self) -> None:
        if not self.keys:
            return
        queue, key = self.drawn.choice(self.keys)
        task = self.queues[queue][key]
        together = self.drawn.random() < 0.5
        acts: dict[str, Callable[[], Any]] = {
            "cancel_request": lambda: {"cancelled": task.cancel_request(together=together)},
            "force_finish": task.force_finish,
            "retry_ended": task.retry,
            "set_priority": lambda: task.set_priority(self.drawn.randint(-5, 5)),
        }
        verb = self.drawn.choice([*acts])
        ask(verb, acts[verb], queue=queue, key=key)

    def link(self) -> None:
        """Have a task wait for another, or no longer: refused where it is not blocked."""
        if len(self.keys) < 2:
            return
        (queue, key), (other, parent) = self.drawn.sample(self.keys, 2)
        task = self.queues[queue][key]
        if self.drawn.random() < 0.2:
            ask("unlink", task.wait_no_longer_for, queue=queue, key=key)
        elif other == queue:
            act = partial(task.wait_for, [parent], if_failed="run")
            ask("link", act, queue=queue, key=key, other=parent)

    def operate_batch(self) -> None:
        if self.batches:
            queue, name = self.drawn.choice(self.batches)
            what = self.drawn.choice(("retry", "cancel"))
            word = {"retry": "retry", "cancel": "cancel_request"}[what]
            act = lambda: getattr(self.queues[queue].batch_named(name), word)()  # noqa: E731
            ask("batch", act, whom=name, what=what)

    def operate_herd(self) -> None:
        """Retry, edit or cancel all tasks of a user, and leave that off on its way sometimes."""
        what = self.drawn.choice(("retry", "edit", "cancel"))
        operation = Operation(
            verb=what,  # type: ignore[arg-type]
            selection=Selection(user=storm.HERD),
            patch={"bulk": self.count} if what == "edit" else None,
            rate=self.drawn.choice((20.0, 1_000.0)),
            by=self.name,
        )

        def act() -> dict[str, str]:
            return {"value": submit_bulk(operation, queue=storm.BULK, using="default").key}

        found = ask("herd", act, whom=storm.HERD, what=what)
        if found.is_done and self.drawn.random() < 0.5:
            time.sleep(self.drawn.uniform(0.0, 0.5))
            ask("cancel herd", Queue(storm.BULK)[found.reported["value"]].cancel_request)

    def tidy(self) -> None:
        verb = self.drawn.choice(
            ("purge", "purge", "alarms", "alarms", "wake_forgotten_lanes", "sum")
        )
        acts: dict[str, Callable[[], Any]] = {
            "purge": self.purge,
            "alarms": lambda: store.schedules.fire_due_timers(using="default"),
            "wake_forgotten_lanes": lambda: (
                store.records.follow(using="default"),
                store.upkeep.wake_forgotten_lanes(using="default"),
            ),
            "sum": lambda: store.records.roll_up(using="default", keep=None),
        }
        ask(verb, acts[verb])

    def purge(self) -> None:
        kept = {outcome.value: self.drawn.choice((0.0, 2.0, None)) for outcome in Outcome}
        over = store.upkeep.surplus(50, using="default").last if self.drawn.random() < 0.3 else {}
        store.upkeep.purge(
            store.upkeep.purgeable(kept, over=over, using="default"), using="default"
        )
        if self.drawn.random() < 0.3:
            self.queues[storm.SHARED].purge(0, status="failed", user="ann")

    def clear(self) -> None:
        queue = storm.SCRAP
        ask("clear", self.queues[queue].clear, queue=queue)

    def set_rules(self) -> None:
        drawn = self.drawn
        scope, name = drawn.choice(CHANGED)
        acts: dict[str, Callable[[], Any]] = {
            "weight": lambda: set_share(drawn.choice(("ann", "bob")), weight=drawn.choice((1, 4))),
            "cap": lambda: set_share(storm.VARIED, max_running=drawn.choice((1, 2, 5))),
            "set_limit": lambda: set_limit(
                name, scope=scope, max_running=drawn.choice((0, 1, 6, None)), rate=50, period=1
            ),
            "remove_limit": lambda: remove_limit(name, scope=scope),
        }
        verb = drawn.choice(list(acts))
        ask(verb, acts[verb], scope=scope, name=name)

    def halt(self) -> None:
        """Pause a user or a limit, or let it go on."""
        self.pause(self.drawn.choice(storm.PAUSES), self.drawn.random() < 0.5)

    def pause(self, whom: str, paused: bool) -> bool:
        scope, _, name = whom.partition(":")
        acts: dict[str, Callable[[], Any]] = {
            "user": lambda: set_share(name, paused=paused),
            "name": lambda: set_limit(name, paused=paused),
        }
        verb = "pause" if paused else "unpause"
        return ask(verb, acts[scope], whom=whom).is_done

    # All of it

    def verbs(self) -> dict[Callable[[], None], int]:
        return {
            self.submit: 22,
            self.acquire: 22,
            self.take_alone: 3,
            self.finish: 16,
            self.release: 4,
            self.retry: 4,
            self.snooze: 3,
            self.fail: 3,
            self.cancel: 2,
            self.update: 4,
            self.heartbeat: 6,
            self.forget: 2,
            self.operate: 8,
            self.link: 6,
            self.operate_batch: 2,
            self.operate_herd: 1,
            self.tidy: 4,
            self.clear: 1,
            self.set_rules: 1,
            self.halt: 1,
        }

    def drain(self, is_over: Callable[[], bool]) -> None:
        """Lift what holds tasks back, then take and finish whatever can be taken."""
        while not is_over() and not self.lift():
            time.sleep(0.1)
        while not is_over():
            self.acquire()
            while leases := self.held:
                self.held = []
                self.settle("finish", leases, lambda leases=leases: self.close(leases))
            time.sleep(0.05)

    def lift(self) -> bool:
        done = [self.pause(whom, False) for whom in storm.PAUSES]
        for scope, name in CHANGED:
            lift = partial(remove_limit, name, scope=scope)
            done.append(ask("remove_limit", lift, scope=scope, name=name).is_done)
        return all(done)

    def close(self, leases: Sequence[Any]) -> dict[str, Any]:
        refused = store.finish(self.completions(leases), using="default", worker=self.name)
        return {"refused": [self.ref(one.lease) for one in refused]}


def life_of(lease: Any) -> str:
    return str(json.loads(lease.payload)["life"])


def edit_of(lease: Any) -> str | None:
    return json.loads(lease.payload)["edit"]  # type: ignore[no-any-return]
