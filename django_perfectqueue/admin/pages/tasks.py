"""Tasks: a list to find them in, and a page with each one's story."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.bulk import TYPE
from django_perfectqueue.inspection.scope import in_scope, may_see
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Status, Task, TaskQuerySet, Watch, id_for
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import database

from ..parts.action_pages import SteeringAdmin
from ..parts.actions import CANCEL, COPY, EDIT, VERBS
from ..parts.base import BoundedPaginator, IdsFirstPaginator, column
from ..parts.bulk_pages import may, own_operations
from ..parts.cells import (
    ago,
    badge,
    broken_at_dots,
    next_moment,
    short,
    tasks_link,
    user_link,
    with_fold,
)
from ..parts.family import family_page, known_to
from ..parts.filters import (
    BatchFilter,
    QueueFilter,
    ReachFilter,
    SinceFilter,
    StatusFilter,
    TagFilter,
    TypeFilter,
    UntilFilter,
    UserFilter,
    WatchedFilter,
    watched_by,
)
from ..parts.search import ids_by_key, numbers, one_queue, plain
from ..parts.task_story import task_story


@admin.register(Task)
class TaskAdmin(SteeringAdmin):
    user_path = "user"
    story_template = "task/story"
    list_display = ["badge", "named", "kind", "for_user", "of_queue", "created", "when", "attempts"]
    list_display_links = ["named"]
    list_filter = [
        StatusFilter,
        QueueFilter,
        UserFilter,
        TypeFilter,
        TagFilter,
        SinceFilter,
        UntilFilter,
        WatchedFilter,
        BatchFilter,
        ReachFilter,
    ]
    actions = ["force_finish", "cancel", "retry", "move", "edit"]
    search_fields = ["key"]
    search_help_text = _(
        "A key or its beginning; upper and lower case differ. Where there are more than 50 "
        "queues, choose one first. At most 1,000 tasks of each queue are found."
    )
    search_help_for_one = _("A key or its beginning; upper and lower case differ.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        return self.listed(super().get_queryset(request))  # type: ignore[arg-type]

    @staticmethod
    def listed(rows: TaskQuerySet) -> TaskQuerySet:
        """Add what a list shows, and leave out the data."""
        rows = rows.with_tries().select_related("ticket", "dead_letter")
        return rows.defer("payload", "result_text", "dead_letter__message")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> object:
        """Return a task by one statement, with the data that lists leave out."""
        ids = numbers([object_id])
        rows: Any = self.get_queryset(request).filter(pk__in=ids)
        if own := own_operations(request, ids):
            rows = self.listed(Task.objects.using(database()).filter(pk__in=own))
        watched = watched_by(request).filter(task_id=OuterRef("pk"))
        return rows.defer(None).annotate(clock=ServerNow(), is_watched=Exists(watched)).first()

    def get_ordering(self, request: HttpRequest | None) -> list[Any]:
        status = request.GET.get("status") if request else None
        return [f"-{id_for(status)}"]

    def get_paginator(self, request: HttpRequest, *given: Any, **options: Any) -> BoundedPaginator:
        """SQLite and MariaDB find what the clock will move by its time, and sort it by id."""
        by_ticket = id_for(request.GET.get("status")) == "ticket__task_id"
        return (IdsFirstPaginator if by_ticket else BoundedPaginator)(*given, **options)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave out the queue where each row would name the same."""
        hidden = {"of_queue"} if one_queue(request) else set()
        return [column for column in self.list_display if column not in hidden]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Say in short how to search where there is only one queue to search in."""
        changelist = super().get_changelist_instance(request)
        if one_queue(request):
            changelist.search_help_text = self.search_help_for_one  # type: ignore[assignment]
        return changelist

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        if not search_term:
            return queryset, False
        return queryset.filter(pk__in=ids_by_key(search_term, request)), False

    def story(self, request: HttpRequest, row: Any) -> dict[str, object]:
        relatives = family_page(row, request, self.admin_site)
        verbs = [
            verb
            for verb in self.fitting_verbs(request, row)
            if verb is not CANCEL or CANCEL not in relatives["dependent_verbs"]
        ]
        known = known_to(request, self.admin_site)
        return {
            "verbs": verbs,
            "is_watched": row.is_watched,
            **task_story(row, using=database(), known=known, sees_all=may_see(request, None)),
            **relatives,
        }

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.watch_view)
        watch = path("<int:task_id>/watch/", view, name="perfectqueue_task_watch")
        return [watch, *super().get_urls()]

    def watch_view(self, request: HttpRequest, task_id: int) -> HttpResponse:
        """Put a task on the list of the person who asks, or with ``stop`` take it off."""
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        if not self.has_view_permission(request):
            raise PermissionDenied
        with transaction.atomic(using=database()):
            # Who purges it deletes what was written beside it until then.
            mine = in_scope(plain(database()), request, "user")
            rows = mine.select_for_update().filter(pk=task_id)
            if not rows.values_list("pk").first():
                raise Http404
            if "stop" in request.POST:
                watched_by(request).filter(task_id=task_id).delete()
            else:
                person = str(request.user.pk)
                Watch.objects.using(database()).get_or_create(task_id=task_id, person=person)
        return HttpResponseRedirect(self.way_back(request))

    def fitting_verbs(self, request: HttpRequest, task: Task) -> list[object]:
        status = Status(task.status)
        # The data of a bulk operation are signed for its key.
        refused = (EDIT, COPY) if task.type == TYPE else ()
        fitting = [verb for verb in VERBS.values() if status in verb.statuses]
        return [verb for verb in fitting if verb not in refused and may(request, verb)]

    named = column(_("key"), lambda task: with_fold(task, task.type, task.user, task.queue))
    of_queue = column(_("queue"), lambda task: tasks_link(printable(task.queue), queue=task.queue))
    kind = column(_("type"), lambda task: tasks_link(broken_at_dots(task.type), type=task.type))
    for_user = column(_("user"), lambda task: user_link(task.user))
    badge = column(_("status"), lambda task: badge(task.status))
    created = column(_("created"), lambda task: ago(task.created_at))

    @admin.display(description=_("when"))
    def when(self, task: Task) -> SafeString:
        word, at = next_moment(task)
        return format_html('{} <span class="pq-quiet">{}</span>', short(at), word)

    attempts = column(_("attempts"), lambda task: int(task.tries))
