"""Fair shares: who is entitled to how much, and which queue."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import EVERYONE, FairShare, QueueShare

from ..parts.cells import NOTHING, list_link, paused_badge
from ..parts.rule_admin import RuleAdmin

OWNER = ("user", "queue")


@admin.register(FairShare)
class FairShareAdmin(RuleAdmin):
    user_path = "user"
    owner = OWNER
    list_display = ["whose", "paused", "of_queue", "weight", "max_running", "lanes"]
    list_editable = ["weight", "max_running", "paused"]
    list_filter = ["paused"]
    ordering = ["user", "queue"]
    search_fields = ["user", "queue"]
    fieldsets = [
        (None, {"fields": OWNER}),
        (
            _("Entitlement"),
            {
                "fields": ["weight", "max_running", "paused"],
                "description": _(
                    "A change takes effect at once, also for tasks that wait already. Tasks that "
                    "run are not disturbed."
                ),
            },
        ),
    ]

    @admin.display(description=_("user"), ordering="user")
    def whose(self, share: FairShare) -> object:
        name = printable(share.user) or gettext("(tasks without a user)")
        if share.user == EVERYONE:
            name = gettext("(everyone else)")
        return paused_badge(name, paused=share.paused)

    @admin.display(description=_("queue"), ordering="queue")
    def of_queue(self, share: FairShare) -> object:
        return share.queue or _("(every queue)")

    @admin.display(description=_("lanes"))
    def lanes(self, share: FairShare) -> object:
        if share.user in ("", EVERYONE):
            return NOTHING
        return list_link("account", _("lanes"), q=share.user)


@admin.register(QueueShare)
class QueueShareAdmin(RuleAdmin):
    owner = ("queue",)
    actions = ()
    list_display = ["queue", "weight"]
    list_editable = ["weight"]
    ordering = ["queue"]
    search_fields = ["queue"]
    fieldsets = [
        (None, {"fields": ["queue"]}),
        (
            _("Entitlement"),
            {
                "fields": ["weight"],
                "description": _(
                    "How workers that serve several queues divide their time. They follow a"
                    " change within seconds."
                ),
            },
        ),
    ]
