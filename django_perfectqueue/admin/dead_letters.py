"""Dead letters: the tasks that ended without finishing, by what ended them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.models import DeadLetter

from .cells import badge, short
from .filters import EndingFilter, GroupFilter
from .steering import SteeringAdmin


@admin.register(DeadLetter)
class DeadLetterAdmin(SteeringAdmin):
    list_display = ["badge", "key", "group", "reason", "ended"]
    list_display_links = None
    list_filter = [EndingFilter, GroupFilter]
    list_select_related = ["task"]
    ordering = ["-pk"]
    actions = ["retry", "purge"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer("task__payload", "task__result_text")

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:perfectqueue_task_change", args=[object_id]))

    @admin.display(description=_("status"))
    def badge(self, letter: DeadLetter) -> SafeString:
        return badge(letter.status)

    @admin.display(description=_("task"))
    def key(self, letter: DeadLetter) -> SafeString:
        url = reverse("admin:perfectqueue_task_change", args=[letter.pk])
        return format_html('<a href="{}">{}</a>', url, letter.task.key)

    @admin.display(description=_("message"))
    def reason(self, letter: DeadLetter) -> str:
        return Truncator(letter.message).chars(120)

    @admin.display(description=_("ended"))
    def ended(self, letter: DeadLetter) -> str:
        return short(letter.ended_at)
