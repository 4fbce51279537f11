"""Batches: how far each is, which of its tasks have not finished, and its callbacks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.inspection.family import (
    BATCH_STATES,
    COUNTED,
    MOST,
    Known,
    callbacks,
    counts,
    exact,
    in_state,
    relatives,
    state_of,
)
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Batch, Outcome, Task, TaskQuerySet
from django_perfectqueue.queue import Queue, database

from ..parts.action_pages import SHOWN
from ..parts.actions import CANCEL, RETRY
from ..parts.base import ReadOnlyAdmin, column
from ..parts.bulk_pages import may
from ..parts.cells import NOTHING, badge, mark, moment, short, tasks_link, with_fold
from ..parts.family import known_to, linked, relative_row
from ..parts.filters import REACH, QueueFilter, UserFilter, ValueFilter

VIEW_TASK = "perfectqueue.view_task"


class StateFilter(ValueFilter):
    """Keeps those of a state, among the REACH newest: no index finds them."""

    title = _("status")
    parameter_name = "state"
    words = BATCH_STATES

    def condition(self, value: str) -> Q:
        if value not in BATCH_STATES:
            raise IncorrectLookupParameters
        newest = Batch.objects.using(database()).order_by("-pk").values_list("pk", flat=True)
        return in_state(value) & Q(pk__gt=(newest.first() or 0) - REACH)


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

    def complete(self, request: HttpRequest, rows: Any) -> None:
        exact(rows, using=database())

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        return (queryset.filter(name=search_term) if search_term else queryset), False

    state = column(_("status"), lambda batch: state_badge(batch))
    named = column(
        _("name"), lambda batch: with_fold(printable(batch.name), batch.user, batch.queue)
    )
    of_queue = column(_("queue"), lambda batch: printable(batch.queue))
    for_user = column(_("user"), lambda batch: printable(batch.user) or NOTHING)
    bar = column(_("progress"), lambda batch: bar(batch.total, batch.finished, batch.dead))
    tasks = column(_("tasks"), lambda batch: f"{batch.finished + batch.dead} / {batch.total}")
    created = column(_("created"), lambda batch: short(batch.created_at))

    def story(self, request: HttpRequest, row: Batch) -> dict[str, object]:
        """Return a batch's exact counts, and of its tasks those that the person may see."""
        [own] = exact([row], using=database())
        found = Queue(own.queue, using=database()).batch_named(own.name).progress()
        pages: Any = self.admin_site.get_model_admin(Task)
        tasks = pages.get_queryset(request).filter(membership__batch_id=own.pk)
        known = known_to(request, self.admin_site)
        sees_tasks = request.user.has_perm(VIEW_TASK)
        shown = tasks.exclude(outcome=Outcome.FINISHED).order_by("pk")[:SHOWN]
        verbs = [verb for verb, fits in ((CANCEL, found.open), (RETRY, found.dead)) if fits]
        inner = known.batches.filter(parent_id=own.pk).order_by("pk")[:MOST]
        return {
            "batch_id": own.pk,
            "subtitle": printable(own.name),
            "original": printable(own.name),
            "badge": state_badge(own),
            "bar": bar(found.total, found.finished, found.dead),
            "progress": found,
            "percent": int(100 * found.part),
            "about": about(own, request, known),
            "tasks": [
                (badge(one.status), one.pk, printable(one.key), printable(one.type), one.user)
                for one in (shown if sees_tasks else ())
            ],
            "sees_tasks": sees_tasks,
            "all_query": urlencode({"batch": own.pk}),
            "callbacks": [
                relative_row(one, link, request)
                for one, link in callbacks(own.pk, using=database(), known=known)
            ],
            "inner": [
                (state_badge(one), one, bar(one.total, one.finished, one.dead))
                for one in exact(inner, using=database())
            ],
            "verbs": [verb for verb in verbs if sees_tasks and may(request, verb)],
            **statuses_of(own, tasks),
        }


def statuses_of(batch: Batch, tasks: TaskQuerySet) -> dict[str, object]:
    found = counts(tasks)
    return {
        "statuses": [
            (badge(status), count, urlencode({"batch": batch.pk, "status": status}))
            for status, count in found.items()
        ],
        "capped": sum(found.values()) >= COUNTED,
        "cap": COUNTED,
    }


def state_badge(batch: Batch) -> SafeString:
    state = state_of(batch)
    return mark(state, BATCH_STATES[state])


def bar(total: int, finished: int, dead: int) -> SafeString:
    """Return what has finished, and what is dead beside it, as parts of all."""
    done, lost = (f"{100 * count / max(total, 1):.2f}" for count in (finished, dead))
    return format_html(
        '<svg class="pq-bars" viewBox="0 0 100 14" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><rect class="pq-bar-all" width="100" height="14"/>'
        '<rect class="pq-bar-finished" width="{}" height="14"/>'
        '<rect class="pq-bar-failed" x="{}" width="{}" height="14"/></svg>',
        _("%(finished)d of %(total)d finished, %(dead)d dead")
        % {"finished": finished, "total": total, "dead": dead},
        done,
        done,
        lost,
    )


def queue_link(queue: str, request: HttpRequest) -> SafeString | str:
    shown = printable(queue)
    return tasks_link(shown, queue=queue) if request.user.has_perm(VIEW_TASK) else shown


def about(batch: Batch, request: HttpRequest, known: Known) -> list[tuple[object, object]]:
    facts: list[tuple[object, object]] = [
        (_("queue"), queue_link(batch.queue, request)),
        (_("user"), printable(batch.user) or NOTHING),
        (_("created"), moment(batch.created_at)),
    ]
    if batch.ended_at:
        facts.append((_("ended"), moment(batch.ended_at)))
    if batch.parent_id:
        for outer in relatives([-batch.parent_id], using=database(), known=known).values():
            facts.append((_("in batch"), linked(outer, request)))
    return [*facts, (_("id"), str(batch.pk))]
