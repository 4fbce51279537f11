"""Workers: which are alive, what they serve and run, and which died."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import store
from django_perfectqueue.inspection.workers import Assignment, processors_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Worker
from django_perfectqueue.models.worker import ProcessorState
from django_perfectqueue.queue import database
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts.base import Extra, ReadOnlyAdmin, column
from ..parts.filters import numbers

TASKS = 5
KINDS = {"alive": "running", "gone": "failed"}
WORDS = {
    "alive": _("alive"),
    "gone": _("gone"),
    "leaving": _("leaving"),
    "draining": _("draining"),
    "drained": _("drained"),
}
BUTTON = ' <button class="button" name="{}" value="{}">{}</button>'


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ["standing", "host", "pid", "round", "since", "serves", "busy", "runs", "seen"]
    list_display_links = None
    list_per_page = 50
    ordering = ["-seen_at"]

    has_clock = True
    actions = ["drain", "undrain"]
    search_fields = ["host"]

    def sought(self, request: HttpRequest, term: str) -> Q:
        return Q(host__icontains=term)

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Do what the button of a row says: it names the worker, or the host of several."""
        for name in {"drain", "undrain", "drain_host"} & set(request.POST):
            value = request.POST[name]
            of_host = Q(host=value.replace("\x00", ""))
            which = of_host if name == "drain_host" else Q(pk__in=numbers([value]))
            self.set_draining(request, self.get_queryset(request).filter(which), name != "undrain")
            return HttpResponseRedirect(request.get_full_path())
        return super().changelist_view(request, extra_context)

    def has_drain_permission(self, request: HttpRequest) -> bool:
        may_drain = request.user.has_perm("perfectqueue.drain_worker")
        return may_drain and self.has_view_permission(request)

    @admin.action(description=_("Drain"), permissions=["drain"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.set_draining(request, queryset, True)

    @admin.action(description=_("Undrain"), permissions=["drain"])
    def undrain(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.set_draining(request, queryset, False)

    def set_draining(self, request: HttpRequest, rows: QuerySet[Any], draining: bool) -> None:
        """Have workers take no more tasks, or take tasks again; what runs is not disturbed."""
        if not self.has_drain_permission(request):
            raise PermissionDenied
        workers = list(rows)
        store.records.drain([one.pk for one in workers], draining, using=database())
        word = _("asked to drain") if draining else _("asked to take tasks again")
        for one in workers:
            self.log_change(request, one, str(word))
        self.say_done(request, len(workers), word)

    def complete(self, request: HttpRequest, rows: Any) -> None:
        """Add the processors to the workers; their tasks are looked up together."""
        processors = processors_of(rows, using=database())
        takers = Counter(row.host for row in rows if row.state == "alive")
        for worker in rows:
            worker.shown = processors[worker.id]
            worker.drainable = self.has_drain_permission(request)
            worker.takers = takers[worker.host]

    @admin.display(description=_("status"))
    def standing(self, worker: Any) -> SafeString:
        shown = cells.mark(KINDS.get(worker.state, "retrying"), WORDS[worker.state])
        if worker.state in ("gone", "leaving") or not worker.drainable:
            return shown
        name, label = ("undrain", _("Undrain")) if worker.draining else ("drain", _("Drain"))
        buttons = [(name, worker.pk, label)]
        if worker.takers > 1 and worker.state == "alive":
            buttons.append(("drain_host", worker.host, _("Drain the host")))
        return format_html("{}{}", shown, format_html_join("", BUTTON, buttons))

    @admin.display(description=_("generation"))
    def round(self, worker: Worker) -> SafeString:
        title = f"django-perfectqueue {worker.version}"
        release = printable(worker.release)
        shown = '<span title="{}">{}</span> <span class="pq-quiet">{}</span>'
        return format_html(shown, title, worker.generation, release)

    since = column(_("since"), lambda worker: cells.ago(worker.started_at))

    @admin.display(description=_("queues"))
    def serves(self, worker: Any) -> SafeString:
        names = ([cells.tasks_link(printable(queue), queue=queue)] for queue in worker.queues)
        return format_html_join(", ", "{}", names)

    @admin.display(description=_("processors"))
    def busy(self, worker: Any) -> str:
        count = sum(bool(runs) for _state, runs in worker.shown)
        words = {"count": worker.processors, "busy": count, "kept": len(worker.kept)}
        if worker.kept:
            return gettext("%(count)d, %(busy)d busy, %(kept)d kept for short tasks") % words
        return gettext("%(count)d, %(busy)d busy") % words

    @admin.display(description=_("runs"))
    def runs(self, worker: Any) -> SafeString | str:
        """Return what its processors run; the names of tasks only if the person may see tasks."""
        tasks = [(state, task) for state, runs in worker.shown for task in runs]
        if not tasks:
            return cells.NOTHING
        if not cells.sees("task"):
            return ngettext("%d task", "%d tasks", len(tasks)) % len(tasks)
        lines = [[line(worker, *one)] for one in tasks[:TASKS]]
        if len(tasks) > TASKS:
            lines.append([format_html("{}", gettext("and %d more") % (len(tasks) - TASKS))])
        items = format_html_join("", "<li>{}</li>", lines)
        return format_html('<ul class="pq-runs">{}</ul>', items)

    seen = column(_("seen"), lambda worker: cells.ago(worker.seen_at))


def line(worker: Any, state: ProcessorState, task: Assignment) -> SafeString:
    """Return one task that runs, with a link to it as long as it is stored."""
    where = gettext("processor %(number)d, pid %(pid)d") % state
    lasts = cells.duration((worker.clock - task.since).total_seconds())
    parts = [printable(task.type), printable(task.user), lasts, task.how_far]
    words = ", ".join(filter(None, parts))
    quiet = format_html('<span class="pq-quiet" title="{}">{}</span>', where, words)
    if not task.key:
        return format_html("#{} {}", task.task_id, quiet)
    return format_html("{} {}", cells.task_link(task.task_id, printable(task.key)), quiet)
