"""Schedules: what is submitted again and again, when next, and how the last ones ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.forms import CharField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.inspection.schedules import in_words, standing, statuses_of
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import database
from django_perfectqueue.schedules import ScheduleHandle, Schedules

from ..parts.action_pages import CAP
from ..parts.base import column
from ..parts.cells import NOTHING, badge, broken_at_dots, mark, moment, page_url, short
from ..parts.rule_admin import RuleAdmin, acting
from ..parts.schedule_form import ScheduleForm, data_shown

NEXT = 5
LAST = 10
VERBS = {"run": _("Run now"), "pause": _("Pause"), "unpause": _("Unpause")}


class NoteForm(ActionForm):
    """The list's choice of an action, with the note of a pause beside it."""

    note = CharField(label=_("Note of a pause"), required=False, max_length=255)


class WithStatuses(ChangeList):
    """A list whose rows have the status of their last task, read by one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        statuses = statuses_of(self.result_list, using=database())
        for row in self.result_list:
            row.last_status = statuses.get(row.last_task_id)


@admin.register(Schedule)
class ScheduleAdmin(RuleAdmin):
    form = ScheduleForm
    user_path = "user"
    owner = ("name",)
    action_form = NoteForm
    actions = ["run", "pause", "unpause"]
    change_form_template = "admin/perfectqueue/schedule/change_form.html"
    list_display = ["named", "kind", "timing", "next", "last", "state"]
    list_display_links = ["named"]
    list_filter = ["paused", "origin"]
    ordering = ["name"]
    search_fields = ["name"]
    fieldsets = [
        (None, {"fields": ["name", "type", "data", "user", "queue", "priority", "limits"]}),
        (
            _("When"),
            {
                "fields": [
                    *("cron", "every", "timezone", "starts_at", "ends_at"),
                    *("remaining", "delay", "jitter"),
                ],
                "description": _(
                    "Give a cron expression or an interval. After a change the next tick is the "
                    "first one from now."
                ),
            },
        ),
        (
            _("Rules"),
            {
                "fields": [
                    *("overlap", "catch_up", "deadline", "pause_after"),
                    *("time_limit", "expires_after"),
                ]
            },
        ),
    ]

    class Media:
        js = ["perfectqueue/schedule.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows: QuerySet[Model] = super().get_queryset(request).annotate(clock=ServerNow())
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return WithStatuses

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("preview/", wrap(self.preview_view), name="perfectqueue_schedule_preview"),
            path(
                "<int:pk>/steer/<slug:verb>/",
                wrap(self.steer_view),
                name="perfectqueue_schedule_steer",
            ),
            *super().get_urls(),
        ]

    # What is shown.

    @admin.display(description=_("name"), ordering="name")
    def named(self, row: Schedule) -> SafeString:
        paused = mark("failed", _("paused")) if row.paused else ""
        return format_html("{} {}", printable(row.name), paused)

    kind = column(_("type"), lambda row: broken_at_dots(row.type), ordering="type")
    timing = column(_("when"), lambda row: printable(in_words(row)))
    next = column(_("next"), lambda row: short(row.due_at), ordering="due_at")

    @admin.display(description=_("last"), ordering="last_at")
    def last(self, row: Any) -> SafeString | str:
        if row.last_at is None:
            return NOTHING
        shown = badge(row.last_status) if row.last_status else ""
        return format_html("{} {}", short(row.last_at), shown)

    @admin.display(description=_("state"))
    def state(self, row: Any) -> SafeString | str:
        sentence = printable(standing(row, row.clock))
        if row.problem:
            return format_html('<span class="pq-below">{}</span>', sentence)
        return sentence if row.state != "active" else ""

    data = column(_("data"), data_shown)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, object] | None = None,
    ) -> Any:
        """Show what was and what comes beside the form; say why it can't be stored after all."""
        row: object = self.get_object(request, object_id) if object_id else None
        story = self.readable_story(request, row) if row else None
        context = {**(extra_context or {}), **(story or {})}
        try:
            return super().changeform_view(request, object_id, form_url, context)
        except PerfectQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def story(self, request: HttpRequest, row: Any) -> dict[str, object]:
        schedule = Schedules(using=database())[row.name]
        verbs = ["run", "unpause" if row.paused else "pause"]
        allowed = self.has_change_permission(request, row)
        return {
            "standing": printable(standing(row, row.clock)),
            "is_broken": bool(row.problem),
            "in_words": printable(in_words(row)),
            "verbs": [(verb, VERBS[verb]) for verb in verbs] if allowed else [],
            "ahead": [moment(tick) for tick in schedule.next(NEXT)],
            "ticks": [
                tick_row(request, task)
                for task in schedule.last(LAST)
                if may_see(request, task.user)
            ],
            "counts": [
                (Schedule._meta.get_field(name).verbose_name, getattr(row, name))  # type: ignore[union-attr]
                for name in ("fired", "skipped_overlap", "skipped_late", "failures")
            ],
        }

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Return, for the form as it is being filled in, what is wrong and when it would come."""
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        form = ScheduleForm.preview(request.POST)
        ticks = form.ticks(NEXT)
        wrong = [str(error) for name in form.errors for error in form.errors[name]]
        return JsonResponse({"next": [moment(tick) for tick in ticks], "wrong": wrong})

    # What is done.

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Also ask a backend that knows permissions on single rows."""
        if super().has_change_permission(request, obj):
            return True
        return obj is not None and request.user.has_perm("perfectqueue.change_schedule", obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Store it by the API; who may change only some rows must be let at both, old and new."""
        stored: Any = self.get_queryset(request).filter(pk=obj.pk).first() if change else None
        if stored and not all(self.has_change_permission(request, row) for row in (stored, obj)):
            raise PermissionDenied
        self.require_scope(request, obj)
        schedules = Schedules(using=database())
        by = str(request.user)
        if stored:
            form.terms["context"] = stored.surroundings
        row = schedules.put(obj.name, obj.type, form.payload_data(), by=by, **form.terms).row()
        obj.pk, obj._state.db = row.pk, database()
        ticks = ", ".join(moment(tick) for tick in schedules[obj.name].next(NEXT))
        if ticks:
            self.message_user(request, gettext("The next ticks: %s.") % ticks, messages.INFO)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        Schedules(using=database())[obj.name].delete(by=str(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    @admin.action(description=_("Run now"), permissions=["change"])
    def run(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.steer(request, "run", queryset[:CAP])

    @admin.action(description=_("Pause, with the note"), permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.steer(request, "pause", queryset.filter(paused=False)[:CAP])

    @admin.action(description=_("Unpause"), permissions=["change"])
    def unpause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.steer(request, "unpause", queryset.filter(paused=True)[:CAP])

    def steer_view(self, request: HttpRequest, pk: int, verb: str) -> HttpResponse:
        """Do what a button of the change page says."""
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        row = self.get_queryset(request).filter(pk=pk).first()
        if verb not in VERBS or row is None:
            raise Http404
        if not self.has_change_permission(request, row):
            raise PermissionDenied
        self.steer(request, verb, [row])
        return HttpResponseRedirect(page_url("schedule_change", pk))

    def steer(self, request: HttpRequest, verb: str, rows: Iterable[Any]) -> None:
        """Do it to each of at most CAP rows, and say what came of it."""
        done, note = 0, request.POST.get("note", "")
        for row in rows:
            try:
                with acting(request):
                    do(verb, Schedules(using=database())[row.name], note, str(request.user))
            except PerfectQueueError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                done += 1
                self.log_change(request, row, str(VERBS[verb]))
        if done and verb == "run":
            text = ngettext(
                "%(count)d task was submitted.", "%(count)d tasks were submitted.", done
            )
            self.message_user(request, text % {"count": done}, messages.SUCCESS)
        elif done:
            self.report_paused(request, done, verb == "pause")
        if done == CAP:
            text = gettext("At most %(cap)s rows are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)


def do(verb: str, schedule: ScheduleHandle, note: str, by: str) -> None:
    if verb == "run":
        schedule.trigger(by=by)
    elif verb == "pause":
        schedule.pause(note, by=by)
    else:
        schedule.unpause(by=by)


def tick_row(request: HttpRequest, task: Task) -> list[object]:
    """Return one of the last ticks, with a link for who may see its task."""
    tick: object = printable(task.key.rpartition("@")[2])
    if request.user.has_perm("perfectqueue.view_task"):
        url = page_url("task_change", task.pk)
        tick = format_html('<a href="{}">{}</a>', url, tick)
    return [tick, badge(task.status)]
