"""
What the pages of shares, limits, weights and schedules have in common: they are edited, paused,
and audited; and pages of names in place of a list of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import ConfigError, PerfectQueueError
from django_perfectqueue.fairness import audit, edit
from django_perfectqueue.fairness.report import MOST
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.checks import text
from django_perfectqueue.lib.durations import time_in
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Limit
from django_perfectqueue.queue import database

from .action_pages import CAP
from .base import NOTHING, Extra, StoredAdmin, moment

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm

SHOWN, TRAIL = 100, 20


class Suggesting(forms.TextInput):
    """A text with a list of what it may be; another one can be typed in, too."""

    def __init__(self, values: Iterable[str], attrs: dict[str, object] | None = None) -> None:
        self.values = list(values)
        super().__init__({**(attrs or {}), "class": "vTextField"})

    def render(self, name: str, value: object, *given: Any, **options: Any) -> SafeString:
        self.attrs["list"] = f"pq-{name}"
        shown = super().render(name, value, *given, **options)
        known = format_html_join("", '<option value="{}">', ((one,) for one in self.values))
        return format_html('{}<datalist id="pq-{}">{}</datalist>', shown, name, known)


class PauseFields(forms.Form):
    until = forms.CharField(label=_("Until"), required=False)
    note = forms.CharField(label=_("Note of a pause"), required=False, max_length=255)
    until.widget.attrs["placeholder"] = _("1h, 04:00 or 2026-11-24T04:00")


class PauseForm(ActionForm, PauseFields):
    """The list's choice of an action, with the terms of a pause beside it."""


class PauseTerms(PauseFields):
    """Until when something is paused, and why."""

    def clean_until(self) -> datetime | None:
        text = self.cleaned_data["until"].strip()
        try:
            return time_in(text, 1) if text else None
        except (ValueError, OverflowError) as error:
            message = gettext("Give a time such as 1h, 04:00 or 2026-11-24T04:00.")
            raise forms.ValidationError(message) from error


