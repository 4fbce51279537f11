"""Changes: who has changed which share, limit or schedule, also of those that are gone."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness.wording import queue_of, user_of
from django_perfectqueue.inspection.steering import describe_change
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change

from ..parts.base import ReadOnlyAdmin, column
from ..parts.cells import NOTHING, ago
from ..parts.filters import ValueFilter


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
