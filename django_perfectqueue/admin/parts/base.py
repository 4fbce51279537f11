"""
What every page has in common: the queue's database, bounded counts, rows that are read only; and
how a status, a time and a duration are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core import paginator
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.fairness.wording import pause_terms
from django_perfectqueue.inspection.scope import in_scope, may_see
from django_perfectqueue.inspection.task import Fact, lease_until, times
from django_perfectqueue.lib import durations
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Pausable, Status, Task
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import database

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    ModelForm = forms.ModelForm[Any]
    Paginator = paginator.Paginator[object]
else:
    ModelAdmin = admin.ModelAdmin
    ModelForm = forms.ModelForm
    Paginator = paginator.Paginator

NOTHING = "\N{EN DASH}"
# The name of the admin site whose page is shown.
site_shown: ContextVar[str | None] = ContextVar("site_shown", default=None)
COUNTED = 10_000
# So many rows are changed by one request.
CAP = 1_000
Extra = dict[str, object] | None
# What Django's template of a form asks for, and on our own pages is not so.
NO_FORM = (
    "add", "change", "is_popup", "save_as", "has_add_permission", "has_change_permission",
    "has_delete_permission", "has_editable_inline_admin_formsets",
)  # fmt: skip


class AtLeast(int):
    """A number of which only so much was counted: it is shown with a plus."""

    def __str__(self) -> str:
        return f"{whole(int(self))}+"


def whole(count: int) -> str:
    return number_format(count, force_grouping=True)


def bounded(count: int, most: int) -> str:
    """Return a count, or that it is at least the most that was counted."""
    return str(AtLeast(most)) if count >= most else whole(count)


class BoundedPaginator(Paginator):
    """Counts no further than COUNTED; what lies behind that is for the filters to find."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by().values("pk")[:COUNTED].count())  # type: ignore[attr-defined]

    @property
    def bounded(self) -> bool:
        return self.count >= COUNTED


class IdsFirstPaginator(BoundedPaginator):
    """Finds the ids of a page before its rows, where a database would sort the rows of all."""

    def page(self, number: int | str) -> paginator.Page[object]:
        page = super().page(number)
        ids = list(page.object_list.values_list("pk", flat=True))  # type: ignore[attr-defined]
        page.object_list = self.object_list.filter(pk__in=ids)  # type: ignore[attr-defined]
        return page


