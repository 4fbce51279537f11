"""The page that shows what would be done to all tasks that match a list's filters, and asks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.bulk import RATE, TYPE, Operation, Preview, Selection, preview, submit_bulk
from django_perfectqueue.bulk.selection import ALLOWED
from django_perfectqueue.exceptions import InvalidTaskError, PayloadError
from django_perfectqueue.inspection.scope import scope_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Status, Task
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.context import masked
from django_perfectqueue.payload.inputs import merged
from django_perfectqueue.queue import database

from .actions import BULK, Verb
from .base import COUNTED, AtLeast, bounded, whole
from .cells import badge, page_url, recognized
from .filters import ALL, numbers, plain
from .task_story import readable

if TYPE_CHECKING:
    from .action_pages import SteeringAdmin

TIMES = ("since", "until")
ALIKE = ("queue", "type", "group", "tag", "batch", *TIMES)
FILTERS = ("status", "user", "q", *ALIKE)
TERMS = ("verb", "to", "patch", "rate", "run_in")
BUTTONS = ("_show", "_do", "shown")
HARMLESS = ("reach", "p", "o", "e", "_changelist_filters", "csrfmiddlewaretoken", *TERMS, *BUTTONS)
LONGEST = 2_000


class PatchField(forms.CharField):
    """JSON as it is typed in: what can't be read, in whatever way, is an error of the form."""

    def to_python(self, value: object) -> JSON:
        text = super().to_python(value)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise ValidationError(forms.JSONField.default_error_messages["invalid"]) from error


class BulkForm(forms.Form):
    """What is to be done to all that match."""

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
    rate = forms.FloatField(
        label=_("Tasks a second"),
        initial=RATE,
        help_text=_("A higher rate puts more load on the database."),
    )
    run_in = forms.CharField(
        label=_("Done by the workers of queue"), required=False, max_length=100
    )

    def __init__(self, verbs: list[str], data: Mapping[str, str]) -> None:
        super().__init__({"verb": verbs[0], "rate": f"{RATE:g}", **data})
        self.fields["verb"].choices = [(name, BULK[name].label) for name in verbs]  # type: ignore[attr-defined]


def bulk_verbs(request: HttpRequest, status: str = "") -> list[str]:
    """Return what a person may do in bulk to tasks of a status."""
    return [
        name
        for name, verb in BULK.items()
        if (not status or status in ALLOWED[name]) and may(request, verb)
    ]


def may(request: HttpRequest, verb: Verb) -> bool:
    return bool(request.user.has_perm(verb.permission))


def selection_of(request: HttpRequest, values: Mapping[str, str], *, status: str) -> Selection:
    """
    Return the filter of a list as its address says; ``status`` is the one it shows by default.

    Every bulk operation of the admin gets its filter here: what confines a person does so
    here, by ``users``. Raise InvalidTaskError for a filter that a bulk operation has not.
    """
    if unknown := sorted(values.keys() - {*FILTERS, *HARMLESS}):
        text = gettext("A bulk operation has no filter '%s': remove it, or select the tasks.")
        raise InvalidTaskError(text % unknown[0])
    given = {name: values.get(name, "").replace("\x00", "") for name in FILTERS}
    word = given["status"] or status
    if word not in ("", ALL, *Status.values):
        raise InvalidTaskError(gettext("There is no status '%s'.") % word)
    if given["batch"] and not numbers([given["batch"]]):
        raise InvalidTaskError(gettext("There is no such batch."))
    return Selection(
        **{name: given[name] for name in ALIKE},
        status="" if word == ALL else word,
        user=given["user"] or None,
        key=given["q"],
        users=None if (users := scope_of(request)) is None else tuple(sorted(users)),
    )


def own_operations(request: HttpRequest, ids: Sequence[int]) -> list[int]:
    """
    Return which of these tasks do a bulk operation that the person has asked for.

    They are of no customer; ADMIN_SCOPE lets the person see them who asked, as long as the
    customers of the operation are still in the scope.
    """
    if (users := scope_of(request)) is None:
        return []
    rows = plain().filter(pk__in=ids, type=TYPE)
    return [row.pk for row in rows if is_own(row, request, users)]


def forbidden_operations(request: HttpRequest, ids: Collection[int]) -> set[int]:
    """Return which of these tasks do a bulk operation that the person may not ask for."""
    rows = plain().filter(pk__in=ids, type=TYPE)
    return {row.pk for row in rows if not may_ask_for(row, request)}


def may_ask_for(task: Task, request: HttpRequest) -> bool:
    operation = operation_in(task)
    return operation is not None and may(request, BULK[operation.verb])


def is_own(task: Task, request: HttpRequest, users: Collection[str]) -> bool:
    operation = operation_in(task)
    if operation is None or operation.by != str(request.user):
        return False
    confined = operation.selection.users
    return confined is not None and set(confined) <= set(users)


def operation_in(task: Task) -> Operation | None:
    """Return the bulk operation that a task does; None where it can't be read."""
    try:
        return Operation.read(task.data, task.key)
    except (InvalidTaskError, PayloadError):
        return None


