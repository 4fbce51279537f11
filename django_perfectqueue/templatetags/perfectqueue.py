"""How a status, a time and a duration are shown: for the pages of the admin, as filters, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.template import Library
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.fairness.wording import pause_terms, share_terms
from django_perfectqueue.inspection.steering import describe_action, describe_change
from django_perfectqueue.inspection.task import Fact, lease_until, times
from django_perfectqueue.lib import durations
from django_perfectqueue.lib.checks import is_utf_8
from django_perfectqueue.lib.printable import printable, printable_lines
from django_perfectqueue.models import EVERYONE, Pausable, Status, Task
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import STARS, masked

register = Library()
LONGEST = 100_000
NOTHING = "\N{EN DASH}"
# The admin site whose page is shown, and the request: elsewhere there is neither.
page_shown: ContextVar[tuple[Any, Any]] = ContextVar("page_shown", default=(None, None))


class AtLeast(int):
    """A number of which only so much was counted: it is shown with a plus."""

    def __str__(self) -> str:
        return f"{whole(int(self))}+"


def whole(count: int) -> str:
    return number_format(count, force_grouping=True)


def bounded(count: int, most: int) -> str:
    """Return a count, or that it is at least the most that was counted."""
    return str(AtLeast(most)) if count >= most else whole(count)


def page_url(name: str, *args: object) -> str:
    """Return the address of a page of this app, in the site that is shown or the default one."""
    site, _request = page_shown.get()
    return reverse(f"admin:perfectqueue_{name}", args=args, current_app=site and site.name)


def sees(model: str) -> bool:
    """Return whether the reader may see the pages of a model, or those of figures."""
    site, request = page_shown.get()
    if request is None:
        return False
    if model == "figures":  # of some users where the scope is theirs
        return bool(request.user.has_perm("perfectqueue.view_overview"))
    kind = apps.get_model("perfectqueue", model)
    return bool(site.get_model_admin(kind).has_view_permission(request))


def link(model: str, url: str, shown: object) -> SafeString:
    """Return a link to a page of a model for who may see it, and for others what is shown."""
    return format_html('<a href="{}">{}</a>' if sees(model) else "{1}", url, shown)


def badge(status: str) -> SafeString:
    """Return the status as a word; its colour only helps."""
    return mark(status, Status(status).label)


def broken_at_dots(type_: str) -> SafeString:
    """Return the type of a task, to be broken after a dot rather than anywhere."""
    parts = ([part] for part in printable(type_).split("."))
    return format_html_join(mark_safe(".<wbr>"), "{}", parts)


def tasks_link(shown: object, **query: object) -> SafeString:
    """Return a link to the list of tasks with filters, by their parameters."""
    return list_link("task", shown, **query)


def task_link(task_id: int, shown: object) -> SafeString:
    return link("task", page_url("task_change", task_id), shown)


@register.simple_tag
def list_link(model: str, shown: object, **query: object) -> SafeString:
    """Return a link to another list, by the parameters of its search and filters."""
    url = page_url(f"{model}_changelist")
    return link(model, f"{url}?{urlencode(query)}" if query else url, shown)


def tabs(
    words: Mapping[str, object], chosen: str, kept: Mapping[str, str], name: str
) -> list[tuple[object, str, bool]]:
    """Return links to choose one of some words, by a parameter of this name."""
    return [
        (shown, f"?{urlencode({**kept, name: word})}", word == chosen)
        for word, shown in words.items()
    ]


def links(**query: object) -> list[SafeString]:
    """Return links to the tasks and the figures of a queue or a user."""
    return [
        list_link("task", _("Tasks"), **query),
        list_link("deadletter", _("Failed tasks"), **query),
        link("figures", f"{page_url('figures')}?{urlencode(query)}", _("Figures")),
    ]


def user_link(user: str) -> SafeString | str:
    """Return a link to the tasks of a user."""
    return tasks_link(printable(user), user=user) if user else NOTHING


def with_fold(shown: object, *more: str) -> SafeString:
    """Return a cell that also has what a narrow page shows of other columns."""
    parts_shown = printable(", ".join(filter(None, more)))
    return format_html('{} <span class="pq-fold pq-quiet">{}</span>', shown, parts_shown)


def mark(kind: str, word: object) -> SafeString:
    """Return a word as a status is shown, in the colour of that kind."""
    return format_html('<span class="pq-status pq-{}">{}</span>', kind, word)


def paused_mark(rule: Pausable) -> SafeString | str:
    """Return a mark for what is paused, with until when, by whom and why."""
    if not rule.paused:
        return ""
    paused = mark("failed", _("paused"))
    return format_html(' {} <span class="pq-quiet">{}</span>', paused, pause_terms(rule))


def moment(value: datetime | None) -> str:
    """Return a time to the second, in the current time zone."""
    return NOTHING if value is None else date_format(template_localtime(value), "Y-m-d H:i:s")


def short(value: datetime | None) -> SafeString | str:
    """Return a time as a narrow cell: of today's without the day, of others without seconds."""
    if value is None:
        return NOTHING
    local = template_localtime(value)
    today = template_localtime(timezone.now()).date()
    parts = ["H:i:s"] if local.date() == today else ["Y-m-d", "H:i"]
    parts_shown = [(date_format(local, part),) for part in parts]
    shown = format_html_join(" ", '<span class="pq-part">{}</span>', parts_shown)
    return format_html('<span title="{}">{}</span>', moment(value), shown)


