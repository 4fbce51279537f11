"""The parents, children and batch of a task, for its page: a small graph as SVG, and lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.inspection.family import MOST, Family, FamilyLink, Known, Relative, family
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import DEAD, Batch, Task
from django_perfectqueue.queue import database

from .actions import CANCEL, RETRY
from .bulk_pages import may
from .cells import mark, page_url

WIDTH, HEIGHT = 190, 46
ACROSS, DOWN = 54, 12
MARGIN = 4
LETTERS = 24
# How far the graph reaches up and down: a statement each.
LEVELS = 3
WORDS = {
    "wait": gettext_lazy("stays blocked if it fails"),
    "cancel": gettext_lazy("is cancelled if it fails"),
    "run": gettext_lazy("runs even if it fails"),
    "done": gettext_lazy("when all have ended"),
    "finished": gettext_lazy("when all have finished"),
    "failed": gettext_lazy("when some have not finished"),
}


def family_page(task: Task, request: HttpRequest, site: AdminSite) -> dict[str, Any]:
    """Return what the template shows; a graph where there are at most MOST tasks."""
    known = known_to(request, site)
    found = family(task.pk, using=database(), levels=LEVELS, known=known)
    return {
        "graph": graph(found, request) if 1 < len(found.relatives) <= MOST else None,
        "parents": [relative_row(one, link, request) for one, link in found.parents],
        "children": [relative_row(one, link, request) for one, link in found.children],
        "family_more": found.more,
        "dependent_verbs": dependent_verbs(task, found, request),
    }


def known_to(request: HttpRequest, site: AdminSite) -> Known:
    """Return the tasks and the batches that the lists of the admin show a person."""
    tasks, batches = (site.get_model_admin(model).get_queryset(request) for model in (Task, Batch))
    columns = ("queue", "key", "user", "type", "outcome")
    return Known(tasks.select_related(None).only(*columns), batches)


def relative_row(one: Relative, link: FamilyLink, request: HttpRequest) -> dict[str, object]:
    return {
        "badge": relative_badge(one),
        "link": linked(one, request),
        "type": printable(one.type) if one.type else _("batch"),
        "mode": WORDS[link.mode],
        "state": link.state,
    }


def relative_badge(one: Relative) -> SafeString:
    return mark(one.status, one.word)


def linked(one: Relative, request: HttpRequest) -> SafeString | str:
    name, url = printable(one.key), url_of(one, request)
    return format_html('<a href="{}">{}</a>', url, name) if url else name


def url_of(one: Relative, request: HttpRequest) -> str:
    """Return where the page of a task or a batch is, or nothing for who may not see it."""
    kind = "batch" if one.is_batch else "task"
    if not request.user.has_perm(f"perfectqueue.view_{kind}"):
        return ""
    return page_url(f"{kind}_change", abs(one.id))


def dependent_verbs(task: Task, found: Family, request: HttpRequest) -> list[object]:
    """Return what can be done to a task together with those that wait for it."""
    waiting = found.waiting
    statuses = {one.status for one in waiting}
    verbs = []
    if statuses - set(DEAD) and not task.outcome:
        verbs.append(CANCEL)
    if waiting and task.outcome in DEAD and statuses & set(DEAD):
        verbs.append(RETRY)
    return [verb for verb in verbs if may(request, verb)]


@dataclass(frozen=True, slots=True)
class Node:
    """A box: its task, where its upper left corner is, and where it leads."""

    relative: Relative
    x: int
    y: int
    url: str
    is_own: bool

    @property
    def name(self) -> str:
        text = printable(self.relative.key)
        return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"

    @property
    def title(self) -> str:
        one = self.relative
        kind = _("batch") if one.is_batch else one.type
        return printable(", ".join(filter(None, [one.key, kind, one.user, one.word])))


def graph(found: Family, request: HttpRequest) -> dict[str, object]:
    """Place each task to the right of those that it waits for."""
    columns = in_columns(found.relatives, found.links)
    tallest = max(map(len, columns), default=0)
    nodes = {}
    for number, column in enumerate(columns):
        above = (tallest - len(column)) * (HEIGHT + DOWN) // 2
        for place, id_ in enumerate(column):
            nodes[id_] = Node(
                relative=found.relatives[id_],
                x=MARGIN + number * (WIDTH + ACROSS),
                y=MARGIN + above + place * (HEIGHT + DOWN),
                url=url_of(found.relatives[id_], request),
                is_own=id_ == found.of,
            )
    return {
        "nodes": list(nodes.values()),
        "arrows": [
            {"path": curve(nodes[link.parent], nodes[link.child]), "state": link.state}
            for link in found.links
        ],
        "width": 2 * MARGIN + len(columns) * (WIDTH + ACROSS) - ACROSS,
        "height": 2 * MARGIN + tallest * (HEIGHT + DOWN) - DOWN,
    }


def in_columns(relatives: dict[int, Relative], links: Sequence[FamilyLink]) -> list[list[int]]:
    """Return the ids by column; each below those whose parents are further up."""
    parents: dict[int, list[int]] = {id_: [] for id_ in relatives}
    for link in links:
        parents[link.child].append(link.parent)
    depth = dict.fromkeys(relatives, 0)
    # The longest way to each: as many rounds as there are tasks at most, there is no circle.
    for _round in relatives:
        before = dict(depth)
        for id_, above in parents.items():
            depth[id_] = max((depth[parent] + 1 for parent in above), default=0)
        if depth == before:
            break
    columns: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    place: dict[int, float] = {}
    for id_ in sorted(relatives, key=lambda id_: (depth[id_], id_)):
        columns[depth[id_]].append(id_)
    for column in columns:
        middle = {
            id_: sum(place[parent] for parent in parents[id_]) / max(1, len(parents[id_]))
            for id_ in column
        }
        column.sort(key=lambda id_: (middle[id_], id_))
        place |= {id_: float(number) for number, id_ in enumerate(column)}
    return columns


def curve(parent: Node, child: Node) -> str:
    x1, y1 = parent.x + WIDTH, parent.y + HEIGHT // 2
    x2, y2 = child.x - 7, child.y + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