class BulkPage:
    """One request for the page, or to do what it showed."""

    def __init__(self, admin: SteeringAdmin, request: HttpRequest, *, status: str) -> None:
        self.admin = admin
        self.request = request
        self.status = status
        sent = request.POST if request.method == "POST" else request.GET
        self.values = {name: str(value) for name, value in sent.items()}
        self.list_url = page_url(f"{admin.opts.model_name}_changelist")

    def respond(self) -> HttpResponse:
        request = self.request
        if not self.admin.has_view_permission(request) or not bulk_verbs(request):
            raise PermissionDenied
        try:
            selection = selection_of(request, self.values, status=self.status)
        except InvalidTaskError as error:
            self.admin.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self.back)
        verbs = bulk_verbs(request, selection.status)
        if not verbs:
            text = gettext("There is no bulk operation for tasks of this status.")
            self.admin.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(self.back)
        form = BulkForm(verbs, self.values)
        operation = self.operation(form, selection)
        if operation and request.method == "POST" and "_do" in self.values:
            if self.values.get("shown") != text_of(operation):
                form.add_error(None, gettext("The operation has changed: check the new preview."))
                return self.show(form, selection, operation)
            try:
                return self.carry_out(operation, form.cleaned_data["run_in"])
            except InvalidTaskError as error:
                form.add_error(None, str(error))
                operation = None
        return self.show(form, selection, operation)

    def operation(self, form: BulkForm, selection: Selection) -> Operation | None:
        """Return what the form asks for; None, with its errors, where that is not possible."""
        if not form.is_valid():
            return None
        terms = {name: form.cleaned_data[name] for name in ("verb", "to", "patch", "rate")}
        needed = {terms["verb"], *(["move"] * bool(terms["to"]))}
        needed |= {"edit"} if terms["patch"] is not None else set()
        if not needed <= set(bulk_verbs(self.request)):
            raise PermissionDenied
        try:
            return Operation(**terms, selection=selection, by=str(self.request.user))
        except InvalidTaskError as error:
            form.add_error(None, str(error))
            return None

    def carry_out(self, operation: Operation, run_in: str) -> HttpResponse:
        task = submit_bulk(operation, queue=run_in, using=database())
        row = task.metadata()
        self.admin.log_change(self.request, row, f"{BULK[operation.verb].label}: {self.query}")
        text = gettext("A task does the work. This page shows its progress, and can cancel it.")
        self.admin.message_user(self.request, text, messages.SUCCESS)
        return HttpResponseRedirect(page_url("task_change", row.pk))

    def show(
        self, form: BulkForm, selection: Selection, operation: Operation | None
    ) -> HttpResponse:
        context: dict[str, object] = {
            "title": _("All that match"),
            "original": gettext("All that match"),
            "form": form,
            "kept": self.kept(selection),
            "back": self.back,
        }
        if operation:
            found = preview(operation.verb, selection, using=database())
            context |= {
                "operation": operation,
                "label": BULK[operation.verb].label,
                "shown": text_of(operation),
                "matching": {
                    "count": found.total,
                    "total": AtLeast(found.total) if found.is_bounded else whole(found.total),
                    "none": not found.total,
                    "statuses": [(badge(word), bounded(n, COUNTED)) for word, n in found.statuses],
                    "users": [(printable(user), bounded(n, COUNTED)) for user, n in found.users],
                    "rows": sample_rows(found, operation.patch),
                    "more": max(0, found.total - len(found.sample)),
                },
            }
        return self.admin.page(self.request, "bulk", context)

    def kept(self, selection: Selection) -> list[tuple[str, str]]:
        """
        Return the filters that hold, with the status that the list shows by default.

        A time that was given as so long ago stands still from here on.
        """
        times = {name: getattr(selection, name) for name in TIMES}
        values = {"status": selection.status, **self.values, **times}
        return [(name, values[name]) for name in FILTERS if values.get(name)]

    @property
    def query(self) -> str:
        return urlencode({name: self.values[name] for name in FILTERS if self.values.get(name)})

    @property
    def back(self) -> str:
        """Return the way to the list, with each filter that it has, also one that is refused."""
        own = (*TERMS, *BUTTONS, "csrfmiddlewaretoken")
        kept = {name: value for name, value in self.values.items() if name not in own}
        return f"{self.list_url}?{urlencode(kept)}"


def text_of(operation: Operation) -> str:
    """Return what an operation does to each task: no other is done than the page has shown."""
    return json.dumps([operation.verb, operation.to, operation.patch], sort_keys=True)


def sample_rows(found: Preview, patch: JSON) -> list[dict[str, object]]:
    """Return the sample's cells; with a patch their data before and after."""
    rows = []
    for task in found.sample:
        row: dict[str, object] = {"cells": recognized(task)}
        if patch is not None:
            row["data"] = before_and_after(task, patch)
        rows.append(row)
    return rows


def before_and_after(task: Task, patch: JSON) -> list[str]:
    try:
        values = task.data, merged(task.data, patch)
        return [readable(masked(value))[:LONGEST] for value in values]
    except (PayloadError, InvalidTaskError, RecursionError) as error:
        return [str(error)]