def ago(value: datetime | None) -> SafeString | str:
    """Return how long ago a time was, or in how long it comes; the time itself is its title."""
    if value is None:
        return NOTHING
    seconds = (timezone.now() - value).total_seconds()
    sentence = gettext("%s ago") if seconds >= 0 else gettext("in %s")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        value.isoformat(),
        moment(value),
        sentence % durations.short_duration(seconds),
    )


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, or that there is none."""
    return NOTHING if seconds is None else durations.long_duration(seconds)


def user_name(user: str) -> str:
    """Return how a user is named."""
    if user == EVERYONE:
        return gettext("(everyone else)")
    return printable(user) or gettext("(tasks without a user)")


def percent(part: float) -> str:
    return gettext("%(number)s%%") % {"number": number_format(round(part * 100, 1), 1)}


def payload(text: str) -> dict[str, object]:
    """
    Return JSON set out to be read, without what is sensitive; or else the text as it is.

    Of what is nested too deep for that nothing is shown: it may well be JSON with secrets.
    """
    try:
        pretty, problem = readable(masked(decode(text))), ""
    except (PayloadError, RecursionError) as error:
        is_deep = isinstance(error.__cause__ or error, RecursionError)
        pretty, problem = STARS if is_deep else text, str(error)
    pretty = printable_lines(pretty)
    cut = max(0, len(pretty) - LONGEST)
    return {"text": pretty[:LONGEST], "problem": problem, "cut": cut}


def bars(label: object, parts: Iterable[tuple[str, float, float, float]]) -> SafeString:
    """Return a picture of 100 by 14: of each part its kind, left edge, width and height."""
    rects = [
        (kind, *(f"{length:.2f}" for length in (x, wide, 14 - high, high)))
        for kind, x, wide, high in parts
    ]
    rect = '<rect class="pq-bar-{}" x="{}" width="{}" y="{}" height="{}"/>'
    return format_html(
        '<svg class="pq-bars" viewBox="0 0 100 14" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>',
        label,
        format_html_join("", rect, rects),
    )


def spark(tasks: Sequence[Task]) -> SafeString:
    """Return how long tasks took from submit to end, the oldest first, by how they ended."""
    lasted = [((one.ended_at or timezone.now()) - one.created_at).total_seconds() for one in tasks]
    step, top = 100 / max(1, len(tasks)), max(lasted, default=0) or 1
    kinds = {Status.FINISHED: "finished", Status.FAILED: "failed"}
    parts = [
        (kinds.get(Status(one.status), "all"), number * step, step * 0.8, 2 + 12 * length / top)
        for number, (one, length) in enumerate(reversed([*zip(tasks, lasted, strict=True)]))
    ]
    label = ", ".join(map(duration, reversed(lasted)))
    return bars(gettext("From submit to end: %s") % label, parts)


def with_sign(number: float, shown: str) -> str:
    """Return what is shown of a number's amount, with its sign; none is zero's."""
    sign = "+" if number > 0 else "\N{MINUS SIGN}" if number < 0 else ""
    return sign + shown


def next_moment(task: Task) -> Fact:
    """Return the time of a task that matters now."""
    name = "run_at"
    if task.outcome:
        name = "ended_at"
    elif lease_until(task):
        name = "lease_until"
    elif task.expires_at and task.expires_at <= timezone.now():
        name = "expires_at"
    return next(fact for fact in times(task) if fact.name == name)


def readable(value: object) -> str:
    pretty = json.dumps(value, ensure_ascii=False, indent=2)
    # A lone surrogate only an escape can show.
    return pretty if is_utf_8(pretty) else json.dumps(value, indent=2)


for _shown in (
    *(ago, badge, broken_at_dots, describe_action, describe_change, duration, mark, moment, sees),
    *(payload, percent, printable, printable_lines, share_terms, short, spark, user_name, whole),
):
    register.filter(_shown.__name__, _shown)
