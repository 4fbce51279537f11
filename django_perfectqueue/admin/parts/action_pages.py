"""Lists and pages from which tasks are steered: those that are named, or all that match."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_perfectqueue import store
from django_perfectqueue.bulk import RATE, Operation, Selection, preview, run, submit_bulk
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError, PayloadError
from django_perfectqueue.inspection.family import counts
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Batch, Step, Task, TaskQuerySet
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.context import masked
from django_perfectqueue.payload.inputs import merged
from django_perfectqueue.queue import database
from django_perfectqueue.templatetags import perfectqueue as cells

from . import actions, base
from .actions import BULK, CANCEL, COPY, RETRY, VERBS, ActionReport, Verb, bulk_verbs, may
from .base import COUNTED, Extra, ReadOnlyAdmin
from .filters import numbers, one_queue, plain

SHOWN = 20
LONGEST = 2_000
# What is posted in place of ids.
GROUPED = ("batch", "dependents")


class PatchField(forms.CharField):
    """JSON as it is typed in: what can't be read, in whatever way, is an error of the form."""

    def to_python(self, value: object) -> JSON:
        text = super().to_python(value)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise ValidationError(forms.JSONField.default_error_messages["invalid"]) from error


class OperationForm(forms.Form):
    """What is to be done to all that match, or the one term that a verb on named tasks needs."""

    verb = forms.ChoiceField(label=_("What"))
    to = forms.CharField(
        label=_("To the queue"), required=False, max_length=100, help_text=_("For move and retry.")
    )
    patch = PatchField(
        label=_("Change of the data"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text=_(
            'For edit and retry: a JSON merge patch, such as {"v": 2, "old": null}, which sets v '
            "and removes old."
        ),
    )
    from_step = forms.ChoiceField(label=_("From the step"), required=False)
    rate = forms.FloatField(
        label=_("Tasks a second"),
        help_text=_("A higher rate puts more load on the database."),
    )
    run_in = forms.CharField(
        label=_("Done by the workers of queue"), required=False, max_length=100
    )

    @classmethod
    def of_all(cls, verbs: Sequence[str], data: Mapping[str, str]) -> OperationForm:
        form = cls({"verb": verbs[0], "rate": f"{RATE:g}", **data})
        del form.fields["from_step"]
        form.fields["verb"].choices = [(name, BULK[name].label) for name in verbs]  # type: ignore[attr-defined]
        return form

    @classmethod
    def of_named(cls, verb: Verb, data: Mapping[str, str], steps: Sequence[str]) -> OperationForm:
        form = cls(data)
        form.fields = {name: form.fields[name] for name in [verb.field] if name}
        if verb is COPY and len(steps) < 2:
            form.fields = {}
        elif verb is COPY:
            choices = [(name if n else "", printable(name)) for n, name in enumerate(steps)]
            form.fields["from_step"].choices = choices  # type: ignore[attr-defined]
        for field in form.fields.values():
            field.help_text = ""
            field.widget.attrs["autofocus"] = True
        return form

    def operation(self, request: HttpRequest, **more: Any) -> Operation | None:
        """Return what it asks for; None, with its errors, where that is not possible."""
        if not self.is_valid():
            return None
        given = {name: value for name, value in self.cleaned_data.items() if name != "run_in"}
        try:
            return Operation(**given, **more, by=str(request.user))
        except InvalidTaskError as error:
            self.add_error(None, str(error))
            return None


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
        url = cells.page_url(f"{self.opts.model_name}_bulk")
        return f"{url}?{urlencode({**values.dict(), **more})}"

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """Show what would be done to all that match the filters, and do it."""
        if not self.has_view_permission(request) or not bulk_verbs(request):
            raise PermissionDenied
        sent = request.POST if request.method == "POST" else request.GET
        values = {name: str(value) for name, value in sent.items()}
        own = (*actions.TERMS, *actions.BUTTONS)
        kept = {name: value for name, value in values.items() if name not in own}
        back = f"{cells.page_url(f'{self.opts.model_name}_changelist')}?{urlencode(kept)}"
        try:
            selection = actions.selection_of(request, values, status=self.status_shown)
            if not (verbs := bulk_verbs(request, selection.status)):
                text = gettext("There is no bulk operation for tasks of this status.")
                raise InvalidTaskError(text)
        except InvalidTaskError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(back)
        form = OperationForm.of_all(verbs, values)
        operation = form.operation(request, selection=selection)
        if operation and not verbs_of(operation) <= {*bulk_verbs(request)}:
            raise PermissionDenied
        if operation and request.method == "POST" and "_do" in values:
            if values.get("shown") != text_of(operation):
                form.add_error(None, gettext("The operation has changed: check the new preview."))
            else:
                try:
                    return self.submit(request, operation, form.cleaned_data["run_in"], values)
                except InvalidTaskError as error:
                    form.add_error(None, str(error))
                    operation = None
        # A time that was given as so long ago stands still from here on.
        times = {"since": selection.since, "until": selection.until}
        held = {"status": selection.status, **values, **times}
        filters = [(name, held[name]) for name in actions.FILTERS if held.get(name)]
        context = {
            "title": _("All that match"),
            "filters": filters,
            "is_bulk": True,
            "hidden": filters,
            "form": form,
            "back": back,
            "action": cells.page_url(f"{self.opts.model_name}_bulk"),
        }
        if operation:
            found = preview(operation.verb, selection, using=database())
            context |= {
                "verb": BULK[operation.verb],
                "hidden": [*filters, ("shown", text_of(operation))],
                "matching": {
                    "count": found.total,
                    "total": cells.AtLeast(found.total)
                    if found.is_bounded
                    else cells.whole(found.total),
                    "statuses": [(word, cells.bounded(n, COUNTED)) for word, n in found.statuses],
                    "users": [(user, cells.bounded(n, COUNTED)) for user, n in found.users],
                    "more": max(0, found.total - len(found.sample)),
                    **sample_of(found.sample, operation.patch is not None, operation.patch),
                },
            }
        return self.page(request, "confirm", context)

    def submit(
        self, request: HttpRequest, operation: Operation, run_in: str, values: Mapping[str, str]
    ) -> HttpResponse:
        """Submit the task that does a bulk operation."""
        row = submit_bulk(operation, queue=run_in, using=database()).metadata()
        query = {name: values[name] for name in actions.FILTERS if values.get(name)}
        self.log_change(request, row, f"{BULK[operation.verb].label}: {urlencode(query)}")
        text = gettext("A task does the work. This page shows its progress, and can cancel it.")
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(cells.page_url("task_change", row.pk))

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave out the queue where each row would name the same."""
        hidden = {"of_queue"} if one_queue(request) else set()
        return [column for column in self.list_display if column not in hidden]

    def act(
        self, request: HttpRequest, verb: Verb, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        """Do a verb to the rows chosen in the list, or ask first."""
        ids = chosen_ids(request, queryset)
        across = request.POST.get("select_across") == "1" and len(ids) > base.CAP
        if across and verb.does in BULK:
            return HttpResponseRedirect(self.bulk_url(request.GET, verb=verb.does))
        if len(ids) > verb.asks_above:
            return self.ask(request, verb, ids, back=request.get_full_path())
        if ids:
            self.carry_out(request, verb, ids, Operation(verb=verb.does, by=str(request.user)))
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
            ids = list(group.order_by("-pk").values_list("pk", flat=True)[: base.CAP + 1])
        else:
            ids = numbers(request.POST.get("ids", "").split(","))
        steps, operation = self.steps(request, verb, ids), None
        form = OperationForm.of_named(verb, request.POST, steps)
        if "_do" in request.POST or (group is None and len(ids) <= verb.asks_above):
            operation = form.operation(request, verb=verb.does)
        if operation is None:
            return self.ask(request, verb, ids, back=back, group=group, form=form)
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
            rows = rows.filter(pk__in=[*waiting[: base.CAP], *dependents])
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
        ids = list(rows.values_list("pk", flat=True))
        store.dependencies.stop_batches(ids, using=database(), stopped=verb is CANCEL)
        self.log_change(request, row, str(verb.label))
        return replace(operation, selection=Selection(batch=str(row.pk)))

    def way_back(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        if url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            return back
        return cells.page_url(f"{self.opts.model_name}_changelist")

    def ask(
        self,
        request: HttpRequest,
        verb: Verb,
        ids: Sequence[int],
        *,
        back: str,
        group: TaskQuerySet | None = None,
        form: OperationForm | None = None,
    ) -> HttpResponse:
        """Show what a verb would do: to how many tasks of which status, and the first of them."""
        rows = plain().with_status().filter(pk__in=self.visible(request, ids[:SHOWN]))
        named = [(name, request.POST[name]) for name in GROUPED if name in request.POST]
        count = min(len(ids), base.CAP)
        statuses = {} if group is None else counts(group)
        context = {
            "title": verb.label,
            "verb": verb,
            "form": form or OperationForm.of_named(verb, {}, self.steps(request, verb, ids)),
            "hidden": [*(named if group is not None else [("ids", ",".join(map(str, ids)))])],
            "is_batch": "batch" in request.POST,
            "cap": base.CAP if len(ids) > base.CAP else 0,
            "matching": {
                "count": count,
                "total": cells.whole(count),
                "statuses": statuses.items(),
                "more": max(0, count - SHOWN),
                **sample_of(rows.order_by("-pk"), verb.field == "patch"),
            },
            "back": back,
            "action": cells.page_url(f"{self.opts.model_name}_steer", verb.name),
        }
        return self.page(request, "confirm", context)

    def steps(self, request: HttpRequest, verb: Verb, ids: Sequence[int]) -> list[str]:
        """Return the steps at which a copy of a task may begin; none of several tasks."""
        if verb is not COPY or len(ids) != 1:
            return []
        rows = Step.objects.using(database()).exclude(kind=Step.Kind.SIGNAL)
        rows = rows.filter(task_id__in=self.visible(request, ids))
        return list(rows.order_by("pk").values_list("name", flat=True))

    def carry_out(
        self, request: HttpRequest, verb: Verb, ids: Sequence[int], operation: Operation
    ) -> None:
        """Do a verb to at most CAP tasks, and say what came of it."""
        wanted = list(ids[: base.CAP])
        seen = self.visible(request, wanted)
        if verb is RETRY and (forbidden := actions.forbidden_operations(request, seen)):
            seen -= forbidden
            text = gettext("You may not retry a bulk operation that you may not start.")
            self.message_user(request, text, messages.WARNING)
            wanted = [task_id for task_id in wanted if task_id not in forbidden]
        tasks = list(plain().filter(pk__in=seen).only("queue", "key"))
        report = ActionReport()
        chosen = [task_id for task_id in wanted if task_id in seen]
        for answer in run(operation, chosen, using=database()):
            report.add(answer, verb)
        if unseen := len(wanted) - len(seen):
            report.refuse(NotFoundError, verb, unseen)
        if done := [task for task in tasks if task.pk in set(report.ids)]:
            user: Any = request.user.pk
            LogEntry.objects.log_actions(user, done, CHANGE, str(verb.label))
        for level, text in report.messages():
            self.message_user(request, text, level)
        self.say_capped(request, ids)

    def visible(self, request: HttpRequest, ids: Sequence[int]) -> set[int]:
        """Return which of these tasks the person may see and steer."""
        rows = self.get_queryset(request).filter(pk__in=ids)
        found = set(rows.values_list("pk", flat=True))
        others = [id_ for id_ in ids if id_ not in found]
        return found.union(actions.own_operations(request, others))


def offer(verb: Verb) -> None:
    """Make a verb an action of the lists, for those who may do it: Django finds both by name."""

    @admin.action(description=verb.label, permissions=[verb.name])
    def act(
        page: SteeringAdmin, request: HttpRequest, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        return page.act(request, verb, queryset)

    setattr(SteeringAdmin, verb.name, act)
    setattr(SteeringAdmin, f"has_{verb.name}_permission", lambda _page, request: may(request, verb))


for _verb in VERBS.values():
    offer(_verb)


def verbs_of(operation: Operation) -> set[str]:
    """Return what a person has to be allowed for an operation."""
    edits = operation.patch is not None
    return {operation.verb, *(["move"] if operation.to else []), *(["edit"] if edits else [])}


def text_of(operation: Operation) -> str:
    """Return what an operation does to each task: no other is done than the page has shown."""
    return json.dumps([operation.verb, operation.to, operation.patch], sort_keys=True)


def sample_of(tasks: Iterable[Task], has_data: bool, patch: JSON = None) -> dict[str, object]:
    """Return the rows of some tasks: with their data, also as a patch would have them."""
    rows = [(task, data_of(task, patch) if has_data else []) for task in tasks]
    return {"rows": rows, "has_data": has_data, "has_patch": patch is not None}


def data_of(task: Task, patch: JSON) -> list[str]:
    try:
        values = [task.data] if patch is None else [task.data, merged(task.data, patch)]
        return [cells.readable(masked(value))[:LONGEST] for value in values]
    except (PayloadError, InvalidTaskError, RecursionError) as error:
        return [str(error)]


def chosen_ids(request: HttpRequest, queryset: QuerySet[Model]) -> list[int]:
    """
    Return the ids that were ticked, or those of the whole list, up to one more than CAP.

    A ticked one counts even where it no longer matches the list's filters.
    """
    if request.POST.get("select_across") == "1":
        return list(queryset.values_list("pk", flat=True)[: base.CAP + 1])
    return numbers(request.POST.getlist(ACTION_CHECKBOX_NAME))
