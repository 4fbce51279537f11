"""Lists and pages from which tasks are steered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext

from django_perfectqueue.inspection import steering
from django_perfectqueue.inspection.scope import in_scope
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import database

from .actions import CANCEL, FORCE_FINISH, PURGE, RETRY, VERBS, Report, Verb, steer
from .base import ReadOnlyAdmin
from .cells import NOTHING, badge
from .search import plain

CAP = 1_000
SHOWN = 20


class SteeringAdmin(ReadOnlyAdmin):
    """Rows whose primary key is a task's id."""

    @admin.action(description=FORCE_FINISH.title, permissions=[FORCE_FINISH.name])
    def force_finish(self, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
        return self.act(request, FORCE_FINISH, queryset)

    @admin.action(description=CANCEL.title, permissions=[CANCEL.name])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
        return self.act(request, CANCEL, queryset)

    @admin.action(description=RETRY.title, permissions=[RETRY.name])
    def retry(self, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
        return self.act(request, RETRY, queryset)

    @admin.action(description=PURGE.title, permissions=[PURGE.name])
    def purge(self, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
        return self.act(request, PURGE, queryset)

    def has_force_finish_permission(self, request: HttpRequest) -> bool:
        return may(request, FORCE_FINISH)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, CANCEL)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, RETRY)

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return may(request, PURGE)

    def get_urls(self) -> list[URLPattern]:
        """Return the pages; with ATOMIC_REQUESTS, too, each task is steered by itself."""
        view = self.admin_site.admin_view(self.steer_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_steer"
        urls = [path("steer/<slug:name>/", view, name=name), *super().get_urls()]
        for url in urls:
            transaction.non_atomic_requests(database())(url.callback)
        return urls

    def act(
        self, request: HttpRequest, verb: Verb, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        """Do a verb to the rows chosen in the list, or ask first."""
        ids = chosen_ids(request, queryset)
        if verb.asks(len(ids)):
            return self.ask(request, verb, ids, back=request.get_full_path())
        self.carry_out(request, verb, ids)
        return None

    def steer_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Do what a button says, or ask first."""
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        verb = VERBS.get(name)
        if verb is None:
            raise Http404
        if not may(request, verb) or not self.has_view_permission(request):
            raise PermissionDenied
        ids = numbers(request.POST.get("ids", "").split(","))
        back = self.way_back(request)
        if verb.asks(len(ids)) and "confirmed" not in request.POST:
            return self.ask(request, verb, ids, back=back)
        self.carry_out(request, verb, ids)
        return HttpResponseRedirect(back)

    def way_back(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        if url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            return back
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def ask(
        self, request: HttpRequest, verb: Verb, ids: Sequence[int], *, back: str
    ) -> HttpResponse:
        rows = TaskQuerySet(Task, using=database()).with_status()
        shown = in_scope(rows, request, "user").filter(pk__in=ids[:SHOWN])
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": verb.label,
            "original": verb.label,
            "has_view_permission": True,
            "verb": verb,
            "count": min(len(ids), CAP),
            "capped": len(ids) > CAP,
            "cap": CAP,
            "rows": [cells_of(task) for task in shown.order_by("-pk")],
            "more": max(0, min(len(ids), CAP) - SHOWN),
            "ids": ",".join(map(str, ids)),
            "back": back,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/perfectqueue/confirm.html", context)

    def carry_out(self, request: HttpRequest, verb: Verb, ids: Sequence[int]) -> None:
        """Do a verb to at most CAP tasks, and say what came of it."""
        wanted = list(ids[:CAP])
        seen = set(self.get_queryset(request).filter(pk__in=wanted).values_list("pk", flat=True))
        tasks = list(plain(database()).filter(pk__in=seen).only("queue", "key"))
        report = steer(verb, [task_id for task_id in wanted if task_id in seen], using=database())
        if unseen := len(wanted) - len(seen):
            report.refused["gone"] += unseen
        self.log(request, verb, [task for task in tasks if task.pk in set(report.ids)])
        self.show_report(request, report, capped=len(ids) > CAP)

    def log(self, request: HttpRequest, verb: Verb, tasks: Sequence[Task]) -> None:
        """Keep who did it in the tasks' histories."""
        if tasks:
            names = [(task.queue, task.key) for task in tasks]
            steering.sign(names, verb.word, by=str(request.user), using=database())
            user: Any = request.user.pk
            LogEntry.objects.log_actions(user, tasks, CHANGE, str(verb.label))

    def show_report(self, request: HttpRequest, report: Report, *, capped: bool) -> None:
        if report.done:
            self.message_user(request, report.successes(), messages.SUCCESS)
        if report.refused:
            self.message_user(request, report.refusals(), messages.WARNING)
        if capped:
            text = gettext("At most %(cap)s tasks are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)


def cells_of(task: Task) -> list[str]:
    """Return what a task is recognized by."""
    names = [str(task), *map(printable, (task.type, task.user or NOTHING, task.queue))]
    return [badge(task.status), *names]


def may(request: HttpRequest, verb: Verb) -> bool:
    return bool(request.user.has_perm(verb.permission))


def chosen_ids(request: HttpRequest, queryset: QuerySet[Model]) -> list[int]:
    """
    Return the ids that were ticked, or those of the whole list, up to one more than CAP.

    A ticked one counts even where it no longer matches the list's filters.
    """
    if request.POST.get("select_across") == "1":
        return list(queryset.values_list("pk", flat=True)[: CAP + 1])
    return numbers(request.POST.getlist(ACTION_CHECKBOX_NAME))


def numbers(words: Sequence[str]) -> list[int]:
    """Return the words that are ids, each once."""
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal() and len(word) < 19))
