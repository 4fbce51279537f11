"""Queues and users: what each has and received, its weight and its pause; and the page of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import edit, report
from django_perfectqueue.fairness.audit import acting
from django_perfectqueue.fairness.report import MOST, WINDOWS, UserShare, balance, known_users
from django_perfectqueue.health.queues import QueueFigures, named_queues, overview, served
from django_perfectqueue.inspection.scope import may_see, scope_of
from django_perfectqueue.inspection.why_waiting import Case, workers_serving
from django_perfectqueue.lib.checks import text
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import LATEST
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import EVERYONE, LIVE, Change, FairShare, Limit, QueueShare, Status
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.inputs import QUEUE_LENGTH
from django_perfectqueue.queue import database
from django_perfectqueue.store.records.counts import COUNTED
from django_perfectqueue.templatetags import perfectqueue as cells

from ..parts.base import Extra
from ..parts.filters import plain, queue_names
from .limits import RuleAdmin, pause_all_of

# The name of who has paused a queue ends so where all queues were paused at once.
MAINTENANCE = " (maintenance)"
# A page has so many rows: more fields than Django takes of a form are none of it.
ROWS = MOST + report.KNOWN + 1
TRAIL = 20


class NamedRows(RuleAdmin):
    """
    A page of names, and with a name in the URL, as ``named_by`` says, the page of that one.

    ``editable`` are the columns of the model that are edited in place.
    """

    named_by = ""
    editable: Sequence[str] = ()
    help: object = ""

    def changelist_view(self, request: HttpRequest, extra_context: Extra = None) -> HttpResponse:
        name = request.GET.get(self.named_by)
        if not self.has_view_permission(request) or not self.is_open_for(request, name):
            raise PermissionDenied
        column: Any = self.model._meta.get_field(self.named_by)
        if name is not None and not text(column.max_length).holds(name):
            raise BadRequest
        if request.method == "POST":
            self.carry_out(request)
            return HttpResponseRedirect(request.get_full_path())
        names = self.opts.verbose_name_plural
        context = {
            "title": str(names).strip(),
            "original": str(names).strip() if name is None else printable(name) or cells.NOTHING,
            "noun": self.named_by,
            "noun_shown": column.verbose_name,
            "fields": [self.model._meta.get_field(column).verbose_name for column in self.editable],
            "help": self.help,
            "is_editable": self.has_change_permission(request),
            "is_pausable": self.may_pause(request),
            "name": name,
            **self.listing(request, name),
            **(extra_context or {}),
        }
        return self.page(request, "names", context)

    # What a page of names has of its own.

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        """Return the rows, with their ``titles``, of all or of the one with this name."""
        raise NotImplementedError

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the row that holds for each of these names."""
        raise NotImplementedError

    def change(self, name: str, rule: Any, given: Mapping[str, object]) -> Model:
        """Store values that were edited in place; return the row."""
        raise NotImplementedError

    def may_pause(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def is_open_for(self, request: HttpRequest, name: str | None) -> bool:
        """Return whether the scope of a person has this name."""
        return name is None or not self.user_path or may_see(request, name)

    # What is shown.

    def in_place(
        self, request: HttpRequest, number: int, name: str, rule: Any
    ) -> dict[str, list[SafeString]]:
        """Return the fields of a row that are edited in place; the first carries the name."""
        columns: list[Any] = list(map(self.model._meta.get_field, self.editable))
        values = [shown(getattr(rule, column.name)) for column in columns]
        if not self.has_change_permission(request):
            return {"fields": [format_html("{}", value or cells.NOTHING) for value in values]}
        widgets = [
            column.formfield().widget.render(
                f"{column.name}-{number}",
                value,
                {"class": "pq-in-place", "aria-label": f"{column.verbose_name}: {printable(name)}"},
            )
            for column, value in zip(columns, values, strict=True)
        ]
        hidden = format_html('<input type="hidden" name="name-{}" value="{}">', number, name)
        return {"fields": [format_html("{}{}", hidden, widgets[0]), *widgets[1:]]}

    def trail(self, which: Q) -> QuerySet[Change]:
        return Change.objects.using(database()).filter(which).order_by("-pk")[:TRAIL]

    # What is done.

    def carry_out(self, request: HttpRequest) -> None:
        """Do what a button says, and say what came of it."""
        if "save" in request.POST:
            self.save_rows(request)
        elif {"pause", "unpause"} & set(request.POST):
            names = request.POST.getlist("chosen")[:ROWS]
            self.pause_as_asked(request, self.checked(request, names, self.may_pause(request)))

    def save_rows(self, request: HttpRequest) -> None:
        keys = [f"name-{number}" for number in range(ROWS)]
        names = [request.POST[key] for key in keys if key in request.POST]
        may_change = self.has_change_permission(request)
        rules = self.rules(request, self.checked(request, names, may_change))
        changed = 0
        for number, name in enumerate(names):
            try:
                if given := self.edited(request, number, rules[name]):
                    row = self.change(name, rules[name], given)
                    self.log_change(request, row, ", ".join(given))
                    changed += 1
            except (ValidationError, ConfigError) as error:
                words = " ".join(getattr(error, "messages", [str(error)]))
                self.message_user(request, f"{printable(name)}: {words}", messages.ERROR)
        if changed:
            self.say_done(request, changed, _("saved"))

    def edited(self, request: HttpRequest, number: int, rule: Any) -> dict[str, object]:
        """Return the values of a row that differ. Raise ValidationError for what can't be one."""
        found = {}
        for column in self.editable:
            field: Any = self.model._meta.get_field(column)
            typed = request.POST.get(f"{column}-{number}", "")
            value = field.clean(field.formfield().clean(typed), rule)
            if value != getattr(rule, column):
                found[column] = value
        return found

    def checked(self, request: HttpRequest, names: list[str], is_allowed: bool) -> list[str]:
        """Return names from a form. Raise PermissionDenied for those of others than the scope's."""
        if not is_allowed or not all(self.is_open_for(request, name) for name in names):
            raise PermissionDenied
        return names


@admin.register(QueueShare)
class QueueAdmin(NamedRows):
    owner = ("queue",)
    named_by = "queue"
    editable = ("weight",)
    help = _(
        "How workers that serve several queues divide their time: by weight. They follow a change"
        " within seconds. A paused queue starts no task; tasks that run are not disturbed."
    )
    fields = ["queue", "weight"]

    def may_pause(self, request: HttpRequest) -> bool:
        """What pauses a queue is a limit."""
        return self.is_open(request) and request.user.has_perm("perfectqueue.change_limit")

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        found = overview(using=database(), queue=name)
        rules = self.rules(request, [queue.name for queue in found.queues])
        paused = found.pauses(using=database())
        marks = {name: cells.paused_mark(limit) for name, limit in paused.items()}
        serving = [worker for worker in found.workers if name in worker.queues]
        return {
            "rows": [
                queue_row(one)
                | self.in_place(request, number, one.name, rules[one.name])
                | {"pause": marks.get(one.name, "")}
                for number, one in enumerate(found.queues)
            ],
            "is_maintained": any(one.paused_by.endswith(MAINTENANCE) for one in paused.values()),
            "workers": serving,
            **({} if name is None else self.about(name)),
        }

    def about(self, queue: str) -> dict[str, object]:
        """Return what the page of one queue has: its trail, and where there is more of it."""
        of_share = Q(kind=Change.Kind.QUEUE, name="", queue=queue)
        of_limit = Q(kind=Change.Kind.LIMIT, name=f"queue:{queue}")
        return {
            "changes": self.trail(of_share | of_limit),
            "links": [
                *cells.links(queue=queue),
                cells.list_link("fairshare", _("Users"), queue=queue),
                cells.list_link("limit", _("Limits"), q=queue),
            ],
        }

    def carry_out(self, request: HttpRequest) -> None:
        """Pause all queues for a maintenance, and end it: what was paused before it stays so."""
        if not {"pause_all", "unpause_all"} & set(request.POST):
            super().carry_out(request)
            return
        if not self.may_pause(request):
            raise PermissionDenied
        limits = Limit.objects.using(database()).filter(scope=Limit.Scope.QUEUE, paused=True)
        names = limits.values_list("name", flat=True)
        if "unpause_all" in request.POST:
            self.pause_each(request, names.filter(paused_by__endswith=MAINTENANCE), {})
        elif terms := self.pause_terms(request):
            # A pause that ends before the maintenance does becomes one for that.
            ends = Q(paused_until__lt=terms["paused_until"] or LATEST)
            others = sorted({*every_queue()} - {*names.exclude(ends)})
            with acting(f"{request.user}{MAINTENANCE}"):
                self.pause_each(request, others, terms)

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, QueueShare]:
        rows = QueueShare.objects.using(database()).filter(queue__in=names)
        found = {row.queue: row for row in rows}
        return {name: found.get(name) or QueueShare(queue=name) for name in names}

    def change(self, name: str, rule: Any, given: Mapping[str, object]) -> QueueShare:
        return edit.change(QueueShare, {"queue": name}, given, using=database())

    def set_paused(self, name: str, terms: Mapping[str, Any]) -> bool:
        return pause_all_of(Limit.Scope.QUEUE, name, terms)


