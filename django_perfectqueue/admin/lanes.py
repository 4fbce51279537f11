"""Lanes: who is served, and who waits for what."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.models import Lane, State, Ticket
from django_perfectqueue.queue import database
from django_perfectqueue.store.lanes import lane_id, lane_of

from .base import ReadOnlyAdmin
from .cells import NOTHING
from .filters import LaneQueueFilter
from .names import names

COUNTED = 1_000


@admin.register(Lane)
class LaneAdmin(ReadOnlyAdmin):
    list_display = [
        "queue",
        "for_user",
        "standing",
        "running",
        "most",
        "waiting",
        "weight",
        "spent",
        "expected",
    ]
    list_display_links = None
    list_filter = [LaneQueueFilter]
    list_per_page = 50
    ordering = ["queue", "gate", "-open", "turn"]
    search_fields = ["user"]
    search_help_text = _("A user, exactly.")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term:
            return queryset, False
        queues = names(Lane.objects.using(database()), "queue")
        ids = {lane(queue, search_term) for queue in queues for lane in (lane_id, lane_of)}
        return queryset.filter(pk__in=ids), False

    @admin.display(description=_("user"), empty_value=NOTHING)
    def for_user(self, lane: Lane) -> SafeString | None:
        if not lane.user:
            return None
        url = reverse("admin:perfectqueue_task_changelist")
        return format_html('<a href="{}?{}">{}</a>', url, urlencode({"user": lane.user}), lane.user)

    @admin.display(description=_("standing"))
    def standing(self, lane: Lane) -> SafeString:
        kind, word = stand(lane)
        return format_html('<span class="pq-status pq-{}">{}</span>', kind, word)

    @admin.display(description=_("at most"))
    def most(self, lane: Lane) -> str | int:
        return NOTHING if lane.max_running is None else lane.max_running

    @admin.display(description=_("waiting"))
    def waiting(self, lane: Lane) -> str:
        if not lane.awake:
            return "0"
        tickets = Ticket.objects.using(database()).filter(lane=lane.pk, state=State.WAITING)
        count = tickets[: COUNTED + 1].count()
        return f"{COUNTED}+" if count > COUNTED else str(count)

    @admin.display(description=_("virtual time"))
    def spent(self, lane: Lane) -> str:
        return f"{lane.virtual_time:.1f} s"

    @admin.display(description=_("expected cost"))
    def expected(self, lane: Lane) -> str:
        return f"{abs(lane.cost):.2g} s"


def stand(lane: Lane) -> tuple[str, str]:
    """Return whether a lane is served, as a colour and a word."""
    if lane.paused:
        return "failed", gettext("paused")
    if lane.max_running is not None and lane.running >= lane.max_running:
        return "retrying", gettext("at its limit")
    if lane.awake:
        return "running", gettext("served")
    return "cancelled", gettext("nothing waits")
