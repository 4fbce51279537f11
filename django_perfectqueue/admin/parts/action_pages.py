"""Lists and pages from which tasks are steered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.views.decorators.http import require_POST

from django_perfectqueue import store
from django_perfectqueue.bulk import Operation, Selection, run
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.inspection.family import counts
from django_perfectqueue.inspection.scope import in_scope
from django_perfectqueue.models import Batch, Task, TaskQuerySet
from django_perfectqueue.queue import database

from .actions import BULK, CANCEL, RETRY, VERBS, ActionReport, Verb
from .base import Extra, ReadOnlyAdmin
from .bulk_pages import BulkPage, bulk_verbs, forbidden_operations, may, own_operations
from .cells import badge, page_url, recognized
from .filters import numbers, one_queue, plain
from .task_story import shown

CAP = 1_000
SHOWN = 20


def action_of(verb: Verb) -> Callable[..., HttpResponse | None]:
    """Return a verb as an action of a list."""

    @admin.action(description=verb.title, permissions=[verb.name])
    def act(
        page: SteeringAdmin, request: HttpRequest, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        return page.act(request, verb, queryset)

    return act


class SteeringAdmin(ReadOnlyAdmin):
    """Rows whose primary key is a task's id; ``status_shown`` is what is listed by default."""

    status_shown = ""

    def get_urls(self) -> list[URLPattern]:
        """Return the pages; with ATOMIC_REQUESTS, too, each task is steered by itself."""
        model, steer = self.opts.model_name, require_POST(self.steer_view)
        urls = [
            self.view_path("steer/<slug:name>/", steer, f"{model}_steer"),
            self.view_path("bulk/", self.bulk_view, f"{model}_bulk"),
            *super().get_urls(),
        ]
        # Which of them has the tasks is not asked here: check reports what is wrong with it.
        for url, alias in product(urls, connections):
            transaction.non_atomic_requests(alias)(url.callback)
        return urls

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Offer to do something to all that match."""
        url = self.bulk_url(request.GET) if bulk_verbs(request) else ""
        return super().changelist_view(request, {"bulk_url": url, **(extra_context or {})})

    def bulk_url(self, values: QueryDict, **more: str) -> str:
        url = page_url(f"{self.opts.model_name}_bulk")
        return f"{url}?{urlencode({**values.dict(), **more})}"

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """Show what would be done to all that match the filters, and do it."""
        return BulkPage(self, request, status=self.status_shown).respond()

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave out the queue where each row would name the same."""
        hidden = {"of_queue"} if one_queue(request) else set()
        return [column for column in self.list_display if column not in hidden]

    def act(
        self, request: HttpRequest, verb: Verb, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        """Do a verb to the rows chosen in the list, or ask first."""
        ids = chosen_ids(request, queryset)
        across = request.POST.get("select_across") == "1" and len(ids) > CAP
        if across and verb.does in BULK:
            return HttpResponseRedirect(self.bulk_url(request.GET, verb=verb.does))
        if verb.asks(len(ids)):
            return self.ask(request, verb, ids, back=request.get_full_path())
        if ids:
            self.carry_out(request, verb, ids, verb.operation("", str(request.user)))
        return None

    def steer_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Do what a button says, or ask first."""
        verb = VERBS.get(name)
        if verb is None:
            raise Http404
        if not may(request, verb) or not self.has_view_permission(request):
            raise PermissionDenied
        back = self.way_back(request)
        if (group := self.group(request, verb)) is not None:
            ids = list(group.order_by("-pk").values_list("pk", flat=True)[: CAP + 1])
        else:
            ids = numbers(request.POST.get("ids", "").split(","))
        asks = group is not None or verb.asks(len(ids))
        if asks and "confirmed" not in request.POST:
            return self.ask(request, verb, ids, back=back, group=group)
        try:
            operation = verb.operation(request.POST.get("value", "").strip(), str(request.user))
        except InvalidTaskError as error:
            self.message_user(request, str(error), messages.ERROR)
            return self.ask(request, verb, ids, back=back)
        if "batch" in request.POST and group is not None:
            operation = self.begin_with_batch(request, verb, operation)
        self.carry_out(request, verb, ids, operation)
        return HttpResponseRedirect(back)

    def group(self, request: HttpRequest, verb: Verb) -> TaskQuerySet | None:
        """
        Return which tasks of a batch, or of those that wait for a task and that one, a verb is
        about; None where tasks were given.
        """
        rows: Any = self.get_queryset(request)
        if self.model is not Task or verb not in (CANCEL, RETRY):
            return None
        if dependents := numbers([request.POST.get("dependents", "")]):
            waiting = store.dependencies.descendants(dependents, using=database())
            rows = rows.filter(pk__in=[*waiting[:CAP], *dependents])
        elif numbers([request.POST.get("batch", "")]):
            batches = store.dependencies.batches_within(self.batch(request).pk, using=database())
            rows = rows.filter(membership__batch_id__in=batches)
        else:
            return None
        dead = verb is RETRY
        return rows.filter(dead_letter__isnull=not dead, ticket__isnull=dead)  # type: ignore[no-any-return]

    def batch(self, request: HttpRequest) -> Batch:
        """Return the batch that was given. Raise Http404 where one may not see it."""
        pages = self.admin_site.get_model_admin(Batch)
        [batch] = numbers([request.POST["batch"]])
        row: Batch | None = pages.get_queryset(request).filter(pk=batch).first()
        if row is None or not pages.has_view_permission(request, row):
            raise Http404
        return row

    def begin_with_batch(self, request: HttpRequest, verb: Verb, operation: Operation) -> Operation:
        """
        Return the operation on a batch. Who did it stands in the history of that, too.

        One that is cancelled takes no more tasks, until it is put back.
        """
        row = self.batch(request)
        within = store.dependencies.batches_within(row.pk, using=database())
        rows = self.admin_site.get_model_admin(Batch).get_queryset(request).filter(pk__in=within)
        ids = rows.values_list("pk", flat=True)
        store.dependencies.stop_batches(ids, using=database(), stopped=verb is CANCEL)
        self.log_change(request, row, str(verb.label))
        return replace(operation, selection=Selection(batch=str(row.pk)))

    def way_back(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        if url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            return back
        return page_url(f"{self.opts.model_name}_changelist")

    def ask(
        self,
        request: HttpRequest,
        verb: Verb,
        ids: Sequence[int],
        *,
        back: str,
        group: TaskQuerySet | None = None,
    ) -> HttpResponse:
        """Show what a verb would do: to how many tasks of which status, and the first of them."""
        rows = plain().with_status()
        shown = rows.filter(pk__in=self.visible(request, ids[:SHOWN]))
        statuses = {} if group is None else counts(group)
        given = [("ids", ",".join(map(str, ids)))]
        if group is not None:
            names = [name for name in ("batch", "dependents") if name in request.POST]
            given = [(name, request.POST[name]) for name in names]
        context = {
            "title": verb.label,
            "original": verb.label,
            "verb": verb,
            "count": min(len(ids), CAP),
            "capped": len(ids) > CAP,
            "cap": CAP,
            "counts": [(badge(status), count) for status, count in statuses.items()],
            "ids": ",".join(map(str, ids)),
            "given": given,
            "is_batch": "batch" in request.POST,
            "rows": [{"cells": recognized(task)} for task in shown.order_by("-pk")],
            "more": max(0, min(len(ids), CAP) - SHOWN),
            "value": request.POST.get("value", ""),
            "data": data_of(ids, request) if verb.field == "patch" else None,
            "back": back,
        }
        return self.page(request, "confirm", context)

    def carry_out(
        self, request: HttpRequest, verb: Verb, ids: Sequence[int], operation: Operation
    ) -> None:
        """Do a verb to at most CAP tasks, and say what came of it."""
        wanted = list(ids[:CAP])
        seen = self.visible(request, wanted)
        if verb is RETRY and (forbidden := forbidden_operations(request, seen)):
            seen -= forbidden
            text = gettext("You may not retry a bulk operation that you may not start.")
            self.message_user(request, text, messages.WARNING)
            wanted = [task_id for task_id in wanted if task_id not in forbidden]
        tasks = list(plain().filter(pk__in=seen).only("queue", "key"))
        report = ActionReport()
        chosen = [task_id for task_id in wanted if task_id in seen]
        for answer in run(operation, chosen, using=database()):
            report.add(answer, verb.does)
        if unseen := len(wanted) - len(seen):
            report.refused["gone"] += unseen
        if done := [task for task in tasks if task.pk in set(report.ids)]:
            user: Any = request.user.pk
            LogEntry.objects.log_actions(user, done, CHANGE, str(verb.label))
        self.show_report(request, report, capped=len(ids) > CAP)

    def visible(self, request: HttpRequest, ids: Sequence[int]) -> set[int]:
        """Return which of these tasks the person may see and steer."""
        rows = self.get_queryset(request).filter(pk__in=ids)
        found = set(rows.values_list("pk", flat=True))
        return found.union(own_operations(request, [id_ for id_ in ids if id_ not in found]))

    def show_report(self, request: HttpRequest, report: ActionReport, *, capped: bool) -> None:
        if report.done:
            self.message_user(request, report.successes(), messages.SUCCESS)
        if report.refused:
            self.message_user(request, report.refusals(), messages.WARNING)
        if capped:
            text = gettext("At most %(cap)s tasks are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)


def permission_for(verb: Verb) -> Callable[[SteeringAdmin, HttpRequest], bool]:
    return lambda _page, request: may(request, verb)


for _verb in VERBS.values():
    # Django finds both by their names; the second says who sees and may use the action.
    setattr(SteeringAdmin, _verb.name, action_of(_verb))
    setattr(SteeringAdmin, f"has_{_verb.name}_permission", permission_for(_verb))


def data_of(ids: Sequence[int], request: HttpRequest) -> object:
    """Return the data of a single task as it can be shown; None for several tasks."""
    rows = in_scope(plain(), request, "user").filter(pk__in=ids[:2])
    found = list(rows.values_list("payload", flat=True))
    return shown(found[0]) if len(found) == 1 else None


def chosen_ids(request: HttpRequest, queryset: QuerySet[Model]) -> list[int]:
    """
    Return the ids that were ticked, or those of the whole list, up to one more than CAP.

    A ticked one counts even where it no longer matches the list's filters.
    """
    if request.POST.get("select_across") == "1":
        return list(queryset.values_list("pk", flat=True)[: CAP + 1])
    return numbers(request.POST.getlist(ACTION_CHECKBOX_NAME))
