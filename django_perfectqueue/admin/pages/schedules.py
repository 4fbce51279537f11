"""Schedules: what is submitted again and again, when next, and how the last ones ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_perfectqueue import store
from django_perfectqueue.backoff import restored
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import PayloadError, PerfectQueueError
from django_perfectqueue.inspection.schedules import in_words, standing, with_statuses
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.inspection.task import waits_in_words
from django_perfectqueue.lib.durations import seconds_in
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Schedule
from django_perfectqueue.models.schedule import OPTIONS
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import masked
from django_perfectqueue.queue import database
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.schedules.schedules import check_user
from django_perfectqueue.schedules.terms import (
    CHECKS,
    Terms,
    apply,
    checked_name,
    checked_payload,
    checked_type,
    known_types,
)
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts.base import Extra, column
from .limits import PauseForm, RuleAdmin, RuleForm, Suggesting

WHEN = ("cron", "every", "timezone", "starts_at", "ends_at", "remaining", "delay", "jitter")
WHEN_HELP = _(
    "Give a cron expression or an interval. After a change the next tick is the first one from now."
)
RULES = ("overlap", "catch_up", "deadline", "pause_after", "time_limit", "expires_after")
SPANS = ("every", "time_limit", "expires_after", "delay", "jitter", "deadline")


class SpanField(forms.CharField):
    """Seconds, or a span such as 15m."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "required": False})

    def to_python(self, value: object) -> float | None:  # type: ignore[override]
        text = super().to_python(value)
        if not text:
            return None
        try:
            found = seconds_in(text)
            return float(text) if found is None else found
        except ValueError:
            message = gettext("Give seconds, or a span such as '90s', '15m' or '1d12h'.")
            raise forms.ValidationError(message) from None

    def prepare_value(self, value: object) -> object:
        return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


class ScheduleForm(RuleForm):
    """A schedule as people write it; ``terms`` are those of Schedules.put() once it is valid."""

    type = forms.CharField(
        label=_("Type"), help_text=_("The type of its tasks; only types with a handler.")
    )
    data = forms.JSONField(  # type: ignore[assignment]
        label=_("Data"), required=False, help_text=_("The data of its tasks, as JSON.")
    )

    tags = forms.CharField(label=_("Tags"), required=False, help_text=_("With commas."))
    sequence = forms.CharField(
        label=_("Sequence"),
        required=False,
        help_text=_("Its tasks run one after the other, with all others of this sequence."),
    )
    max_attempts = forms.IntegerField(
        label=_("Most attempts"), required=False, help_text=_("Empty: as the handler says.")
    )
    backoff = forms.CharField(
        label=_("Waits between attempts"),
        required=False,
        help_text=_("30s, or one after the other 10s,1m,5m. Empty: as the handler says."),
    )

    class Meta:
        model = Schedule
        fields = ("name", "type", *(term for term in CHECKS if term not in OPTIONS))
        field_classes = dict.fromkeys(SPANS, SpanField)
        help_texts = dict.fromkeys(("every", "time_limit"), _("Seconds, or a span such as 15m."))

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance.pk:
            self.initial["queue"] = self.initial.get("queue") or options().DEFAULT_QUEUE
        if "type" in self.fields:
            self.fields["type"].widget = Suggesting(sorted(known_types(using=database())))
        if "data" in self.fields and self.instance.pk:
            self.prepare_data()
            row, waits = self.instance, waits_in_words(self.instance.backoff)
            own = (", ".join(row.tags), row.sequence, row.max_attempts, waits)
            self.initial.update(zip(OPTIONS, own, strict=True))

    def prepare_data(self) -> None:
        """Show the data; what is masked, or can't be read, is shown only, and stays."""
        try:
            found = decode(self.instance.payload)
        except PayloadError:
            found = None
            self.fields["data"].disabled = True
        shown = masked(found)
        self.fields["data"].disabled |= shown != found
        self.initial["data"] = shown

    def payload_data(self) -> object:
        """Return the data to store; raise PayloadError for stored data that can't be read."""
        if self.fields["data"].disabled:
            return decode(self.instance.payload)
        return self.cleaned_data["data"]

    def clean(self) -> dict[str, object]:
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        now = store.records.clock(using=database())
        terms: Any = {name: cleaned[name] for name in CHECKS if name in cleaned}
        if "limits" in terms:
            terms["limits"] = [part for part in terms["limits"].split(",") if part]
        if "tags" in terms:
            terms["tags"] = [tag.strip() for tag in terms["tags"].split(",") if tag.strip()]
        if terms.get("backoff") and "backoff" not in self.changed_data:
            terms["backoff"] = restored(*self.instance.backoff)
        for name in list(terms):
            self.check(name, CHECKS[name], name, terms[name], now)
        self.check("name", checked_name, cleaned.get("name") or self.instance.name or "-")
        if (field := self.fields.get("data")) and not field.disabled:
            self.check("data", checked_payload, cleaned.get("data"), cleaned.get("type") or "")
        if cleaned.get("type"):
            self.check("type", lambda type_: checked_type(type_, using=database()), cleaned["type"])
        if not self.errors:
            blank = Schedule(name=self.instance.name)
            starts, ends = terms.get("starts_at"), terms.get("ends_at")
            place = "ends_at" if starts and ends and ends < starts else "cron"
            self.check(place, apply, blank, terms, now)
            self.row = blank
        if not self.errors and "user" in terms:
            former = {"user": self.initial.get("user")} if self.instance.pk else None
            self.check("user", lambda: check_user(self.row, former, using=database()))
        self.terms: Terms = terms
        return cleaned

    def check(self, name: str, function: Any, *values: Any) -> None:
        """Add what a check of the API raises to its field."""
        try:
            function(*values)
        except PerfectQueueError as error:
            self.add_error(name if name in self.fields else None, str(error))