class StoredAdmin(ModelAdmin):
    """
    Rows in the database that holds the tasks, of which no page counts them all.

    ``user_path`` is the look-up from a row to its user. A page without one shows everyone's
    rows: it is refused to whom ADMIN_SCOPE narrows.
    """

    user_path = ""
    # Whether each row has the ``clock`` of the server.
    has_clock = False

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    class Media:
        css = {"all": ["perfectqueue/admin.css"]}
        js = [Script("perfectqueue/live.js", type="module")]

    @property
    def urls(self) -> list[URLPattern]:
        """Return the pages, which link to those of the same site."""
        urls = self.get_urls()
        for url in urls:
            url.callback = shown_by(self.admin_site.name, url.callback)
        return urls

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Return the rows that the request may see: every page and action reads these."""
        rows = in_scope(super().get_queryset(request).using(database()), request, self.user_path)
        return rows.annotate(clock=ServerNow()) if self.has_clock else rows

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list; refuse a NUL, which PostgreSQL takes in no text."""
        if any("\x00" in value for values in request.GET.lists() for value in values[1]):
            raise IncorrectLookupParameters
        return super().get_changelist_instance(request)

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return StoredList

    def complete(self, request: HttpRequest, rows: Any) -> None:
        """Add to the rows of a list what is read for all of them together."""

    def view_path(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """Return a page of this package's own, by its name in the site."""
        return path(route, self.admin_site.admin_view(view), name=f"perfectqueue_{name}")

    def is_open(self, request: HttpRequest) -> bool:
        return bool(self.user_path) or may_see(request, None)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.is_open(request) and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.is_open(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_delete_permission(request, obj)

    def page(
        self, request: HttpRequest, template: str, context: Mapping[str, object]
    ) -> HttpResponse:
        """Return a page of this package's own; its breadcrumbs end with ``original``."""
        request.current_app = self.admin_site.name
        everywhere = {
            **self.admin_site.each_context(request),
            **dict.fromkeys(NO_FORM, False),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
        }
        shown = {**everywhere, **context}
        if not isinstance(shown["original"], Model):
            shown["original"] = str(shown["original"])  # another admin's skin takes no lazy text
        return TemplateResponse(request, f"admin/perfectqueue/{template}.html", shown)

    def story(self, request: HttpRequest, row: Any) -> dict[str, object]:
        """Return what the template shows of a row."""
        raise NotImplementedError

    def readable_story(self, request: HttpRequest, row: Any) -> dict[str, object] | None:
        """Return the same; say why and return None where what is in the row can't be used."""
        try:
            return self.story(request, row)
        except PerfectQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None

    def say_done(self, request: HttpRequest, count: int, what: object) -> None:
        """Say to how many something was done."""
        text, level = gettext("Nothing changed: all are in this state already."), messages.INFO
        if count:
            text, level = gettext("Done: %s.") % f"{count} {what}", messages.SUCCESS
        self.message_user(request, text, level)

    def say_capped(self, request: HttpRequest, chosen: Sized) -> None:
        """Say it where more was chosen than is taken at a time."""
        if len(chosen) > CAP:
            text = gettext("At most %(cap)s are taken at a time: repeat it for the rest.")
            self.message_user(request, text % {"cap": CAP}, messages.WARNING)

    def require_scope(self, request: HttpRequest, obj: Model) -> None:
        """Raise PermissionDenied for a row, about to be stored, of a user out of scope."""
        if self.user_path and not may_see(request, getattr(obj, self.user_path)):
            raise PermissionDenied


def shown_by(site: str, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return a view whose links stay within this site."""

    @wraps(view)
    def show(request: HttpRequest, *args: object, **words: object) -> HttpResponse:
        site_shown.set(site)
        return view(request, *args, **words)

    return show


class ReadOnlyAdmin(StoredAdmin):
    """Rows that only the store writes, in one order, and found by what an index serves."""

    sortable_by = ()
    # The template of a row's page; without one it is the form of all fields.
    story_template = ""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Extra = None
    ) -> HttpResponse:
        if not self.story_template:
            return super().change_view(request, object_id, form_url, extra_context)
        row = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        story = self.readable_story(request, row) if row else None
        if story is None:
            return super().change_view(request, object_id, form_url, extra_context)
        context = {
            "title": capfirst(str(self.opts.verbose_name)),
            "subtitle": str(row),
            "original": row,
            "change": True,
            "preserved_filters": self.get_preserved_filters(request),
            **story,
            **(extra_context or {}),
        }
        return self.page(request, self.story_template, context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        found = queryset.filter(self.sought(request, search_term)) if search_term else queryset
        return found, False

    def sought(self, request: HttpRequest, term: str) -> Q:
        """Return what a search finds."""
        return Q()

    def is_refused(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = is_refused

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return OneOrder

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}


class StoredList(ChangeList):
    """A list whose page completes its rows."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        stored: Any = self.model_admin
        stored.complete(request, self.result_list)


class OneOrder(StoredList):
    """A list that a URL can't have sorted otherwise, and that counts only so far."""

    def __init__(self, *values: Any, **words: Any) -> None:
        super().__init__(*values, **words)
        self.title = capfirst(str(self.opts.verbose_name_plural).strip())

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.paginator.bounded:
            self.result_count = AtLeast(self.result_count)
        # There is no total beside which the count would mean something, nor a list of all.
        self.full_result_count = self.result_count
        self.within_reach = any(getattr(spec, "is_bounding", False) for spec in self.filter_specs)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[Any]:
        return list(self.model_admin.get_ordering(request))


def column(
    title: Any, show: Callable[[Any], object], *, ordering: str | None = None
) -> Callable[[object, Any], object]:
    """Return a column of a list, for an attribute of its page."""

    def cell(_page: object, row: Any) -> object:
        return show(row)

    return admin.display(description=title, ordering=ordering)(cell)


def page_url(name: str, *args: object) -> str:
    """Return the address of a page of this app, in the admin site that the request is for."""
    return reverse(f"admin:perfectqueue_{name}", args=args, current_app=site_shown.get())


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
    return format_html('<a href="{}">{}</a>', page_url("task_change", task_id), shown)


def recognized(task: Task) -> list[str]:
    """Return what a task is recognized by."""
    return [
        badge(task.status),
        *map(printable, (str(task), task.type, task.user or NOTHING, task.queue)),
    ]


def list_link(model: str, shown: object, **query: object) -> SafeString:
    """Return a link to another list, by the parameters of its search and filters."""
    url = page_url(f"{model}_changelist")
    return format_html(
        '<a href="{}{}{}">{}</a>', url, "?" if query else "", urlencode(query), shown
    )


def tabs(
    words: Mapping[str, object], chosen: str, kept: Mapping[str, str], name: str
) -> list[tuple[object, str, bool]]:
    """Return links to choose one of some words, by a parameter of this name."""
    return [
        (shown, f"?{urlencode({**kept, name: word})}", word == chosen)
        for word, shown in words.items()
    ]


def figures_link(shown: object, **query: object) -> SafeString:
    """Return a link to what a queue, a type or a user did over time."""
    return format_html('<a href="{}?{}">{}</a>', page_url("figures"), urlencode(query), shown)


def links(**query: object) -> list[SafeString]:
    """Return links to the tasks and the figures of a queue or a user."""
    return [
        list_link("task", _("Tasks"), **query),
        list_link("deadletter", _("Failed tasks"), **query),
        figures_link(_("Figures"), **query),
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
    try:
        pretty.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can show
        return json.dumps(value, indent=2)
    return pretty