def every_queue() -> list[str]:
    """Return the queues that have tasks, workers or a name in the settings."""
    stored, workers = distinct(plain(), "queue", limit=None), workers_serving(using=database())
    return [*named_queues(database()), *served(workers), *stored]


def queue_row(queue: QueueFigures) -> dict[str, object]:
    """Return a queue as the tables show it."""
    names = ("running", "stalled", "scheduled", "retrying", "blocked")
    counts = {name: counted(queue, getattr(queue, name)) for name in names}
    growth = None if queue.growth_a_minute is None else round(queue.growth_a_minute)
    return {
        "figures": queue,
        "name": queue.name,
        "label": printable(queue.name),
        "counts": {
            **counts,
            "waiting": cells.bounded(queue.waiting, COUNTED),
            "failed": cells.whole(queue.failed_last_hour),
        },
        "growth": cells.NOTHING
        if growth is None
        else cells.with_sign(growth, cells.whole(abs(growth))),
    }


def counted(queue: QueueFigures, count: int) -> object:
    """Return a count; where not all were counted, of none it is not known if there are any."""
    if not queue.is_bounded:
        return cells.bounded(count, COUNTED)
    return cells.AtLeast(count) if count else cells.NOTHING


TASKS = 20
HELD_BACK = frozenset(LIVE) - {Status.RUNNING}
OVER = {"minute": _("Last minute"), "hour": _("Last hour"), "day": _("Last day")}
ORDERS = {"received": _("by received"), report.WAITING: _("by waiting")}
HELD = {"capped": _("at its limit"), "limited": _("behind a limit")}


