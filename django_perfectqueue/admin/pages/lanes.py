"""Lanes: who is served, and who waits for what."""

from __future__ import annotations

from collections import Counter, defaultdict

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.inspection.why_waiting import workers_serving
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.stored_json import names_in
from django_perfectqueue.models import Account, Lane
from django_perfectqueue.queue import database
from django_perfectqueue.store.arithmetic.fair_order import lane_id, lane_of
from django_perfectqueue.store.database.transaction import reading
from django_perfectqueue.store.records.usage_read import waiting

from ..parts.base import OneOrder, ReadOnlyAdmin
from ..parts.cells import NOTHING, tasks_link, with_fold
from ..parts.filters import QueueFilter
from ..parts.search import queue_names

COUNTED = 1_000


class Counted(OneOrder):
    """A page of lanes that know how many tasks wait, and whether a worker serves their queue."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        lanes: list[Account] = list(self.result_list)
        behind = Lane.objects.using(database()).filter(account__in=[own.pk for own in lanes])
        whose = {own.pk: own.pk for own in lanes}
        limits: defaultdict[int, set[str]] = defaultdict(set)
        held = set()
        for lane in behind.only("account", "keys", "held_by")[:COUNTED]:
            whose[lane.pk] = lane.account
            limits[lane.account].update(names_in(lane.keys))
            held |= {lane.pk} if lane.held_by else set()
        counts: Counter[int] = Counter()
        free: Counter[int] = Counter()
        with reading(database()) as db:
            for id_, count in waiting(db, sorted(whose), COUNTED).items():
                counts[whose[id_]] += count
                free[whose[id_]] += 0 if id_ in held else count
        served = {queue for worker in workers_serving(using=database()) for queue in worker.queues}
        for own in lanes:
            own.waiting, own.limits = counts[own.pk], sorted(limits[own.pk])
            own.is_held = not free[own.pk]
            own.has_worker = own.queue in served
        self.result_list = lanes


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    user_path = "user"
    list_display = [
        "standing",
        "for_user",
        "of_queue",
        "of_limits",
        "running",
        "most",
        "waiting",
        "weight",
        "spent",
        "expected",
    ]
    list_display_links = None
    list_filter = [QueueFilter]
    list_per_page = 50
    ordering = ["queue", "-ready", "turn"]
    search_fields = ["user"]
    search_help_text = _("A user, exactly.")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        if not search_term:
            return queryset, False
        ids = {
            lane(queue, search_term)
            for queue in queue_names(request)
            for lane in (lane_id, lane_of)
        }
        return queryset.filter(pk__in=ids), False

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return Counted

    @admin.display(description=_("queue"))
    def of_queue(self, lane: Account) -> SafeString:
        return tasks_link(printable(lane.queue), queue=lane.queue)

    @admin.display(description=_("user"))
    def for_user(self, lane: Account) -> SafeString:
        if not lane.user:
            return with_fold(NOTHING, lane.queue)
        return with_fold(tasks_link(printable(lane.user), user=lane.user), lane.queue)

    @admin.display(description=_("status"))
    def standing(self, lane: Account) -> SafeString:
        kind, word = stand(lane)
        return format_html('<span class="pq-status pq-{}">{}</span>', kind, word)

    @admin.display(description=_("limits"))
    def of_limits(self, lane: Account) -> str:
        return printable(", ".join(key.removeprefix("name:") for key in lane.limits)) or NOTHING

    @admin.display(description=_("at most"))
    def most(self, lane: Account) -> str | int:
        return NOTHING if lane.max_running is None else lane.max_running

    @admin.display(description=_("waiting"))
    def waiting(self, lane: Account) -> str:
        return f"{COUNTED}+" if lane.waiting > COUNTED else str(lane.waiting)

    @admin.display(description=_("virtual time"))
    def spent(self, lane: Account) -> str:
        return f"{lane.virtual_time:.1f} s"

    @admin.display(description=_("expected cost"))
    def expected(self, lane: Account) -> str:
        return f"{abs(lane.cost):.2g} s"


def stand(lane: Account) -> tuple[str, str]:
    """Return whether a lane is served, as a colour and a word."""
    if not lane.waiting and not lane.running:
        return "cancelled", gettext("nothing waits")
    if lane.paused:
        return "failed", gettext("paused")
    if lane.max_running is not None and lane.running >= lane.max_running:
        return "retrying", gettext("at its limit")
    if lane.waiting and lane.is_held:
        return "retrying", gettext("held back by a limit")
    if not lane.has_worker:
        return "failed", gettext("no worker")
    return "running", gettext("served")
