"""
Limits: how many tasks may run at once, or start within a time; who changed which rule; and what
the pages of shares, limits, weights and schedules have in common: they are edited and paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.fairness import audit, edit
from django_perfectqueue.fairness.limits import next_at, unfit, with_meters
from django_perfectqueue.fairness.wording import members_of, origin_of, queue_of, rate_of, user_of
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.checks import text
from django_perfectqueue.lib.durations import time_to_come
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Limit
from django_perfectqueue.payload.codecs import LIMIT_LENGTH
from django_perfectqueue.payload.inputs import KEY_LENGTH
from django_perfectqueue.queue import database
from django_perfectqueue.schedules.terms import known_types
from django_perfectqueue.store.arithmetic.rate_limit import covering
from django_perfectqueue.store.records.counts import names
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts import base
from ..parts.base import Extra, ReadOnlyAdmin, StoredAdmin, column
from ..parts.filters import ValueFilter

SHOWN = 100
SCOPES = {"name": _("name"), "queue": _("queue"), "type": _("type"), "user": _("user")}


class Suggesting(forms.TextInput):
    """A text with a list of what it may be; another one can be typed in, too."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = list(values)
        super().__init__({"class": "vTextField"})

    def render(self, name: str, value: object, *given: Any, **options: Any) -> SafeString:
        self.attrs["list"] = f"pq-{name}"
        shown = super().render(name, value, *given, **options)
        known = format_html_join("", '<option value="{}">', ((one,) for one in self.values))
        return format_html('{}<datalist id="pq-{}">{}</datalist>', shown, name, known)


class PauseTerms(forms.Form):
    """Until when something is paused, and why."""

    until = forms.CharField(label=_("Until"), required=False)
    note = forms.CharField(label=_("Note of a pause"), required=False, max_length=255)
    until.widget.attrs["placeholder"] = _("1h, 04:00 or 2026-11-24T04:00")

    def clean_until(self) -> datetime | None:
        text = self.cleaned_data["until"].strip()
        try:
            return time_to_come(text) if text else None
        except (ValueError, OverflowError) as error:
            message = gettext("Give a time to come such as 1h, 04:00 or 2026-11-24T04:00.")
            raise forms.ValidationError(message) from error


class PauseForm(ActionForm):
    """The list's choice of an action, with the terms of a pause beside it."""

    until, note = PauseTerms.base_fields["until"], PauseTerms.base_fields["note"]


