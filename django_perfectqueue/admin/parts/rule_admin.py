"""What the pages of shares and limits have in common: they are edited, paused, and audited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness import audit, edit
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.durations import time_in
from django_perfectqueue.queue import database

from .action_pages import CAP
from .base import StoredAdmin
from .cells import moment

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm

SHOWN = 100


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
            self.set_paused(request, queryset, terms)

    @admin.action(description=_("Unpause selected %(verbose_name_plural)s"), permissions=["change"])
    def unpause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        self.set_paused(request, queryset, {"paused": False})

    def pause_terms(self, request: HttpRequest) -> dict[str, object] | None:
        """Return what was typed in beside a pause; say what is wrong and return None."""
        form = PauseTerms(request.POST)
        if form.is_valid():
            return edit.pause(True, form.cleaned_data["until"], form.cleaned_data["note"])
        for error in form.errors.values():
            self.message_user(request, " ".join(map(str, error)), messages.ERROR)
        return None

    def set_paused(
        self, request: HttpRequest, queryset: QuerySet[Model], given: Mapping[str, object]
    ) -> None:
        """Pause at most CAP rows, or let them go on."""
        others = list(queryset.exclude(**given)[: CAP + 1])
        done = []
        with acting(request):
            for row in others[:CAP]:
                owner = {name: getattr(row, name) for name in self.owner}
                if edit.set_paused(self.model, owner, given, using=database()):
                    done.append(row)
        if done:
            user: Any = request.user.pk
            what = _("Paused.") if given["paused"] else _("Unpaused.")
            LogEntry.objects.log_actions(user, done, CHANGE, str(what))
        self.report_paused(request, len(done), bool(given["paused"]))
        if len(others) > CAP:
            text = gettext("At most %(cap)s rows are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)

    def report_paused(self, request: HttpRequest, count: int, paused: bool) -> None:
        """Say how many were paused, or go on, or that it is none."""
        if not count:
            text = gettext("Nothing had to be done: they are all so already.")
            self.message_user(request, text, messages.INFO)
            return
        if paused:
            text = ngettext("%(count)d was paused.", "%(count)d were paused.", count)
        else:
            text = ngettext("%(count)d was unpaused.", "%(count)d were unpaused.", count)
        self.message_user(request, text % {"count": count}, messages.SUCCESS)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Show who has changed it, through whichever door."""
        row = self.get_object(request, unquote(object_id))
        changes = audit.changes_of(row, using=database())[:SHOWN] if row else []
        history = [(moment(one.at), one.by, describe_change(one)) for one in changes]
        return super().history_view(request, object_id, {**(extra_context or {}), "story": history})


def acting(request: HttpRequest) -> AbstractContextManager[None]:
    return audit.acting(str(request.user))
