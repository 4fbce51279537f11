"""Batches: how far each is, and its tasks; and the relatives of a task, as a graph and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.inspection import family
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import DEAD, Batch, Outcome, Task
from django_perfectqueue.queue import database
from django_perfectqueue.store.dependencies import Progress
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts.action_pages import SHOWN
from ..parts.actions import CANCEL, RETRY, may
from ..parts.base import ReadOnlyAdmin, column
from ..parts.filters import REACH, QueueFilter, UserFilter, ValueFilter


class StateFilter(ValueFilter):
    """Keeps those of a state, among the REACH newest: no index finds them."""

    title = _("status")
    parameter_name = "state"
    words = family.BATCH_STATES

    def condition(self, value: str) -> Q:
        if value not in family.BATCH_STATES:
            raise IncorrectLookupParameters(value)
        newest = Batch.objects.using(database()).order_by("-pk").values_list("pk", flat=True)
        return family.in_state(value) & Q(pk__gt=(newest.first() or 0) - REACH)


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    user_path = "user"
    story_template = "batch/batch"
    list_display = ["state", "named", "for_user", "of_queue", "bar", "tasks", "dead", "created"]
    list_display_links = ["named"]
    list_filter = [StateFilter, QueueFilter, UserFilter]
    ordering = ["-pk"]
    search_fields = ["name"]
    search_help_text = _("A name, exactly.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        return family.summed(super().get_queryset(request))  # type: ignore[arg-type]

    def complete(self, request: HttpRequest, rows: Any) -> None:
        family.exact(rows)

    def sought(self, request: HttpRequest, term: str) -> Q:
        return Q(name=term)

    state = column(_("status"), lambda batch: state_badge(batch))
    named = column(
        _("name"), lambda batch: cells.with_fold(printable(batch.name), batch.user, batch.queue)
    )
    of_queue = column(_("queue"), lambda batch: printable(batch.queue))
    for_user = column(_("user"), lambda batch: printable(batch.user) or cells.NOTHING)
    bar = column(_("progress"), lambda batch: bar(batch.total, batch.finished, batch.dead))
    tasks = column(_("tasks"), lambda batch: f"{batch.finished + batch.dead} / {batch.total}")
    created = column(_("created"), lambda batch: cells.short(batch.created_at))

    def story(self, request: HttpRequest, row: Batch) -> dict[str, object]:
        """Return a batch's exact counts, and of its tasks those that the person may see."""
        [own] = family.exact([row])
        found = Progress(own.total, own.finished, own.dead, own.ended_at)
        pages: Any = self.admin_site.get_model_admin(Task)
        tasks = pages.get_queryset(request).filter(membership__batch_id=own.pk)
        counts = family.counts(tasks)
        known = known_to(request, self.admin_site)
        sees_tasks = cells.sees("task")
        unfinished = tasks.exclude(outcome=Outcome.FINISHED).order_by("pk")[:SHOWN]
        verbs = [verb for verb, fits in ((CANCEL, found.open), (RETRY, found.dead)) if fits]
        inner = known.batches.filter(parent_id=own.pk).order_by("pk")[: family.MOST]
        return {
            "batch_id": own.pk,
            "subtitle": printable(own.name),
            "original": printable(own.name),
            "badge": state_badge(own),
            "bar": bar(found.total, found.finished, found.dead),
            "progress": found,
            "percent": int(100 * found.part),
            "about": about(own, known),
            "tasks": unfinished if sees_tasks else [],
            "sees_tasks": sees_tasks,
            "callbacks": relative_rows(family.callbacks(own.pk, using=database(), known=known)),
            "inner": [
                (state_badge(one), one, bar(one.total, one.finished, one.dead))
                for one in family.exact(inner)
            ],
            "verbs": [verb for verb in verbs if sees_tasks and may(request, verb)],
            "statuses": counts.items(),
            "cap": family.COUNTED if sum(counts.values()) >= family.COUNTED else 0,
        }


def state_badge(batch: Batch) -> SafeString:
    state = family.state_of(batch)
    return cells.mark(state, family.BATCH_STATES[state])


def bar(total: int, finished: int, dead: int) -> SafeString:
    """Return what has finished, and what is dead beside it, as parts of all."""
    label = _("%(finished)d of %(total)d finished, %(dead)d dead")
    done, lost = (100 * count / max(total, 1) for count in (finished, dead))
    parts = [("all", 0.0, 100.0, 14.0), ("finished", 0.0, done, 14.0), ("failed", done, lost, 14.0)]
    return cells.bars(label % {"finished": finished, "total": total, "dead": dead}, parts)


