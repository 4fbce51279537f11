"""The child processes of a supervisor: forked, watched, stopped and replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from django_perfectqueue.lib.processes import reap_orphans

from ..database.link import prepare_for_fork
from ..helpers.base import HelperProcess
from ..helpers.reaper import Leftovers, Reaper
from ..plan import Plan
from ..process.child import Child, fork, next_fork, set_title
from ..process.signals import Wakeup
from ..report import Reporter
from ..shared.status import Wakeups

logger = logging.getLogger("django_perfectqueue.supervisor")

HELPER_STOP_LIMIT = 20.0
REAPER = "reaper"

# What a child does: it gets the write end of its heartbeats, and returns its exit code.
Body = Callable[[int], int]


class Place:
    """
    The processes of one role, of which one after another is forked.

    ``next_at`` is when the next one may be forked, by the monotonic clock: the pause grows
    while they die young. A ``lasting`` place is kept filled
    until the last processor has ended; a ``vacant`` one is never filled again. ``stop_limit``
    is how many seconds after a stop its process is killed, or None.
    """

    def __init__(self, children: Children, name: str, body: Body, *, lasting: bool = False) -> None:
        self.children = children
        self.name = name
        self.body = body
        self.lasting = lasting
        self.vacant = False
        self.stop_limit: float | None = HELPER_STOP_LIMIT
        self.deaths = 0
        self.next_at = 0.0
        self.child: Child | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a process is missing, now or until its restart."""
        return self.child is None and not self.vacant

    def title(self, now: float) -> str:
        """Return the line above its stack dump."""
        return f"{self.name.capitalize()}, pid {self.child.pid if self.child else 0}:"

    def fill(self, now: float) -> None:
        """Fork its process if that is missing and its restart is due."""
        if not self.is_empty or now < self.next_at:
            return
        try:
            self.child = self.start()
        except OSError as error:
            logger.error("The %s can't be started. %s", self.name, error)
            self.next_at = now + max(1.0, self.children.options.CHILD_FORK_FREQUENCY_LIMIT)

    def start(self) -> Child:
        return self.children.fork(self.name, self.body)

    def reap(self, now: float) -> None:
        """Act on the end of its process."""
        child = self.child
        if child is None or (code := child.reap()) is None:
            return
        self.child = None
        expected = self.ended(child, code, now)
        os.close(child.heartbeat_r)
        limit = self.children.options.CHILD_FORK_FREQUENCY_LIMIT
        early = now - child.born < limit
        self.deaths = 0 if expected else self.deaths + 1 if early else 1
        self.next_at = next_fork(child.born, deaths=self.deaths, limit=limit)

    def ended(self, child: Child, code: int, now: float) -> bool:
        """Report the end of a process; return whether it was no death."""
        if code and not child.killed:
            logger.error("The %s died. code=%s", self.name, code)
        return False

    def watch(self, now: float, *, frozen: bool) -> None:
        """Kill its process if that is silent; repeat a stop signal."""
        if (child := self.child) is None:
            return
        options, silence = self.children.options, child.silence
        child.listen(now, limit=options.CHILD_HEARTBEAT_LIMIT, frozen=frozen)
        if child.silence > silence:
            logger.error(
                "The %s is silent; it is killed. pid=%s seconds=%.0f",
                self.name,
                child.pid,
                child.silence,
            )
        child.press(now, interval=options.CHILD_KILL_INTERVAL, limit=self.stop_limit)

    def stop(self, *, now: bool = False) -> None:
        if self.child is not None:
            self.child.kill() if now else self.child.stop()

    def due(self) -> list[float]:
        """Return the times of its next actions, by the monotonic clock."""
        return [self.next_at] if self.is_empty else []


class Children:
    """
    The child processes of a supervisor, and what they inherit.

    The pipe ``parent_alive`` is closed at the supervisor's death; ``wakeups`` wake the
    processors.
    """

    def __init__(self, plan: Plan, reporter: Reporter) -> None:
        self.plan = plan
        self.options = plan.options
        self.reporter = reporter
        self.places: list[Place] = []
        self.wakeups = Wakeups()
        self.stopping = False
        self.parent_alive, self.parent_alive_w = os.pipe()
        os.set_blocking(self.parent_alive, False)

    @property
    def alive(self) -> list[Child]:
        return [place.child for place in self.places if place.child is not None]

    def pids(self) -> set[int]:
        return {child.pid for child in self.alive}

    def fork(self, role: str, body: Body) -> Child:
        heartbeat = Wakeup()
        alive = self.alive

        def alone() -> int:
            set_title(role)
            self.plan.outage.process = role
            self.close_in_child()
            for file in (heartbeat.read_fd, *(child.heartbeat_r for child in alive)):
                os.close(file)
            return body(heartbeat.write_fd)

        prepare_for_fork()
        try:
            return fork(alone, heartbeat.read_fd)
        except OSError:
            os.close(heartbeat.read_fd)
            raise
        finally:
            os.close(heartbeat.write_fd)

    def close_in_child(self) -> None:
        """
        Close what only the supervisor may hold: a copy in a child would keep a pipe open
        after the supervisor's death.
        """
        os.close(self.parent_alive_w)

    def reap(self, now: float) -> None:
        for place in self.places:
            place.reap(now)
        self.places = [place for place in self.places if place.child or not place.vacant]
        reap_orphans(self.pids())

    def helper(
        self, name: str, make: Callable[[], HelperProcess], *, lasting: bool = False
    ) -> Place:
        """Return the place of a helper, which is made in its process, with its descriptors."""

        def body(heartbeat_w: int) -> int:
            return make().run(heartbeat_w, self.parent_alive)

        return Place(self, name, body, lasting=lasting)

    def give_back(self, leftovers: Leftovers, now: float) -> None:
        """Fork a reaper for the leases of a dead processor; without one they run out."""
        place = self.helper(REAPER, lambda: Reaper(self.plan, leftovers, self.reporter))
        place.fill(now)
        place.vacant = True
        self.places.append(place)
