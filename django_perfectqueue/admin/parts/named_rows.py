"""Pages of names in place of a list of rows: figures, values edited in place, and pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.report import MOST
from django_perfectqueue.inspection.scope import may_see
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.checks import text
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change

from .cells import NOTHING, moment
from .rule_admin import RuleAdmin

TRAIL = 20


class NamedRows(RuleAdmin):
    """
    A page of names, and with a name in the URL, as ``named_by`` says, the page of that one.

    ``editable`` are the columns of the model that are edited in place.
    """

    named_by = ""
    longest = 255
    editable: Sequence[str] = ()
    help: object = ""

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
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

    def set_paused_name(self, name: str, terms: Mapping[str, Any] | None, by: str) -> bool:
        """Pause what has a name, or without ``terms`` let it go on; return if it was otherwise."""
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

    def trail(self, changes: Any) -> list[tuple[str, str, str]]:
        """Return the newest of some changes: when, by whom and what."""
        newest: Sequence[Change] = changes.order_by("-pk")[:TRAIL]
        return [(moment(one.at), one.by or NOTHING, describe_change(one)) for one in newest]

    # What is done.

    def carry_out(self, request: HttpRequest) -> None:
        """Do what a button says, and say what came of it."""
        try:
            if "save" in request.POST:
                self.save_rows(request)
            elif {"pause", "unpause"} & set(request.POST):
                self.pause_rows(request)
        except ConfigError as error:
            self.message_user(request, str(error), messages.ERROR)

    def save_rows(self, request: HttpRequest) -> None:
        keys = [f"name-{number}" for number in range(MOST + 1)]
        names = [request.POST[key] for key in keys if key in request.POST]
        if not self.has_change_permission(request):
            raise PermissionDenied
        rules = self.rules(request, self.checked(request, names))
        changed = 0
        for number, name in enumerate(names):
            try:
                given = self.edited(request, number, rules[name])
            except ValidationError as error:
                words = f"{printable(name)}: {' '.join(error.messages)}"
                self.message_user(request, words, messages.ERROR)
                continue
            if given:
                row = self.change(name, rules[name], given, str(request.user))
                self.log_change(request, row, ", ".join(given))
                changed += 1
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
            by = str(request.user)
            done = sum([self.set_paused_name(name, terms or None, by) for name in names])
            self.report_paused(request, done, bool(terms))

    def checked(self, request: HttpRequest, names: list[str]) -> list[str]:
        """Return names from a form. Raise PermissionDenied for those of others than the scope's."""
        if not all(self.is_open_for(request, name) for name in names):
            raise PermissionDenied
        return names


def shown(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
