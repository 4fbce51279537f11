"""The registration of a worker in the database, for other hosts."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.application.dispatch import BUILT_IN
from django_perfectqueue.conf import options
from django_perfectqueue.lib.processes import has_ended, memory_of, pid_space, start_of
from django_perfectqueue.lib.version import __version__
from django_perfectqueue.models import Worker
from django_perfectqueue.models.worker import ProcessorState
from django_perfectqueue.schedules.declared import declared_for
from django_perfectqueue.store.values import new_holder

from ..database.link import Link
from ..plan import Plan
from ..shared.status import ProcessorStatus, TaskStatus, WorkerStatus

logger = logging.getLogger("django_perfectqueue.janitor")

INTERVAL = 10.0
SOON = 2.0
LONG = 1.0
PROBLEM_LASTS = 900.0
DECIDES = ("handler_for", "knows", "look_up")


@dataclass(eq=False)
class WorkerRegistration:
    """
    Renews a worker's row, over its janitor's connection.

    The row has the current tasks of each processor, and its holder, which identifies the
    leases of the processor.
    """

    worker: Worker
    worker_status: WorkerStatus
    born: float = field(default_factory=time.monotonic)
    due_at: float = 0.0
    written: tuple[bool, list[int]] = (False, [])
    drifted_at: float | None = None
    problems: dict[str, tuple[str, float]] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)

    def renew(self, link: Link) -> None:
        """Write the row when it is old, or does not say what is new; the caller repeats it."""
        if time.monotonic() >= self.due_at or self.has_news():
            self.written = self.worker_status.leaving, self.holders()
            self.shown = {begun.task_id for begun in self.begun()}
            self.write(link.using)
            self.read_others(link.using)
            self.worker_status.reach()
            self.due_at = time.monotonic() + INTERVAL

    def has_news(self) -> bool:
        """
        Return whether the worker leaves, a processor was replaced, or a task has run for a
        second that the row does not show; the last is asked every two seconds.
        """
        if self.written != (self.worker_status.leaving, self.holders()):
            return True
        now = time.monotonic()
        return now >= self.due_at - INTERVAL + SOON and any(
            now - begun.since >= LONG and begun.task_id not in self.shown for begun in self.begun()
        )

    def holders(self) -> list[int]:
        """Return those in the row, where a process that is just being forked is not yet."""
        return [status.holder for status in self.worker_status.statuses if status.pid]

    def begun(self) -> Iterator[TaskStatus]:
        """Yield the tasks that run."""
        for status in self.worker_status.statuses:
            yield from status.tasks

    def note_drift(self, at: float) -> None:
        """Record that a counter was corrected; the row is written soon."""
        self.drifted_at, self.due_at = at, 0.0

    def note_problem(self, step: str, text: str) -> bool:
        """Record why a step of the upkeep has failed; return whether that is new."""
        known, _at = self.problems.get(step, ("", 0.0))
        self.problems[step] = text, time.monotonic()
        if known != text:
            self.due_at = 0.0
        return known != text

    def lately(self) -> str:
        """Return what has failed within PROBLEM_LASTS."""
        since = time.monotonic() - PROBLEM_LASTS
        self.problems = {step: told for step, told in self.problems.items() if told[1] > since}
        return " ".join(f"{step}: {text}" for step, (text, _at) in self.problems.items())

    def write(self, using: str) -> None:
        self.worker.states_text = json.dumps(
            states_of(self.worker_status.statuses), separators=(",", ":")
        )
        self.worker.leaving = self.written[0]
        self.worker.problem = self.lately()
        now = time.monotonic()
        drifted = None if self.drifted_at is None else now - self.drifted_at
        store.records.register(self.worker, age=now - self.born, drifted=drifted, using=using)

    def read_others(self, using: str) -> None:
        """
        Read whether a person drains this worker. Have the leases of workers of this host run out
        whose processes have ended, as after a kill of all at once, so that their tasks run again
        now.
        """
        own = self.worker
        rows = Worker.objects.using(using)
        same = {"host": own.host, "pid_space": own.pid_space} if own.pid_space else {"pk": own.pk}
        for worker in rows.filter(**same):
            if worker.pk == own.pk:
                own.draining = worker.draining
            # A supervisor that lives gives back the leases of its own processors.
            elif has_ended(worker.pid, worker.start):
                dead = [state for state in worker.states if has_ended(state["pid"], state["start"])]
                give_back(worker, dead, using=using)


def give_back(worker: Worker, dead: Sequence[ProcessorState], *, using: str) -> None:
    """Give back what these processors of a worker held; delete its entry once all have ended."""
    holders = [state["holder"] for state in dead]
    if count := store.leases.lapse(holders, using=using, alive_time=options().ALIVE_TIME):
        logger.warning("Tasks of a dead worker are given back. worker=%s count=%s", worker, count)
    if len(dead) == len(worker.states):
        store.records.sign_off(worker.id, using=using)


def registration_of(plan: Plan) -> Worker:
    """Return the registration of the worker whose supervisor this process is."""
    return Worker(
        id=new_holder(),
        host=socket.gethostname()[:255],
        pid=os.getpid(),
        start=start_of(os.getpid()),
        pid_space=pid_space(),
        launcher=os.getppid(),
        generation=plan.generation,
        version=__version__,
        release=plan.options.RELEASE or os.environ.get("SENTRY_RELEASE", "")[:100],
        processors=plan.options.PROCESSORS,
        queues_text=json.dumps(plan.queues),
        routes_text=json.dumps(routes_of(plan.dispatch)),
        schedules_text=json.dumps(sorted(declared_for(plan.using))),
    )


def states_of(statuses: Sequence[ProcessorStatus]) -> list[dict[str, object]]:
    """Return the facts of each processor, in the form of ``Worker.states``."""
    now = time.monotonic()
    return [
        {
            "number": number,
            "pid": status.pid,
            "start": start_of(status.pid),
            "holder": status.holder,
            "memory": memory_of(status.pid),
            "counts": {word: count for word, count in status.totals().items() if count},
            "tasks": [
                {"id": begun.task_id, "seconds": round(now - begun.since, 1)}
                for begun in status.tasks
            ],
            **({"kept": True} if status.kept else {}),
        }
        for number, status in enumerate(statuses, 1)
        if status.pid
    ]


def routes_of(dispatch: type[Dispatch]) -> dict[str, object] | None:
    """Return the types and patterns of a dispatch; None if it overrides the look-up."""
    if any(
        getattr(dispatch, name).__func__ is not Dispatch.__dict__[name].__func__ for name in DECIDES
    ):
        return None
    routes = list(dispatch.load())
    return {
        "types": [*BUILT_IN, *(route for route in routes if isinstance(route, str))],
        "patterns": [
            [route.pattern, route.flags] for route in routes if not isinstance(route, str)
        ],
    }
