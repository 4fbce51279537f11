"""Limits: how many tasks may run at once, or start within a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness import edit
from django_perfectqueue.fairness.limits import next_at, unfit
from django_perfectqueue.fairness.wording import rate_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Limit, Meter
from django_perfectqueue.queue import database
from django_perfectqueue.schedules.terms import known_types
from django_perfectqueue.store.records.counts import names

from ..parts.base import column
from ..parts.cells import NOTHING, paused_mark, short, tasks_link
from ..parts.rules import PauseForm, RuleAdmin, RuleForm, Suggesting

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
            self.add_error("burst", gettext("A burst says nothing without a rate."))
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

    def complete(self, request: HttpRequest, rows: Any) -> None:
        meters = Meter.objects.using(database()).in_bulk([limit.key for limit in rows])
        for limit in rows:
            limit.meter = meters.get(limit.key)

    def set_paused(self, one: Limit, terms: Mapping[str, Any] | None, by: str) -> bool:
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
