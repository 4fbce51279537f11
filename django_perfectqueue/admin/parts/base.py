"""What every page has in common: the queue's database, bounded counts, rows that are read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core import paginator
from django.core.exceptions import PermissionDenied
from django.core.signals import request_finished
from django.db.models import Model, Q, QuerySet
from django.dispatch import receiver
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext

from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.fairness.audit import acting
from django_perfectqueue.inspection.scope import in_scope, may_see
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.queue import database
from django_perfectqueue.templatetags import perfectqueue as cells

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    ModelForm = forms.ModelForm[Any]
    Paginator = paginator.Paginator[object]
else:
    ModelAdmin = admin.ModelAdmin
    ModelForm = forms.ModelForm
    Paginator = paginator.Paginator

COUNTED = 10_000
# So many rows are changed by one request.
CAP = 1_000
Extra = dict[str, object] | None
View = Callable[..., HttpResponse]
# What Django's template of a form asks for, and on our own pages is not so.
NO_FORM = (
    "add", "change", "is_popup", "save_as", "has_add_permission", "has_change_permission",
    "has_delete_permission", "has_editable_inline_admin_formsets",
)  # fmt: skip


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
            url.callback = shown_by(self.admin_site, url.callback)
        return urls

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Return the rows that the request may see: every page and action reads these."""
        rows = in_scope(super().get_queryset(request).using(database()), request, self.user_path)
        return rows.annotate(clock=ServerNow()) if self.has_clock else rows

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """
        Return the list; refuse a NUL, which PostgreSQL takes in no text. Django leaves all filters
        out where one is refused, so say which.
        """
        try:
            if any("\x00" in value for values in request.GET.lists() for value in values[1]):
                raise IncorrectLookupParameters("NUL")
            return super().get_changelist_instance(request)
        except IncorrectLookupParameters as error:
            text = gettext("The list is not filtered, as one filter is refused: %s")
            self.message_user(request, text % error, messages.ERROR)
            raise

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return StoredList

    def complete(self, request: HttpRequest, rows: Any) -> None:
        """Add to the rows of a list what is read for all of them together."""

    def view_path(self, route: str, view: View, name: str) -> URLPattern:
        """Return a page of this package's own, by its name in the site."""
        return path(route, self.admin_site.admin_view(view), name=f"perfectqueue_{name}")

    def is_open(self, request: HttpRequest) -> bool:
        return bool(self.user_path) or may_see(request, None)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.is_open(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.is_open(request) and super().has_delete_permission(request, obj)

    def page(self, request: HttpRequest, name: str, context: Mapping[str, object]) -> HttpResponse:
        """Return a page of this package's own; its breadcrumbs end with ``original``."""
        request.current_app = self.admin_site.name
        shown = {
            **self.admin_site.each_context(request),
            **dict.fromkeys(NO_FORM, False),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "original": context["title"],
            **context,
        }
        if not isinstance(shown["original"], Model):
            shown["original"] = str(shown["original"])  # another admin's skin takes no lazy text
        return TemplateResponse(request, f"admin/perfectqueue/{name}.html", shown)

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
        text, level = gettext("Nothing changed: none was chosen, or all are so."), messages.INFO
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


def shown_by(site: admin.AdminSite, view: View) -> View:
    """Return a view whose links stay within this site; its reader is who changes what."""

    @wraps(view)
    def show(request: HttpRequest, *args: object, **words: object) -> HttpResponse:
        cells.page_shown.set((site, request))
        with acting(str(request.user)):
            return view(request, *args, **words)

    return show


@receiver(request_finished)
def forget_page(**kwargs: object) -> None:
    """Forget whose page was shown, so that the thread's next request is not taken for it."""
    cells.page_shown.set((None, None))


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
            self.result_count = cells.AtLeast(self.result_count)
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
