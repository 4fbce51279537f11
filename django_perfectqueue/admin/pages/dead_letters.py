"""Dead letters: the tasks that ended without finishing, by what ended them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import DeadLetter, Outcome

from ..parts.action_pages import SteeringAdmin
from ..parts.actions import RETRY
from ..parts.base import column
from ..parts.bulk_pages import may
from ..parts.cells import NOTHING, ago, badge, broken_at_dots, page_url, with_fold
from ..parts.filters import (
    DeadReachFilter,
    EndingFilter,
    GroupFilter,
    QueueFilter,
    SinceFilter,
    TypeFilter,
    UntilFilter,
    UserFilter,
)
from ..parts.search import one_queue


@admin.register(DeadLetter)
class DeadLetterAdmin(SteeringAdmin):
    """The newest failure first, by when it ended: a task may be much older than that."""

    user_path = "task__user"
    list_display = ["badge", "named", "ended", "kind", "for_user", "of_queue", "cause"]
    list_display_links = None
    list_filter = [
        EndingFilter,
        GroupFilter,
        QueueFilter,
        UserFilter,
        TypeFilter,
        SinceFilter,
        UntilFilter,
        DeadReachFilter,
    ]
    list_select_related = ["task"]
    ordering = ["-ended_at", "-pk"]
    actions = ["retry", "move", "edit", "purge"]
    status_shown = Outcome.FAILED.value

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer("task__payload", "task__result_text")

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave out the queue where each row would name the same."""
        hidden = {"of_queue"} if one_queue(request) else set()
        return [column for column in self.list_display if column not in hidden]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Offer to retry the group that is chosen, as far as the other filters let it."""
        group = request.GET.get("group", "") if may(request, RETRY) else ""
        context = {
            "group_name": printable(group),
            "retry_url": self.bulk_url(request.GET, verb="retry") if group else "",
        }
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, object] | None = None,
    ) -> HttpResponse:
        return HttpResponseRedirect(page_url("task_change", object_id))

    badge = column(_("status"), lambda letter: badge(letter.status))

    @admin.display(description=_("task"))
    def named(self, letter: DeadLetter) -> SafeString:
        url = page_url("task_change", letter.pk)
        task = letter.task
        link = format_html('<a href="{}">{}</a>', url, task)
        return with_fold(link, task.type, task.user, task.queue, letter.group, said(letter))

    kind = column(
        _("type"), lambda letter: narrowed(letter, "type", broken_at_dots(letter.task.type))
    )
    for_user = column(
        _("user"), lambda letter: narrowed(letter, "user") if letter.task.user else NOTHING
    )
    of_queue = column(_("queue"), lambda letter: narrowed(letter, "queue"))

    @admin.display(description=_("group and message"), empty_value=NOTHING)
    def cause(self, letter: DeadLetter) -> SafeString | None:
        """Return the group, with a link to all of it, and below it the message."""
        if not letter.group:
            return None
        query = urlencode({"status": letter.status, "group": letter.group})
        link = format_html('<a href="?{}">{}</a>', query, broken_at_dots(letter.group))
        return format_html('{} <span class="pq-message pq-quiet">{}</span>', link, said(letter))

    ended = column(_("ended"), lambda letter: ago(letter.ended_at))


def said(letter: DeadLetter) -> str:
    return printable(Truncator(letter.message).chars(120))


def narrowed(letter: DeadLetter, name: str, shown: SafeString | None = None) -> SafeString:
    """Return what its task has under a name, with a link to all dead letters that have it."""
    value = getattr(letter.task, name)
    query = urlencode({"status": letter.status, name: value})
    return format_html('<a href="?{}">{}</a>', query, shown or printable(value))