def data_shown(row: Schedule) -> str:
    """Return the data as JSON, with sensitive values masked, for people who may only look."""
    try:
        return json.dumps(masked(decode(row.payload)), ensure_ascii=False)
    except PayloadError:
        return gettext("It can't be read.")


NEXT = 5
LAST = 10
VERBS = {"run": _("Run now"), "pause": _("Pause"), "unpause": _("Unpause")}


class NoteForm(PauseForm):
    """The list's choice of an action; the pause of a schedule has a note and no end."""

    until: Any = None


@admin.register(Schedule)
class ScheduleAdmin(RuleAdmin):
    form = ScheduleForm
    user_path = "user"
    owner = ("name",)
    has_clock = True
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
        (_("When"), {"fields": WHEN, "description": WHEN_HELP}),
        (_("Rules"), {"fields": RULES}),
        (_("Its tasks"), {"fields": [*OPTIONS]}),
    ]

    def complete(self, request: HttpRequest, rows: Any) -> None:
        """Add the status of the last task to each."""
        with_statuses(rows, using=database())

    def get_urls(self) -> list[URLPattern]:
        steer = require_POST(self.steer_view)
        return [
            self.view_path("<int:pk>/steer/<slug:verb>/", steer, "schedule_steer"),
            *super().get_urls(),
        ]

    # What is shown.

    @admin.display(description=_("name"), ordering="name")
    def named(self, row: Schedule) -> SafeString:
        paused = cells.mark("failed", _("paused")) if row.paused else ""
        return format_html("{} {}", printable(row.name), paused)

    kind = column(_("type"), lambda row: cells.broken_at_dots(row.type), ordering="type")
    timing = column(_("when"), lambda row: printable(in_words(row)))
    next = column(_("next"), lambda row: cells.short(row.due_at), ordering="due_at")

    @admin.display(description=_("last"), ordering="last_at")
    def last(self, row: Any) -> SafeString | str:
        if row.last_at is None:
            return cells.NOTHING
        shown = cells.badge(row.last_status) if row.last_status else ""
        return format_html("{} {}", cells.short(row.last_at), shown)

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
        extra_context: Extra = None,
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
        last = [task for task in schedule.last(LAST) if may_see(request, task.user)]
        return {
            "standing": printable(standing(row, row.clock)),
            "is_broken": bool(row.problem),
            "in_words": printable(in_words(row)),
            "verbs": [(verb, VERBS[verb]) for verb in verbs] if allowed else [],
            "ahead": schedule.next(NEXT),
            "last": last,
            "counts": [
                (Schedule._meta.get_field(name).verbose_name, getattr(row, name))  # type: ignore[union-attr]
                for name in ("fired", "skipped_overlap", "skipped_late", "failures")
            ],
        }

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
        if stored:
            form.terms["context"] = stored.surroundings
        row = schedules.put(obj.name, obj.type, form.payload_data(), **form.terms).row()
        obj.pk, obj._state.db = row.pk, database()
        ticks = ", ".join(cells.moment(tick) for tick in schedules[obj.name].next(NEXT))
        if ticks:
            self.message_user(request, gettext("The next ticks: %s.") % ticks, messages.INFO)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        Schedules(using=database())[obj.name].delete()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    @admin.action(description=_("Run now"), permissions=["change"])
    def run(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        schedules = Schedules(using=database())
        self.do_each(request, queryset, lambda row: schedules[row.name].trigger(), _("run now"))

    def pause_terms(self, request: HttpRequest) -> dict[str, object]:
        return {"paused": True, "note": request.POST.get("note", "")}

    def set_paused(self, one: Schedule, terms: Mapping[str, Any]) -> bool:
        schedule, note = Schedules(using=database())[one.name], terms.get("note", "")
        if (one.paused, one.note) == (bool(terms), note):
            return False
        if terms:
            schedule.pause(note)
        else:
            schedule.unpause()
        return True

    def steer_view(self, request: HttpRequest, pk: int, verb: str) -> HttpResponse:
        """Do what a button of the change page says."""
        rows = self.get_queryset(request).filter(pk=pk)
        row = rows.first()
        if verb not in VERBS or row is None:
            raise Http404
        if not self.has_change_permission(request, row):
            raise PermissionDenied
        getattr(self, verb)(request, rows)
        return HttpResponseRedirect(cells.page_url("schedule_change", pk))