class RuleForm(base.ModelForm):
    """Looks for another row of the same owner where the rows are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance._state.db = self.instance._state.db or database()


class RuleAdmin(StoredAdmin):
    """Rows whose ``owner`` can't be changed later; who changes what of one is kept."""

    form = RuleForm
    owner: tuple[str, ...]
    actions: Sequence[str] = ("pause", "unpause")
    object_history_template = "admin/perfectqueue/history.html"

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.owner if obj else ()

    def formfield_for_dbfield(
        self, db_field: Any, request: HttpRequest, **kwargs: object
    ) -> forms.Field | None:
        """Name the fields that are edited in the list, where they have no label."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and db_field.name in self.list_editable:
            field.widget.attrs["aria-label"] = db_field.verbose_name
        return field

    def save_model(self, request: HttpRequest, obj: Model, form: object, change: bool) -> None:
        self.require_scope(request, obj)
        obj.save(using=database())

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        obj.delete(using=database())

    @admin.action(description=_("Pause"), permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.pause_each(request, queryset, self.pause_terms(request))

    @admin.action(description=_("Unpause"), permissions=["change"])
    def unpause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.pause_each(request, queryset, {})

    def pause_as_asked(self, request: HttpRequest, names: Sequence[str]) -> None:
        """Pause what has these names, or let it go on, as the button says that was pressed."""
        terms = self.pause_terms(request) if "pause" in request.POST else {}
        self.pause_each(request, names, terms)

    def pause_terms(self, request: HttpRequest) -> dict[str, object] | None:
        """Return what was typed in beside a pause; say what is wrong and return None."""
        form = PauseTerms(request.POST)
        if form.is_valid():
            return edit.pause(True, form.cleaned_data["until"], form.cleaned_data["note"])
        for error in form.errors.values():
            self.message_user(request, " ".join(map(str, error)), messages.ERROR)
        return None

    def set_paused(self, one: Any, terms: Mapping[str, Any]) -> bool:
        """
        Pause a row, or on a page of names what has this name, or without ``terms`` let it go on;
        return whether it was otherwise.
        """
        raise NotImplementedError

    def pause_each(self, request: HttpRequest, some: Any, terms: Mapping[str, Any] | None) -> None:
        """Pause some rows or names, or with empty terms let them go on; None does nothing."""
        if terms is not None:
            what = _("paused") if terms else _("unpaused")
            self.do_each(request, some, lambda one: self.set_paused(one, terms), what)

    def do_each(
        self, request: HttpRequest, some: Any, act: Callable[[Any], object], what: object
    ) -> None:
        """
        Do something to each of at most CAP rows or names; say to how many it was done, and why it
        was not possible.
        """
        chosen, done, failed = list(some[: base.CAP + 1]), 0, False
        for one in chosen[: base.CAP]:
            try:
                changed = act(one)
            except PerfectQueueError as error:
                self.message_user(request, str(error), messages.ERROR)
                failed = True
                continue
            if changed is not False:
                done += 1
                if isinstance(one, Model):
                    self.log_change(request, one, str(what))
        if done or not failed:
            self.say_done(request, done, what)
        self.say_capped(request, chosen)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Extra = None
    ) -> HttpResponse:
        """Show who has changed it, through whichever door."""
        row = self.get_object(request, unquote(object_id))
        changes = audit.changes_of(row, using=database())[:SHOWN] if row else []
        context = {**(extra_context or {}), "changes": changes}
        return super().history_view(request, object_id, context)


def pause_all_of(scope: str, name: str, terms: Mapping[str, Any]) -> bool:
    """Pause a queue or a type by its limit, or without ``terms`` let it go on."""
    owner = {"scope": scope, "name": name}
    if not terms:
        return edit.end_pause(Limit, owner | {"paused": True}, using=database())
    edit.change(Limit, owner, terms, using=database())
    return True


class LimitForm(RuleForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "name" in self.fields:
            queues, types = names(using=database()).queues, known_types(using=database())
            self.fields["name"].widget = Suggesting([*queues, *sorted(types)])

    def clean(self) -> dict[str, object]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if reason := unfit(cleaned.get("scope", ""), cleaned.get("name", "")):
            self.add_error("name", reason)
        if cleaned.get("burst") and "rate" in cleaned and not cleaned["rate"]:
            self.add_error("burst", gettext("A burst needs a rate."))
        return cleaned


@admin.register(Limit)
class LimitAdmin(RuleAdmin):
    form = LimitForm
    action_form = PauseForm
    owner = ("scope", "name")
    list_display = [
        "named",
        "of_scope",
        "running",
        "names",
        "max_running",
        "rate_in_words",
        "at_once",
        "next",
        "tasks",
    ]
    list_display_links = ["named"]
    list_editable = ["max_running"]
    list_filter = ["scope", "paused"]
    ordering = ["scope", "name"]
    search_fields = ["name"]
    fields = [*owner, "max_running", "rate", "period", "burst", "paused", "paused_until", "note"]

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Pause a type, or let it go on, as a button beside its figures says."""
        if "type" not in request.POST:
            return super().changelist_view(request, extra_context)
        type_ = request.POST["type"]
        if not self.has_add_permission(request) or not self.has_change_permission(request):
            raise PermissionDenied
        if not type_ or not text(KEY_LENGTH).holds(type_):
            raise BadRequest
        self.pause_as_asked(request, [type_])
        query = {"queue": request.POST.get("queue", ""), "type": type_}
        return HttpResponseRedirect(f"{cells.page_url('figures')}?{urlencode(query)}")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """Find also the families that hold for a name."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        families = covering([search_term[:LIMIT_LENGTH]]) if search_term else []
        return found | queryset.filter(name__in=families), may_repeat

    def complete(self, request: HttpRequest, rows: Any) -> None:
        with_meters(rows, using=database())

    def set_paused(self, one: Limit | str, terms: Mapping[str, Any]) -> bool:
        scope, name = (Limit.Scope.TYPE, one) if isinstance(one, str) else (one.scope, one.name)
        return pause_all_of(scope, name, terms)

    named = column(
        _("name"),
        lambda limit: format_html(
            '{}{} <span class="pq-quiet">{}</span>',
            printable(limit.name),
            cells.paused_mark(limit),
            origin_of(limit),
        ),
        ordering="name",
    )
    of_scope = column(_("scope"), lambda limit: SCOPES[limit.scope], ordering="scope")
    running = column(_("running"), lambda limit: limit.meter.running)
    names = column(_("names that run"), lambda limit: members_of(limit) or cells.NOTHING)
    rate_in_words = column(_("rate"), lambda limit: rate_of(limit) or cells.NOTHING)
    at_once = column(_("burst"), lambda limit: limit.burst or cells.NOTHING)
    next = column(_("next start"), lambda limit: cells.short(next_at(limit, timezone.now())))

    @admin.display(description=_("tasks"))
    def tasks(self, limit: Limit) -> SafeString | str:
        """Return a link to the tasks that it limits; no filter finds those that list a name."""
        if limit.scope == Limit.Scope.NAME or limit.is_family:
            return cells.NOTHING
        return cells.tasks_link(_("tasks"), **{limit.scope: limit.name})


class KindFilter(ValueFilter):
    title = _("kind")
    parameter_name = "kind"
    words = dict(Change.Kind.choices)


@admin.register(Change)
class ChangeAdmin(ReadOnlyAdmin):
    list_display = ["when", "who", "of", "what"]
    list_display_links = None
    list_filter = [KindFilter]
    list_per_page = 50
    ordering = ["-id"]
    search_fields = ["name"]
    search_help_text = _("A user, a key, or a limit such as name:smtp, exactly.")

    def sought(self, request: HttpRequest, term: str) -> Q:
        return Q(kind__in=Change.Kind.values, name=term)

    when = column(_("at"), lambda change: cells.ago(change.at))
    who = column(_("by"), lambda change: change.by or cells.NOTHING)

    @admin.display(description=_("of"))
    def of(self, change: Change) -> str:
        if change.kind == Change.Kind.LIMIT:
            return gettext("limit %s") % change.name
        if change.kind == Change.Kind.SCHEDULE:
            return printable(gettext("schedule '%s'") % change.name)
        if change.kind == Change.Kind.RELEASE:
            return printable(gettext("release %s") % change.name)
        if change.kind == Change.Kind.QUEUE:
            return queue_of(change.queue)
        if change.kind == Change.Kind.TASK:
            words = {"key": change.name, "queue": queue_of(change.queue)}
            return printable(gettext("task '%(key)s', %(queue)s") % words)
        return f"{user_of(change.name)}, {queue_of(change.queue)}"

    what = column(_("change"), describe_change)
