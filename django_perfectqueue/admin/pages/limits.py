"""Limits: how many tasks may run at once, or start within a time; and who changed which rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness import edit
from django_perfectqueue.fairness.limits import next_at, unfit
from django_perfectqueue.fairness.wording import queue_of, rate_of, user_of
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.checks import text
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, Limit, Meter
from django_perfectqueue.payload.inputs import KEY_LENGTH
from django_perfectqueue.queue import database
from django_perfectqueue.schedules.terms import known_types
from django_perfectqueue.store.records.counts import names

from ..parts.base import Extra, ReadOnlyAdmin, column
from ..parts.cells import NOTHING, ago, page_url, paused_mark, short, tasks_link
from ..parts.filters import ValueFilter
from ..parts.rules import PauseForm, RuleAdmin, RuleForm, Suggesting, pause_all_of

OWNER = ("scope", "name")
SCOPES = {"name": _("name"), "queue": _("queue"), "type": _("type"), "user": _("user")}


class LimitForm(RuleForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "name" in self.fields:
            found = names(using=database()).queues
            self.fields["name"].widget = Suggesting(
                [*found, *sorted({*known_types(using=database())})]
            )

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
    owner = OWNER
    list_display = [
        "named",
        "of_scope",
        "running",
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
    fields = [*OWNER, "max_running", "rate", "period", "burst", "paused", "paused_until", "note"]

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Pause a type, or let it go on, as a button beside its figures says."""
        if "type" not in request.POST:
            return super().changelist_view(request, extra_context)
        type_ = request.POST["type"]
        if not self.has_add_permission(request) or not self.has_change_permission(request):
            raise PermissionDenied
        if not type_ or not text(KEY_LENGTH).holds(type_):
            raise BadRequest
        terms = self.pause_terms(request) if "pause" in request.POST else {}
        if terms is not None:
            self.pause_each(request, [type_], terms or None)
        query = {"queue": request.POST.get("queue", ""), "type": type_}
        return HttpResponseRedirect(f"{page_url('figures')}?{urlencode(query)}")

    def complete(self, request: HttpRequest, rows: Any) -> None:
        meters = Meter.objects.using(database()).in_bulk([limit.key for limit in rows])
        for limit in rows:
            limit.meter = meters.get(limit.key)

    def set_paused(self, one: Limit | str, terms: Mapping[str, Any] | None, by: str) -> bool:
        if isinstance(one, str):
            return pause_all_of(Limit.Scope.TYPE, one, terms, by)
        owner = {"scope": one.scope, "name": one.name}
        return edit.set_paused(Limit, owner, terms or {"paused": False}, using=database())

    named = column(
        _("name"),
        lambda limit: format_html("{}{}", printable(limit.name), paused_mark(limit)),
        ordering="name",
    )
    of_scope = column(_("scope"), lambda limit: SCOPES[limit.scope], ordering="scope")
    running = column(_("running"), lambda limit: limit.meter.running if limit.meter else 0)
    rate_in_words = column(_("rate"), lambda limit: rate_of(limit) or NOTHING)
    at_once = column(_("burst"), lambda limit: limit.burst or NOTHING)

    @admin.display(description=_("tasks"))
    def tasks(self, limit: Limit) -> SafeString | str:
        """Return a link to the tasks that it limits; no filter finds those that list a name."""
        if limit.scope == Limit.Scope.NAME:
            return NOTHING
        return tasks_link(_("tasks"), **{limit.scope: limit.name})

    @admin.display(description=_("next start"))
    def next(self, limit: Limit) -> SafeString | str:
        metered = limit.meter.next_at if limit.meter else None
        return short(next_at(limit, metered, timezone.now()))


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

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        if not search_term:
            return queryset, False
        return queryset.filter(kind__in=Change.Kind.values, name=search_term), False

    when = column(_("at"), lambda change: ago(change.at))
    who = column(_("by"), lambda change: change.by or NOTHING)

    @admin.display(description=_("of"))
    def of(self, change: Change) -> str:
        if change.kind == Change.Kind.LIMIT:
            return gettext("limit %s") % change.name
        if change.kind == Change.Kind.SCHEDULE:
            return printable(gettext("schedule '%s'") % change.name)
        if change.kind == Change.Kind.QUEUE:
            return queue_of(change.queue)
        if change.kind == Change.Kind.TASK:
            words = {"key": change.name, "queue": queue_of(change.queue)}
            return printable(gettext("task '%(key)s', %(queue)s") % words)
        return f"{user_of(change.name)}, {queue_of(change.queue)}"

    what = column(_("change"), describe_change)
