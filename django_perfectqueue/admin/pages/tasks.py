"""Tasks and failed tasks: lists to find them in, and a page with each one's story."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Exists, Model, OuterRef, Q, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_perfectqueue import models
from django_perfectqueue.bulk import TYPE
from django_perfectqueue.exceptions import ConfigError, TaskError
from django_perfectqueue.inspection.scope import in_scope, may_see
from django_perfectqueue.inspection.task import Fact, Story, remark, workflow
from django_perfectqueue.inspection.why_waiting import Code, Reason
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Status
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.codecs import STEP_LENGTH
from django_perfectqueue.queue import Queue, database
from django_perfectqueue.schedules.terms import signals_of
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts import base, filters
from ..parts.action_pages import PatchField, SteeringAdmin
from ..parts.actions import CANCEL, COPY, EDIT, RETRY, VERBS, may, own_operations
from ..parts.base import Extra, column
from .batches import family_page, known_to

# Reasons that name another task or a batch, which may be another user's.
NAMING = (
    Code.BLOCKED,
    Code.PARENT_FAILED,
    Code.SEQUENCE,
    Code.SEQUENCE_STOPPED,
    Code.BATCH_OPEN,
    Code.BATCH_FAILED,
)
ATTEMPTS = 50
STEPS = 50
MAY_SIGNAL = "perfectqueue.signal_task"


class SignalForm(forms.Form):
    """A signal by its name, and what it carries: without that, who sends it and the answer."""

    name = forms.CharField(label=_("Signal"), max_length=STEP_LENGTH, strip=False)
    answer = forms.CharField(required=False, widget=forms.HiddenInput)
    payload = PatchField(label=_("Data, as JSON"), required=False)


@admin.register(models.Task)
class TaskAdmin(SteeringAdmin):
    user_path = "user"
    story_template = "task/story"
    list_display = ["badge", "named", "kind", "for_user", "of_queue", "created", "when", "attempts"]
    list_display_links = ["named"]
    list_filter = [
        filters.StatusFilter,
        filters.QueueFilter,
        filters.UserFilter,
        filters.TypeFilter,
        filters.TagFilter,
        filters.SinceFilter,
        filters.UntilFilter,
        filters.WatchedFilter,
        filters.BatchFilter,
        filters.ReachFilter,
    ]
    actions = ["force_finish", "cancel", "retry", "move", "edit"]
    search_fields = ["key"]
    search_help_text = _(
        "A key or its beginning; upper and lower case differ. Where there are more than 50 "
        "queues, choose one first. At most 1,000 tasks of each queue are found."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        return self.listed(super().get_queryset(request))  # type: ignore[arg-type]

    @staticmethod
    def listed(rows: models.TaskQuerySet) -> models.TaskQuerySet:
        """Add what a list shows, and leave out the data."""
        rows = rows.with_tries().select_related("ticket", "dead_letter")
        return rows.defer("payload", "result_text", "dead_letter__message")

    def get_object(self, request: HttpRequest, object_id: str, *given: Any) -> object:
        """Return a task by one statement, with the data that lists leave out."""
        ids = filters.numbers([object_id])
        rows: Any = self.get_queryset(request).filter(pk__in=ids)
        if own := own_operations(request, ids):
            rows = self.listed(models.Task.objects.using(database()).filter(pk__in=own))
        watched = filters.watched_by(request).filter(task_id=OuterRef("pk"))
        member = models.BatchMember.objects.filter(task_id__in=ids).values("batch_id")
        batch = known_to(request, self.admin_site).batches.filter(pk__in=member).order_by()
        more = {"known_batch": Subquery(batch.values("pk")[:1])}
        more |= {"batch_name": Subquery(batch.values("name")[:1]), "is_watched": Exists(watched)}
        return rows.defer(None).annotate(clock=ServerNow(), **more).first()

    def get_ordering(self, request: HttpRequest | None) -> list[Any]:
        status = request.GET.get("status") if request else None
        return [f"-{models.id_for(status)}"]

    def get_paginator(
        self, request: HttpRequest, *given: Any, **options: Any
    ) -> base.BoundedPaginator:
        """SQLite and MariaDB find what the clock will move by its time, and sort it by id."""
        by_ticket = models.id_for(request.GET.get("status")) == "ticket__task_id"
        return (base.IdsFirstPaginator if by_ticket else base.BoundedPaginator)(*given, **options)

    def sought(self, request: HttpRequest, term: str) -> Q:
        return Q(pk__in=filters.ids_by_key(term, request))

    def story(self, request: HttpRequest, row: Any) -> dict[str, object]:
        story = Story(row, using=database(), most=ATTEMPTS)
        kept = list(workflow(story, STEPS + 1))
        relatives = family_page(row, request, self.admin_site)
        verbs = [
            verb
            for verb in self.fitting_verbs(request, row)
            if verb is not CANCEL or CANCEL not in relatives["dependent_verbs"]
        ]
        return {
            "verbs": verbs,
            "is_watched": row.is_watched,
            "badge": cells.badge(row.status),
            # Names of other users' tasks are only for who may see everyone's.
            "sentences": sentences(story, sees_all=may_see(request, None)),
            "about": shown_facts(story, story.about()),
            "batch": row.known_batch,
            "batch_name": printable(row.batch_name or ""),
            "times": shown_facts(story, story.times()),
            "line": shown_facts(story, story.counts()) if story.ticket else [],
            "letter": story.letter,
            "kept": [(one, shown_facts(story, one.facts())) for one in kept[:STEPS]],
            "kept_more": len(kept) > STEPS,
            "kept_shown": STEPS,
            "actions": story.actions,
            "progress": story.progress,
            "attempts": story.episodes,
            "attempts_shown": ATTEMPTS,
            "attempts_hidden": bool(story.attempts) and story.attempts[0].number > 1,
            **self.signals(request, row),
            **relatives,
        }

    def signals(self, request: HttpRequest, task: models.Task) -> dict[str, object]:
        """Return what a person may send: name, answer and label of each declared one not sent."""
        if task.outcome or not request.user.has_perm(MAY_SIGNAL):
            return {}
        sent: Any = ()
        try:
            declared = signals_of(task.type)
        except ConfigError as error:
            return {"signal_form": SignalForm(), "signals_lacking": str(error)}
        if declared:
            rows = models.Step.objects.using(database()).filter(task_id=task.pk)
            sent = set(rows.filter(kind=models.Step.Kind.SIGNAL).values_list("name", flat=True))
        buttons = [
            (name, answer, label)
            for name, labels in declared.items()
            if name not in sent
            for answer, label in (labels if isinstance(labels, Mapping) else {"": labels}).items()
        ]
        return {"signal_form": SignalForm(), "signals": buttons}

    def get_urls(self) -> list[URLPattern]:
        watch = require_POST(self.watch_view)
        return [
            self.view_path("<int:task_id>/watch/", watch, "task_watch"),
            self.view_path("<int:pk>/signal/", require_POST(self.signal_view), "task_signal"),
            self.view_path("known/", self.known_view, "known"),
            *super().get_urls(),
        ]

    def known_view(self, request: HttpRequest) -> HttpResponse:
        """Return what may be meant by the beginning of a user, a type or a tag."""
        name, start = request.GET.get("of"), request.GET.get("q", "")
        if not self.has_view_permission(request):
            raise PermissionDenied
        if name not in filters.COMPLETED or "\x00" in start:
            raise Http404
        return JsonResponse({"known": filters.known(name, start, request)})

    def watch_view(self, request: HttpRequest, task_id: int) -> HttpResponse:
        """Put a task on the list of the person who asks, or with ``stop`` take it off."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        with transaction.atomic(using=database()):
            # Who purges it deletes what was written beside it until then.
            mine = in_scope(filters.plain(), request, "user")
            rows = mine.select_for_update().filter(pk=task_id)
            if not rows.values_list("pk").first():
                raise Http404
            if "stop" in request.POST:
                filters.watched_by(request).filter(task_id=task_id).delete()
            else:
                person = str(request.user.pk)
                models.Watch.objects.using(database()).get_or_create(task_id=task_id, person=person)
        return HttpResponseRedirect(self.way_back(request))

    def signal_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Send a signal to a task; say so, or why not."""
        if not (self.has_view_permission(request) and request.user.has_perm(MAY_SIGNAL)):
            raise PermissionDenied
        task = in_scope(filters.plain(), request, "user").filter(pk=pk).first()
        if task is None:
            raise Http404
        form, by = SignalForm(request.POST), str(request.user)
        if form.is_valid():
            name, answer, data = form.cleaned_data.values()
            if data is None:
                data = {"by": by, "answer": answer} if answer else {"by": by}
            try:
                Queue(task.queue, using=database())[task.key].signal(name, data, by=by)
                self.log_change(request, task, f"Signal: {printable(name)}")
                text, level = gettext("Signal '%s' is sent."), messages.SUCCESS
                self.message_user(request, text % printable(name), level)
            except TaskError as error:
                self.message_user(request, printable(str(error)), messages.ERROR)
        for name, errors in form.errors.items():
            text = f"{form.fields[name].label}: {' '.join(map(str, errors))}"
            self.message_user(request, text, messages.ERROR)
        return HttpResponseRedirect(self.way_back(request))

    def fitting_verbs(self, request: HttpRequest, task: models.Task) -> list[object]:
        status = models.Status(task.status)
        # The data of a bulk operation are signed for its key.
        refused = (EDIT, COPY) if task.type == TYPE else ()
        fitting = [verb for verb in VERBS.values() if status in verb.statuses]
        return [verb for verb in fitting if verb not in refused and may(request, verb)]

    named = column(_("key"), lambda task: cells.with_fold(task, task.type, task.user, task.queue))
    of_queue = column(
        _("queue"), lambda task: cells.tasks_link(printable(task.queue), queue=task.queue)
    )
    kind = column(
        _("type"), lambda task: cells.tasks_link(cells.broken_at_dots(task.type), type=task.type)
    )
    for_user = column(_("user"), lambda task: cells.user_link(task.user))
    badge = column(_("status"), lambda task: cells.badge(task.status))
    created = column(_("created"), lambda task: cells.ago(task.created_at))

    @admin.display(description=_("when"))
    def when(self, task: models.Task) -> SafeString:
        fact: Any = cells.next_moment(task)
        return format_html(
            '{} <span class="pq-quiet">{}</span>', cells.short(fact.value), fact.label
        )

    attempts = column(_("attempts"), lambda task: int(task.tries))


@admin.register(models.DeadLetter)
class DeadLetterAdmin(SteeringAdmin):
    """The newest failure first, by when it ended: a task may be much older than that."""

    user_path = "task__user"
    list_display = ["badge", "named", "ended", "kind", "for_user", "of_queue", "cause"]
    list_display_links = None
    list_filter = [
        filters.EndingFilter,
        filters.GroupFilter,
        filters.QueueFilter,
        filters.UserFilter,
        filters.TypeFilter,
        filters.SinceFilter,
        filters.UntilFilter,
        filters.DeadReachFilter,
    ]
    ordering = ["-ended_at", "-pk"]
    actions = ["retry", "move", "edit", "purge"]
    status_shown = models.Outcome.FAILED.value

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer("task__payload", "task__result_text")

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        """Offer to retry the group that is chosen, as far as the other filters let it."""
        group = request.GET.get("group", "") if may(request, RETRY) else ""
        context = {
            "group_name": printable(group),
            "retry_url": self.bulk_url(request.GET, verb="retry") if group else "",
        }
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, *given: Any, **more: Any
    ) -> HttpResponse:
        return HttpResponseRedirect(cells.page_url("task_change", object_id))

    badge = column(_("status"), lambda letter: cells.badge(letter.status))

    @admin.display(description=_("task"))
    def named(self, letter: models.DeadLetter) -> SafeString:
        task = letter.task
        link = cells.task_link(task.pk, task)
        return cells.with_fold(
            link, task.type, task.user, task.queue, letter.group, message_of(letter)
        )

    kind = column(
        _("type"), lambda letter: narrowed(letter, "type", cells.broken_at_dots(letter.task.type))
    )
    for_user = column(
        _("user"), lambda letter: narrowed(letter, "user") if letter.task.user else cells.NOTHING
    )
    of_queue = column(_("queue"), lambda letter: narrowed(letter, "queue"))

    @admin.display(description=_("group and message"), empty_value=cells.NOTHING)
    def cause(self, letter: models.DeadLetter) -> SafeString | None:
        """Return the group, with a link to all of it, and below it the message."""
        if not letter.group:
            return None
        query = urlencode({"status": letter.status, "group": letter.group})
        link = format_html('<a href="?{}">{}</a>', query, cells.broken_at_dots(letter.group))
        return format_html(
            '{} <span class="pq-message pq-quiet">{}</span>', link, message_of(letter)
        )

    ended = column(_("ended"), lambda letter: cells.ago(letter.ended_at))


def message_of(letter: models.DeadLetter) -> str:
    return printable(Truncator(letter.message).chars(120))


def narrowed(letter: models.DeadLetter, name: str, shown: SafeString | None = None) -> SafeString:
    """Return what its task has under a name, with a link to all dead letters that have it."""
    value = getattr(letter.task, name)
    query = urlencode({"status": letter.status, name: value})
    return format_html('<a href="?{}">{}</a>', query, shown or printable(value))


def shown_facts(story: Story, facts: Sequence[Fact]) -> list[tuple[str, object]]:
    """Return facts as the page shows them, with links to what they name."""
    return [(str(fact.label), shown_value(story.task, fact)) for fact in facts if fact.is_shown]


def shown_value(task: models.Task, fact: Fact) -> object:
    value: Any = fact.value
    if isinstance(value, datetime):
        return cells.moment(value)
    if isinstance(value, timedelta):
        return cells.duration(value.total_seconds())
    if isinstance(value, list):
        links = ((linked(task, fact.name, one),) for one in value)
        return format_html_join(" ", '<span class="pq-tag">{}</span>', links)
    return linked(task, fact.name, f"{value:g}" if isinstance(value, float) else value)


def linked(task: models.Task, name: str, value: object) -> SafeString | str:
    """Return a value with a link to the list that has more of the kind, if one has."""
    text = printable(str(value))
    links: dict[str, Callable[[], SafeString]] = {
        "queue": lambda: cells.tasks_link(text, queue=task.queue),
        "type": lambda: cells.tasks_link(text, queue=task.queue, type=task.type),
        "user": lambda: cells.tasks_link(text, user=task.user),
        "tags": lambda: cells.tasks_link(text, tag=value),
        "limits": lambda: cells.list_link("limit", text, q=value),
        "schedule": lambda: cells.list_link("schedule", text, q=value),
        "runs": lambda: cells.list_link("worker", text),
        "weight": lambda: cells.list_link("fairshare", text, user=task.user, queue=task.queue),
        "user_running": lambda: links["weight"](),
    }
    return links[name]() if name in links else text


def sentences(story: Story, sees_all: bool) -> list[str]:
    """Return what became of a task, or what keeps it where it is."""
    remarked = remark(story.task)
    if story.ticket is None:
        closed = {
            Status.FINISHED: gettext("Its handler has returned."),
            Status.FAILED: gettext("It has failed, and is kept until someone acts."),
            Status.CANCELLED: gettext("It was cancelled on request."),
            Status.EXPIRED: gettext("Its time had passed before it could start."),
        }
        # It may have ended after its row was read.
        return [str(said) for said in [remarked or closed.get(Status(story.task.status))] if said]
    reason = story.reason
    if reason.code in NAMING and not sees_all:
        reason = Reason(code=Code.BLOCKED)
    asked = gettext("It has been asked to stop.") if story.ticket.cancel_requested else ""
    return [*filter(None, [asked, remarked]), said_of(reason, story.task)]


def said_of(reason: Reason, task: models.Task) -> str:
    """Return a reason in words; what is paused leads to where it is unpaused."""
    scope, _colon, named = reason.name.partition(":")
    limit = named if scope in models.Limit.Scope.values else reason.name
    pages = {
        Code.USER_PAUSED: ("fairshare", {"user": task.user, "queue": task.queue}),
        Code.QUEUE_PAUSED: ("queueshare", {"queue": task.queue}),
        Code.LIMIT_PAUSED: ("limit", {"q": limit}),
    }
    if reason.code not in pages:
        return reason.sentence
    model, query = pages[reason.code]
    return cells.list_link(model, reason.sentence, **query)
