"""Tasks that wait for others, and nested batches: what is submitted, and what it comes to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .calls import noted

RECENT = 300
WIDTH = 40
LARGE = 250
DEAD = frozenset({"failed", "cancelled"})


@dataclass(frozen=True)
class Node:
    """A task that waits for ``parents``, and what becomes of it if one of them dies."""

    key: str
    parents: tuple[str, ...]
    if_failed: str


@dataclass(frozen=True)
class Callback:
    """A callback of a batch with ``members``, those of batches in it among them."""

    key: str
    when: str
    members: tuple[str, ...]


@dataclass
class Graph:
    """``mortal`` are the keys of tasks that may end without finishing."""

    drawn: random.Random
    nodes: list[Node] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    recent: list[str] = field(default_factory=list)
    mortal: set[str] = field(default_factory=set)
    number: int = 0

    def task(self, prefix: str) -> dict[str, Any]:
        self.number += 1
        kind = "doomed" if self.drawn.random() < 0.04 else "node"
        key = f"{prefix}-{self.number}"
        if kind == "doomed":
            self.mortal.add(key)
        seconds = round(self.drawn.choice((0.0, 0.0, 0.01, 0.1)) * self.drawn.random(), 4)
        return {"key": key, "type": kind, "data": {"seconds": seconds}, "user": prefix}

    def some_nodes(self) -> list[dict[str, Any]]:
        """Return tasks of a random graph, each of which waits for some that came before it."""
        tasks: list[dict[str, Any]] = []
        known = list(self.recent)
        for _node in range(WIDTH):
            task = self.task("node")
            parents = self.drawn.sample(known, min(len(known), self.drawn.randint(0, 3)))
            can_die = bool(self.mortal.intersection(parents))
            mode = self.drawn.choice(("run", "cancel") if can_die else ("wait", "run", "cancel"))
            if can_die and mode == "cancel":
                self.mortal.add(task["key"])
            tasks.append({**task, "after": parents, "if_failed": mode})
            self.nodes.append(Node(task["key"], tuple(parents), mode))
            known.append(task["key"])
        return tasks

    def are_stored(self, keys: Sequence[str]) -> None:
        """Have the next tasks wait for these, too."""
        self.recent = [*self.recent, *keys][-RECENT:]

    def submit_batch(self, queue: Any) -> None:
        """Submit a batch with batches in it, all in one transaction."""
        self.number += 1
        with noted("submit", how="batch") as reported, queue.batch(f"batch-{self.number}") as outer:
            self.fill(outer, 0, reported.setdefault("keys", []))

    def fill(self, batch: Any, depth: int, submitted: list[str]) -> list[str]:
        """Return the keys of all members; all that is submitted is noted, with callbacks."""
        most = LARGE if self.drawn.random() < 0.02 else 8
        tasks = [self.task("member") for _task in range(self.drawn.randint(0, most))]
        keys = [task["key"] for task in tasks]
        submitted += keys
        batch.submit_many(tasks)
        for number in range(self.drawn.randint(0, 2) if depth < 3 else 0):
            with batch.batch(f"{batch.name}.{number}") as inner:
                keys += self.fill(inner, depth + 1, submitted)
        for when in ("done", "failed", *([] if self.mortal.intersection(keys) else ["finished"])):
            key = f"{batch.name}!{when}"
            submitted.append(key)
            batch.then(key, "node", {"seconds": 0.0}, when=when)
            self.callbacks.append(Callback(key, when, tuple(keys)))
        return keys


def expected_of_node(node: Node, outcomes: Mapping[str, str]) -> str:
    """Return how a node must end that is not doomed by itself."""
    died = any(outcomes.get(parent) in DEAD for parent in node.parents)
    return "cancelled" if died and node.if_failed == "cancel" else "finished"


def expected_of_callback(callback: Callback, outcomes: Mapping[str, str]) -> str:
    died = any(outcomes.get(member) in DEAD for member in callback.members)
    return "cancelled" if callback.when == "failed" and not died else "finished"


def mistakes(
    graph: tuple[Sequence[Node], Sequence[Callback]],
    outcomes: Mapping[str, str],
    begins: Mapping[str, float],
    ends: Mapping[str, float],
) -> Iterator[tuple[str, str]]:
    """
    Yield keys and what is wrong with them, of those that are there.

    ``begins`` is when a handler first began, and ``ends`` when the outcome was written.
    """
    nodes, callbacks = graph
    doomed = {key for key, outcome in outcomes.items() if outcome == "failed"}
    for node in nodes:
        if node.key in outcomes:
            due = "failed" if node.key in doomed else expected_of_node(node, outcomes)
            yield from audited(node.key, due, node.parents, outcomes, begins, ends)
    for one in callbacks:
        if one.key in outcomes:
            due = expected_of_callback(one, outcomes)
            yield from audited(one.key, due, one.members, outcomes, begins, ends)
        elif any(member in outcomes for member in one.members):
            yield one.key, "is not there, though members of its batch are"


def audited(
    key: str,
    due: str,
    before: Sequence[str],
    outcomes: Mapping[str, str],
    begins: Mapping[str, float],
    ends: Mapping[str, float],
) -> Iterator[tuple[str, str]]:
    if outcomes[key] and outcomes[key] != due:
        yield key, f"is {outcomes[key]} in place of {due}"
    for one in before:
        if key in begins and not begins[key] >= ends.get(one, float("inf")):
            yield key, f"began at {begins[key]:.3f}, before {one} had ended"