def about(batch: Batch, known: family.Known) -> list[tuple[object, object]]:
    facts: list[tuple[object, object]] = [
        (_("queue"), cells.tasks_link(printable(batch.queue), queue=batch.queue)),
        (_("user"), printable(batch.user) or cells.NOTHING),
        (_("created"), cells.moment(batch.created_at)),
    ]
    if batch.ended_at:
        facts.append((_("ended"), cells.moment(batch.ended_at)))
    if batch.parent_id:
        for outer in family.relatives([-batch.parent_id], using=database(), known=known).values():
            facts.append((_("in batch"), linked(outer)))
    return [*facts, (_("id"), str(batch.pk))]


WIDTH, HEIGHT = 190, 46
ACROSS, DOWN = 54, 12
MARGIN = 4
LETTERS = 24
WORDS = {
    "wait": _("stays blocked if it fails"),
    "cancel": _("is cancelled if it fails"),
    "run": _("runs even if it fails"),
    "done": _("when all have ended"),
    "finished": _("when all have finished"),
    "failed": _("when some have not finished"),
    family.JOINED: _("has run it, or joins it"),
    "first_failure": _("when the first has not finished"),
    "sequence": _("comes after it in its sequence"),
}


def family_page(task: Task, request: HttpRequest, site: AdminSite) -> dict[str, Any]:
    """Return what the template shows; a graph where there are at most MOST tasks."""
    found = family.family(task.pk, using=database(), known=known_to(request, site))
    return {
        "graph": graph(found) if 0 < len(found.links) < family.MOST else None,
        "parents": relative_rows(found.parents),
        "children": relative_rows(found.children),
        "family_more": found.more,
        "dependent_verbs": dependent_verbs(task, found, request),
    }


def known_to(request: HttpRequest, site: AdminSite) -> family.Known:
    """Return the tasks and the batches that the lists of the admin show a person."""
    tasks, batches = (site.get_model_admin(model).get_queryset(request) for model in (Task, Batch))
    columns = ("queue", "key", "user", "type", "outcome")
    return family.Known(tasks.select_related(None).only(*columns), batches)


def relative_rows(pairs: list[family.Linked]) -> list[tuple[family.Relative, object, object]]:
    """Return relatives, each with its name as a link and in words how it is linked."""
    return [(one, linked(one), WORDS[link.mode]) for one, link in pairs]


def linked(one: family.Relative) -> SafeString | str:
    name, url = printable(one.key), url_of(one)
    return format_html('<a href="{}">{}</a>', url, name) if url else name


def url_of(one: family.Relative) -> str:
    """Return the URL of a task or a batch; nothing if the person may not see its page."""
    kind = "batch" if one.is_batch else "task"
    return cells.page_url(f"{kind}_change", abs(one.id)) if cells.sees(kind) else ""


def dependent_verbs(task: Task, found: family.Family, request: HttpRequest) -> list[object]:
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

    relative: family.Relative
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
        kind = gettext("batch") if one.is_batch else one.type
        return printable(", ".join(filter(None, [one.key, kind, one.user, one.word])))


def graph(found: family.Family) -> dict[str, object]:
    """Place a task to the right of those that it waits for, and those that wait for it behind."""
    parents, children = found.parents, found.children
    columns = [[one for one, _link in some] for some in (parents, children)]
    columns.insert(1, [found.relatives[found.of]])
    tallest, first = max(map(len, columns)), 0 if parents else 1
    before, [own], after = (
        [
            Node(
                relative=one,
                x=MARGIN + (number - first) * (WIDTH + ACROSS),
                y=MARGIN + (2 * place + tallest - len(some)) * (HEIGHT + DOWN) // 2,
                url=url_of(one),
                is_own=number == 1,
            )
            for place, one in enumerate(some)
        ]
        for number, some in enumerate(columns)
    )
    pairs = [*((node, own) for node in before), *((own, node) for node in after)]
    return {
        "nodes": [*before, own, *after],
        "arrows": [
            {"path": curve(*pair), "state": link.state}
            for pair, (_one, link) in zip(pairs, [*parents, *children], strict=True)
        ],
        "width": 2 * MARGIN + sum(map(bool, columns)) * (WIDTH + ACROSS) - ACROSS,
        "height": 2 * MARGIN + tallest * (HEIGHT + DOWN) - DOWN,
    }


def curve(parent: Node, child: Node) -> str:
    x1, y1 = parent.x + WIDTH, parent.y + HEIGHT // 2
    x2, y2 = child.x - 7, child.y + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
