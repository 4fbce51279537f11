"""Fair shares: who is entitled to how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.models import FairShare
from django_perfectqueue.queue import database

from .base import QueueAdmin

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[FairShare]
else:
    ModelForm = forms.ModelForm

OWNER = ("user", "queue")


class ShareForm(ModelForm):
    """Looks for another share of the same user where the shares are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance._state.db = self.instance._state.db or database()


@admin.register(FairShare)
class FairShareAdmin(QueueAdmin):
    form = ShareForm
    list_display = ["whose", "of_queue", "weight", "max_running", "paused"]
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

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return OWNER if obj else ()

    def save_model(self, request: HttpRequest, obj: Model, form: Any, change: bool) -> None:
        obj.save(using=database())

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        obj.delete(using=database())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        queryset.using(database()).delete()

    @admin.display(description=_("user"), ordering="user")
    def whose(self, share: FairShare) -> Any:
        return share.user or _("(tasks without a user)")

    @admin.display(description=_("queue"), ordering="queue")
    def of_queue(self, share: FairShare) -> Any:
        return share.queue or _("(every queue)")
