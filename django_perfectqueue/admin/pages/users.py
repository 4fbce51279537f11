"""Users: what each is entitled to and received, and the page of one with all that concerns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.conf import options
from django_perfectqueue.fairness import edit
from django_perfectqueue.fairness.report import (
    COUNTED,
    MOST,
    WINDOWS,
    UserShare,
    balance,
    known_users,
)
from django_perfectqueue.fairness.wording import share_terms
from django_perfectqueue.health.queues import named_queues
from django_perfectqueue.inspection.scope import scope_of
from django_perfectqueue.inspection.why_waiting import why_waiting
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import EVERYONE, LIVE, Change, FairShare, Status, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import QUEUE_LENGTH, database

from ..parts.base import bounded
from ..parts.cells import (
    ago,
    badge,
    broken_at_dots,
    duration,
    figures_link,
    list_link,
    page_url,
    paused_mark,
    tabs,
    task_link,
    with_sign,
)
from ..parts.filters import queue_names
from ..parts.rules import NamedRows

OWNER = ("user", "queue")
TASKS = 20
VIEW_TASK = "perfectqueue.view_task"
HELD_BACK = frozenset(LIVE) - {Status.RUNNING}
OVER = {"minute": _("Last minute"), "hour": _("Last hour"), "day": _("Last day")}
HELD = {"capped": _("at its limit"), "limited": _("behind a limit")}


@admin.register(FairShare)
class UserAdmin(NamedRows):
    user_path = "user"
    owner = OWNER
    named_by = "user"
    editable = ("weight", "max_running")
    help = _(
        "What part of the processor time of a queue each user received, and what it was entitled"
        " to by its weight while users competed: one that wanted less than its part is entitled to"
        " what it wanted. A change takes effect at once, also for tasks that wait already; tasks"
        " that run are not disturbed. A pause holds in every queue."
    )
    fields = [*OWNER, "weight", "max_running", "paused", "paused_until", "note"]

    def listing(self, request: HttpRequest, name: str | None) -> dict[str, object]:
        queue, over = chosen_queue(request), request.GET.get("over", "hour")
        over = over if over in WINDOWS else "hour"
        scope = scope_of(request)
        if name is not None:
            known = [name]
        elif scope is not None:
            known = sorted(scope)[:MOST]
        else:
            known = [EVERYONE, *known_users(queue, using=database())]
        tasks = newest_tasks(name) if name and request.user.has_perm(VIEW_TASK) else []
        found = balance(
            queue,
            over=over,
            using=database(),
            top=MOST,
            user=name,
            also=known,
            among=scope,
            now=tasks[0].clock if tasks else None,
        )
        shares = [one for one in found.shares if name is None or not one.others]
        rules = self.rules(request, [one.user for one in shares if not one.others])
        asked = {} if name is None else {"user": name}
        largest = max((max(one.entitled, one.received) for one in shares), default=0.0) or 1.0
        return {
            "subtitle": printable(queue) if name is None else user_name(name),
            "rows": [
                self.row(request, number, one, rules.get(one.user), largest)
                | {"query": urlencode({"user": one.user, "queue": queue})}
                for number, one in enumerate(shares)
            ],
            "tabs": [
                tabs(OVER, over, asked | {"queue": queue}, "over"),
                tabs(
                    {one: printable(one) for one in sorted({queue, *queues_of(request)})},
                    queue,
                    asked | {"over": over},
                    "queue",
                ),
            ],
            "nothing": ""
            if options().USAGE_TIME != 0
            else _("It is not known who received what: USAGE_TIME is 0."),
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
            "label": user_name(one.user),
            "pause": paused_mark(rule) if rule else "",
            "entitled_bar": f"{one.entitled / top * 100:.2f}",
            "received_bar": f"{one.received / top * 100:.2f}",
            "entitled": percent(one.entitled),
            "received": percent(one.received),
            "difference": with_sign(more, percent(abs(one.difference))),
            "kind": "even" if abs(more) < 2 else "above" if more > 0 else "below",
            "waiting": bounded(one.waiting, COUNTED),
            "seconds": duration(one.seconds),
            "p50": duration(one.p50),
            "p95": duration(one.p95),
            "held": HELD.get(one.held, ""),
            **terms,
        }

    def about(
        self, request: HttpRequest, name: str, queue: str, tasks: Sequence[Any]
    ) -> dict[str, object]:
        """Return what the page of one user has: its tasks, why they wait, its shares, its trail."""
        using = database()
        held = [one for one in tasks if one.queue == queue and one.status in HELD_BACK]
        of_user = Q(kind=Change.Kind.SHARE, name=name)
        of_limit = Q(kind=Change.Kind.LIMIT, name=f"user:{name}")
        add = f"{page_url('fairshare_add')}?{urlencode({'user': name})}"
        query = {"user": name, "queue": queue}
        return {
            "reasons": [(task_link(one.pk, one), reason_of(one)) for one in held[-1:]],
            "tasks": [task_row(one) for one in tasks],
            "shares": [share_line(one) for one in edit.shares_of(name, using=using)],
            "add_url": add if self.has_add_permission(request) else "",
            "changes": self.trail(Change.objects.using(using).filter(of_user | of_limit)),
            "links": [
                list_link("task", _("Tasks"), **query),
                list_link("deadletter", _("Failed tasks"), **query),
                figures_link(_("Figures"), **query),
            ],
        }

    def rules(self, request: HttpRequest, names: Sequence[str]) -> Mapping[str, FairShare]:
        return edit.shares_in_force(names, chosen_queue(request), using=database())

    def change(self, name: str, rule: Any, given: Mapping[str, object], by: str) -> FairShare:
        """Change the share that holds, if it is the user's own, or else that of every queue."""
        queue = rule.queue if rule.pk and rule.user == name else ""
        return edit.change_share(name, queue, given, using=database(), by=by)

    def set_paused(self, name: str, terms: Mapping[str, Any] | None, by: str) -> bool:
        if terms is None:
            return edit.unpause_user(name, using=database(), by=by)
        edit.pause_user(name, terms, using=database(), by=by)
        return True


def queues_of(request: HttpRequest) -> list[str]:
    return [*named_queues(database()), *queue_names(request)]


def chosen_queue(request: HttpRequest) -> str:
    """Return the queue that was asked for, or else the first."""
    asked = request.GET.get("queue", "")
    if asked and len(asked) <= QUEUE_LENGTH and "\x00" not in asked:
        return asked
    return queues_of(request)[0]


def user_name(user: str) -> str:
    """Return how a user is named."""
    if user == EVERYONE:
        return gettext("(everyone else)")
    return printable(user) or gettext("(tasks without a user)")


def share_line(share: FairShare) -> SafeString:
    url = page_url("fairshare_change", share.pk)
    queue = printable(share.queue) or gettext("every queue")
    return format_html('<a href="{}">{}</a>: {}', url, queue, share_terms(share))


def reason_of(task: Any) -> str:
    return why_waiting(task, using=database(), now=task.clock, ticket=task.ticket).sentence


def newest_tasks(user: str) -> list[Any]:
    rows = Task.objects.using(database()).filter(user=user).select_related("ticket", "dead_letter")
    rows = rows.defer("payload", "result_text", "dead_letter__message")
    return list(rows.annotate(clock=ServerNow()).order_by("-pk")[:TASKS])


def task_row(task: Task) -> list[object]:
    cells = (badge(task.status), task_link(task.pk, task), broken_at_dots(task.type))
    return [*cells, printable(task.queue), ago(task.created_at)]


def percent(part: float) -> str:
    return gettext("%(number)s%%") % {"number": number_format(round(part * 100, 1), 1)}
