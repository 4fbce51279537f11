"""Graphs of tasks in nested batches: what is submitted at random, and what is known of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..calls import ask

if TYPE_CHECKING:
    from django_perfectqueue.queue import Batch, Queue

RECENT = 300
LARGE = 250
ALWAYS = 99


@dataclass
class Web:
    """
    A batch with others in it, whose tasks wait for one another.

    ``members`` are the keys that each batch was submitted with, also those of batches in it;
    ``callbacks`` the batch of each callback's key; ``nodes`` what each task waits for, and what
    becomes of it if one of these dies. Nobody changes one that is ``still``.
    """

    name: str
    still: bool = False
    members: dict[str, list[str]] = field(default_factory=dict)
    callbacks: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, tuple[Sequence[str], str]] = field(default_factory=dict)

    def all_keys(self) -> list[str]:
        return [*self.members.get(self.name, ()), *self.callbacks]


class Spinner:
    """
    Submits webs. In one that is still, tasks wait for those of earlier ones, too.

    ``mortal`` are the keys of tasks of such webs that may end without finishing.
    """

    def __init__(self, drawn: random.Random, queue: Queue) -> None:
        self.drawn = drawn
        self.queue = queue
        self.recent: list[str] = []
        self.mortal: set[str] = set()

    def spin(self, web: Web) -> None:
        """Submit a web, all in one transaction."""
        keys: list[str] = []

        def submit() -> None:
            try:
                with self.queue.batch(web.name, user=web.name) as batch:
                    self.fill(web, batch, ())
            finally:
                keys.extend(web.all_keys())

        if ask("submit", submit, {"keys": keys}, how="batch", key=web.name).is_done and web.still:
            self.recent = [*self.recent, *web.nodes][-RECENT:]

    def fill(self, web: Web, batch: Batch, outer: tuple[str, ...]) -> None:
        is_large = web.still and self.drawn.random() < 0.02
        tasks: list[dict[str, Any]] = []
        for number in range(LARGE if is_large else self.drawn.randint(2, 6)):
            earlier = [*self.recent, *(task["key"] for task in tasks)]
            most = min(len(earlier), 3 if web.still else 2)
            parents = self.drawn.sample(earlier, self.drawn.randint(0, most))
            tasks.append(self.strand(web, f"{batch.name}-{number}", parents))
        batch.submit_many(tasks)
        within = (*outer, batch.name)
        for name in within:
            web.members.setdefault(name, []).extend(task["key"] for task in tasks)
        if len(within) < 3 and self.drawn.random() < 0.5:
            with batch.batch(f"{batch.name}.in") as inner:
                self.fill(web, inner, within)
        # Where nobody puts back what has died, this would wait for ever.
        may_die = web.still and self.mortal.intersection(web.members[batch.name])
        for when in ("done", "failed", *(() if may_die else ("finished",))):
            key = f"{batch.name}!{when}"
            batch.then(key, "strand", {"seconds": 0.0}, when=when)
            web.callbacks[key] = batch.name

    def strand(self, web: Web, key: str, parents: list[str]) -> dict[str, Any]:
        deaths = self.drawn.choices((0, ALWAYS), (12, 1))[0]
        data = {
            "seconds": round(self.drawn.choice((0.0, 0.02, 0.3)) * self.drawn.random(), 4),
            "deaths": deaths if web.still else self.drawn.choice((0, 0, 0, 1, 3)),
            "adds": not web.still and self.drawn.random() < 0.2,
        }
        wait = None if parents else self.drawn.choice((None, 0.5, 2.0))
        can_wait = web.still and not self.mortal.intersection(parents)
        mode = self.drawn.choice(("run", "cancel", *(("wait",) if can_wait else ())))
        if data["deaths"] or (mode == "cancel" and not can_wait):
            self.mortal.add(key)
        web.nodes[key] = (parents, mode)
        task = {"key": key, "type": "strand", "data": data, "run_at": wait}
        return {**task, "after": parents, "if_failed": mode}
