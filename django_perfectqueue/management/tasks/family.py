"""The parents, the children and the batch of a task, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_perfectqueue.inspection.family import Family, FamilyLink, Relative
from django_perfectqueue.queue import Batch

from .facts import Facts

SHOWN = 5


def family_facts(found: Family, batch: Batch | None) -> Facts:
    """Return them for programs; ``family_more`` says that there are others."""
    return {
        "parents": [{**one.facts(), **link_facts(link)} for one, link in found.parents],
        "children": [{**one.facts(), **link_facts(link)} for one, link in found.children],
        "family_more": found.more,
        "batch": batch_facts(batch) if batch else None,
    }


def link_facts(link: FamilyLink) -> Facts:
    return {"if_failed": link.mode, "state": link.state}


def batch_facts(batch: Batch) -> Facts:
    found = batch.progress()
    return {
        "name": batch.name,
        "id": batch.id,
        "queue": batch.queue.name,
        "user": batch.user or None,
        "total": found.total,
        "finished": found.finished,
        "dead": found.dead,
        "open": found.open,
        "ended": found.ended,
    }


def family_fields(found: Family, batch: Batch | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a task's family, each with its label."""
    if found.parents:
        yield "waits for", listed(found.parents, more=found.more)
    if found.children:
        yield "followed by", listed(found.children, more=found.more)
    if batch:
        yield "batch", f"{batch.name}: {counted(batch)}"


def listed(pairs: Sequence[tuple[Relative, FamilyLink]], *, more: bool) -> str:
    """Return the first of some relatives in a line, each with its status and mode."""
    words = [described(one, link) for one, link in pairs[:SHOWN]]
    if more or len(pairs) > SHOWN:
        words.append("and more")
    return ", ".join(words)


def described(one: Relative, link: FamilyLink) -> str:
    name = f"batch {one.key}" if one.is_batch else one.key
    option = "when" if link.parent < 0 else "if_failed"
    mode = "" if link.mode == "wait" else f", {option}={link.mode}"
    return f"{name} ({one.word}{mode})"


def counted(batch: Batch) -> str:
    """Return in words what a batch has."""
    found = batch.progress()
    return f"{found.finished} of {found.total} finished, {found.dead} dead, {found.open} open"
