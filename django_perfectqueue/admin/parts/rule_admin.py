"""What the pages of shares and limits have in common: they are edited, paused, and audited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
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
from django_perfectqueue.queue import database

from .action_pages import CAP
from .base import QueueAdmin
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


class RuleForm(ModelForm):
    """Looks for another row of the same owner where the rows are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance._state.db = self.instance._state.db or database()


class RuleAdmin(QueueAdmin):
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
        if count := self.set_paused(request, queryset, True, _("Paused.")):
            history = ngettext("%(count)d was paused.", "%(count)d were paused.", count)
            self.message_user(request, history % {"count": count}, messages.SUCCESS)

    @admin.action(description=_("Unpause selected %(verbose_name_plural)s"), permissions=["change"])
    def unpause(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        if count := self.set_paused(request, queryset, False, _("Unpaused.")):
            history = ngettext("%(count)d was unpaused.", "%(count)d were unpaused.", count)
            self.message_user(request, history % {"count": count}, messages.SUCCESS)

    def set_paused(
        self, request: HttpRequest, queryset: QuerySet[Model], paused: bool, what: object
    ) -> int:
        """Pause at most CAP rows, or let them go on; return how many, and warn if it is none."""
        others = list(queryset.filter(paused=not paused)[: CAP + 1])
        done = []
        with acting(request):
            for row in others[:CAP]:
                owner = {name: getattr(row, name) for name in self.owner}
                if edit.set_paused(self.model, owner, paused, using=database()):
                    done.append(row)
        if done:
            user: Any = request.user.pk
            LogEntry.objects.log_actions(user, done, CHANGE, str(what))
        else:
            text = gettext("Nothing had to be done: they are all so already.")
            self.message_user(request, text, messages.INFO)
        if len(others) > CAP:
            text = gettext("At most %(cap)s rows are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)
        return len(done)

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