class RuleForm(ModelForm):
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
        with acting(request):
            obj.save(using=database())

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with acting(request):
            obj.delete(using=database())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        with acting(request):
            queryset.using(database()).delete()

    @admin.action(description=_("Pause selected %(verbose_name_plural)s"), permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        if terms := self.pause_terms(request):
            self.pause_each(request, queryset.exclude(**terms), terms)

    @admin.action(description=_("Unpause selected %(verbose_name_plural)s"), permissions=["change"])
    def unpause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.pause_each(request, queryset.filter(paused=True))

    def pause_terms(self, request: HttpRequest) -> dict[str, object] | None:
        """Return what was typed in beside a pause; say what is wrong and return None."""
        form = PauseTerms(request.POST)
        if form.is_valid():
            return edit.pause(True, form.cleaned_data["until"], form.cleaned_data["note"])
        for error in form.errors.values():
            self.message_user(request, " ".join(map(str, error)), messages.ERROR)
        return None

    def set_paused(self, one: Any, terms: Mapping[str, Any] | None, by: str) -> bool:
        """
        Pause a row, or on a page of names what has this name, or without ``terms`` let it go on;
        return whether it was otherwise.
        """
        raise NotImplementedError

    def pause_each(
        self, request: HttpRequest, some: Any, terms: Mapping[str, object] | None = None
    ) -> None:
        """Pause some rows or names, or without ``terms`` let them go on; report how many."""
        by = str(request.user)
        what = _("Paused.") if terms else _("Unpaused.")
        done = self.do_each(request, some, lambda one: self.set_paused(one, terms, by), what)
        if not done:
            report = gettext("Nothing changed: all are in this state already.")
        elif terms:
            report = ngettext("%(count)d was paused.", "%(count)d were paused.", done)
        else:
            report = ngettext("%(count)d was unpaused.", "%(count)d were unpaused.", done)
        self.message_user(
            request, report % {"count": done}, messages.SUCCESS if done else messages.INFO
        )

    def do_each(
        self, request: HttpRequest, some: Any, act: Callable[[Any], object], what: object
    ) -> int:
        """
        Do something to each of at most CAP rows or names, and say why it was not possible;
        return to how many it was done.
        """
        chosen, done = list(some[: CAP + 1]), 0
        for one in chosen[:CAP]:
            try:
                with acting(request):
                    changed = act(one)
            except PerfectQueueError as error:
                self.message_user(request, str(error), messages.ERROR)
                continue
            if changed is not False:
                done += 1
                if isinstance(one, Model):
                    self.log_change(request, one, str(what))
        if len(chosen) > CAP:
            text = gettext("At most %(cap)s rows are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)
        return done

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Extra = None
    ) -> HttpResponse:
        """Show who has changed it, through whichever door."""
        row = self.get_object(request, unquote(object_id))
        changes = audit.changes_of(row, using=database())[:SHOWN] if row else []
        context = {**(extra_context or {}), "story": trail(changes)}
        return super().history_view(request, object_id, context)


def pause_all_of(scope: str, name: str, terms: Mapping[str, Any] | None, by: str) -> bool:
    """Pause a queue or a type by its limit, or without ``terms`` let it go on."""
    owner = {"scope": scope, "name": name}
    if terms is None:
        return edit.end_pause(Limit, owner | {"paused": True}, using=database(), by=by)
    edit.change(Limit, owner, terms, using=database(), by=by)
    return True


def acting(request: HttpRequest) -> AbstractContextManager[None]:
    return audit.acting(str(request.user))


def trail(changes: Iterable[Change]) -> list[tuple[str, str, str]]:
    """Return changes as they are shown: when, by whom and what."""
    return [(moment(one.at), one.by or NOTHING, describe_change(one)) for one in changes]


class NamedRows(RuleAdmin):
    """
    A page of names, and with a name in the URL, as ``named_by`` says, the page of that one.

    ``editable`` are the columns of the model that are edited in place.
    """

    named_by = ""
    longest = 255
    editable: Sequence[str] = ()
    help: object = ""

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        name = request.GET.get(self.named_by)
        if not self.has_view_permission(request) or not self.is_open_for(request, name):
            raise PermissionDenied
        if name is not None and not text(self.longest).holds(name):
            raise BadRequest
        if request.method == "POST":
            self.carry_out(request)
            return HttpResponseRedirect(request.get_full_path())
        names = self.opts.verbose_name_plural
        context = {
            "title": str(names).strip(),
            "original": str(names).strip() if name is None else printable(name) or NOTHING,
            "noun": self.named_by,
            "noun_shown": self.model._meta.get_field(self.named_by).verbose_name,
            "fields": [self.model._meta.get_field(column).verbose_name for column in self.editable],
            "help": self.help,
            "is_editable": self.has_change_permission(request),
            "is_pausable": self.may_pause(request),
            "name": name,
            **self.listing(request, name),
            **(extra_context or {}),
        }
        return self.page(request, "names", context)

    # What a page of names has of its own.

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        """Return the rows, with their ``titles``, of all or of the one with this name."""
        raise NotImplementedError

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the row that holds for each of these names."""
        raise NotImplementedError

    def change(self, name: str, rule: Any, given: Mapping[str, object], by: str) -> Model:
        """Store values that were edited in place; return the row."""
        raise NotImplementedError

    def may_pause(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def is_open_for(self, request: HttpRequest, name: str | None) -> bool:
        """Return whether the scope of a person has this name."""
        return name is None or not self.user_path or may_see(request, name)

    # What is shown.

    def in_place(
        self, request: HttpRequest, number: int, name: str, rule: Any
    ) -> dict[str, list[SafeString]]:
        """Return the fields of a row that are edited in place; the first carries the name."""
        columns: list[Any] = list(map(self.model._meta.get_field, self.editable))
        values = [shown(getattr(rule, column.name)) for column in columns]
        if not self.has_change_permission(request):
            return {"fields": [format_html("{}", value or NOTHING) for value in values]}
        widgets = [
            column.formfield().widget.render(
                f"{column.name}-{number}",
                value,
                {"class": "pq-in-place", "aria-label": f"{column.verbose_name}: {printable(name)}"},
            )
            for column, value in zip(columns, values, strict=True)
        ]
        hidden = format_html('<input type="hidden" name="name-{}" value="{}">', number, name)
        return {"fields": [format_html("{}{}", hidden, widgets[0]), *widgets[1:]]}

    def trail(self, changes: QuerySet[Change]) -> list[tuple[str, str, str]]:
        return trail(changes.order_by("-pk")[:TRAIL])

    # What is done.

    def carry_out(self, request: HttpRequest) -> None:
        """Do what a button says, and say what came of it."""
        if "save" in request.POST:
            self.save_rows(request)
        elif {"pause", "unpause"} & set(request.POST):
            self.pause_rows(request)

    def save_rows(self, request: HttpRequest) -> None:
        keys = [f"name-{number}" for number in range(MOST + 1)]
        names = [request.POST[key] for key in keys if key in request.POST]
        if not self.has_change_permission(request):
            raise PermissionDenied
        rules = self.rules(request, self.checked(request, names))
        changed = 0
        for number, name in enumerate(names):
            try:
                if given := self.edited(request, number, rules[name]):
                    row = self.change(name, rules[name], given, str(request.user))
                    self.log_change(request, row, ", ".join(given))
                    changed += 1
            except (ValidationError, ConfigError) as error:
                words = " ".join(getattr(error, "messages", [str(error)]))
                self.message_user(request, f"{printable(name)}: {words}", messages.ERROR)
        if changed:
            self.message_user(request, gettext("Saved: %d.") % changed, messages.SUCCESS)

    def edited(self, request: HttpRequest, number: int, rule: Any) -> dict[str, object]:
        """Return the values of a row that differ. Raise ValidationError for what can't be one."""
        found = {}
        for column in self.editable:
            field: Any = self.model._meta.get_field(column)
            typed = request.POST.get(f"{column}-{number}", "")
            value = field.clean(field.formfield().clean(typed), rule)
            if value != getattr(rule, column):
                found[column] = value
        return found

    def pause_rows(self, request: HttpRequest) -> None:
        if not self.may_pause(request):
            raise PermissionDenied
        names = self.checked(request, request.POST.getlist("chosen")[:MOST])
        terms = self.pause_terms(request) if "pause" in request.POST else {}
        if terms is not None:
            self.pause_each(request, names, terms or None)

    def checked(self, request: HttpRequest, names: list[str]) -> list[str]:
        """Return names from a form. Raise PermissionDenied for those of others than the scope's."""
        if not all(self.is_open_for(request, name) for name in names):
            raise PermissionDenied
        return names


def shown(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