@admin.register(FairShare)
class UserAdmin(NamedRows):
    user_path = "user"
    owner = ("user", "queue")
    named_by = "user"
    editable = ("weight", "max_running")
    help = _(
        "What part of the processor time of a queue each user received, and what it was entitled "
        "to by its weight while users competed: a user that needed less is entitled to what it "
        "needed. A change takes effect at once, also for tasks that wait already; tasks that run "
        "are not disturbed. A pause holds in every queue."
    )
    fields = [*owner, "weight", "max_running", "paused", "paused_until", "note"]

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        queue, over = chosen_queue(request), request.GET.get("over", "hour")
        over = over if over in WINDOWS else "hour"
        by, scope = request.GET.get("by", "received"), scope_of(request)
        if name is not None:
            known = [name]
        elif scope is not None:
            known = sorted(scope)[:MOST]
        else:
            known = [EVERYONE, *known_users(queue, using=database())]
        tasks = newest_tasks(name) if name and cells.sees("task") else []
        found = balance(
            queue,
            over=over,
            using=database(),
            top=MOST,
            user=name,
            also=known,
            among=scope,
            by=by,
            now=tasks[0].clock if tasks else None,
        )
        shares = [one for one in found.shares if name is None or not one.others]
        rules = self.rules(request, [one.user for one in shares if not one.others])
        asked = {"over": over, "queue": queue} | ({"by": by} if name is None else {"user": name})
        queues = {one: printable(one) for one in sorted({queue, *queues_of(request)})}
        largest = max((max(one.entitled, one.received) for one in shares), default=0.0) or 1.0
        return {
            "subtitle": printable(queue) if name is None else cells.user_name(name),
            "rows": [
                self.row(request, number, one, rules.get(one.user), largest)
                for number, one in enumerate(shares)
            ],
            "tabs": [
                cells.tabs(OVER, over, asked, "over"),
                cells.tabs(queues, queue, asked, "queue"),
                cells.tabs(ORDERS if name is None else {}, by, asked, "by"),
            ],
            "is_not_recorded": options().USAGE_TIME == 0,
            "kept": {"queue": queue},
            **({} if name is None else self.about(request, name, queue, tasks)),
        }

    def row(
        self, request: HttpRequest, number: int, one: UserShare, rule: FairShare | None, top: float
    ) -> dict[str, object]:
        """Return a line of the table; the bars are from 0 to 100."""
        terms = self.in_place(request, number, one.user, rule) if rule else {"fields": ["", ""]}
        more = round(one.difference * 100, 1)
        return {
            "share": one,
            "name": one.user if rule else None,
            "label": cells.user_name(one.user),
            "pause": cells.paused_mark(rule) if rule else "",
            "bars": [f"{part / top * 100:.2f}" for part in (one.entitled, one.received)],
            "difference": cells.with_sign(more, cells.percent(abs(one.difference))),
            "kind": "even" if abs(more) < 2 else "above" if more > 0 else "below",
            "waiting": cells.bounded(one.waiting, report.COUNTED),
            "held": HELD.get(one.held, ""),
            **terms,
        }

    def about(
        self, request: HttpRequest, name: str, queue: str, tasks: Sequence[Any]
    ) -> dict[str, object]:
        """Return what the page of one user has: its tasks, why they wait, its shares, its trail."""
        held = [one for one in tasks if one.queue == queue and one.status in HELD_BACK]
        of_user = Q(kind=Change.Kind.SHARE, name=name)
        of_limit = Q(kind=Change.Kind.LIMIT, name=f"user:{name}")
        add = f"{cells.page_url('fairshare_add')}?{urlencode({'user': name})}"
        return {
            "reasons": [(cells.task_link(one.pk, one), reason_of(one)) for one in held[-1:]],
            "tasks": tasks,
            "shares": edit.shares_of(name, using=database()),
            "add_url": add if self.has_add_permission(request) else "",
            "changes": self.trail(of_user | of_limit),
            "links": cells.links(user=name, queue=queue),
        }

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, FairShare]:
        return edit.shares_in_force(names, chosen_queue(request), using=database())

    def change(self, name: str, rule: Any, given: Mapping[str, object]) -> FairShare:
        """Change the share that holds, if it is the user's own, or else that of every queue."""
        queue = rule.queue if rule.pk and rule.user == name else ""
        return edit.change_share(name, queue, given, using=database())

    def set_paused(self, name: str, terms: Mapping[str, Any]) -> bool:
        if not terms:
            return edit.unpause_user(name, using=database())
        edit.pause_user(name, terms, using=database())
        return True


def queues_of(request: HttpRequest) -> list[str]:
    return [*named_queues(database()), *queue_names(request)]


def chosen_queue(request: HttpRequest) -> str:
    """Return the queue that was asked for, or else the first."""
    asked = request.GET.get("queue", "")
    if asked and len(asked) <= QUEUE_LENGTH and "\x00" not in asked:
        return asked
    return queues_of(request)[0]


def reason_of(task: Any) -> str:
    return Case(task, task.ticket, database(), task.clock).reason.sentence


def newest_tasks(user: str) -> list[Any]:
    rows: Any = plain().with_status().filter(user=user)
    rows = rows.select_related("ticket", "dead_letter")
    rows = rows.defer("payload", "result_text", "dead_letter__message")
    return list(rows.annotate(clock=ServerNow()).order_by("-pk")[:TASKS])


def shown(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
