"""Whose tasks a member of staff may see: what the function of ADMIN_SCOPE returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from django.db.models import Model

from django_perfectqueue.conf import SETTING, options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.lib.imports import imported

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

Row = TypeVar("Row", bound=Model)

KEPT = "_perfectqueue_scope"


def scope_of(request: HttpRequest) -> frozenset[str] | None:
    """
    Return the users whose tasks a request may see; None for everyone's.

    The function is called once for each request. Raise ConfigError where it can't be imported
    or returns a single text; what it raises itself is passed on, so that nothing is shown.
    """
    if options().ADMIN_SCOPE is None:
        return None
    if not hasattr(request, KEPT):
        setattr(request, KEPT, asked(request))
    return cast("frozenset[str] | None", getattr(request, KEPT))


def asked(request: HttpRequest) -> frozenset[str] | None:
    function = scope_function()
    found = None if function is None else function(request)
    if found is None:
        return None
    if isinstance(found, str | bytes):
        raise ConfigError(
            f"{SETTING}['ADMIN_SCOPE'] returned a text: return a list of users, or None for all."
        )
    return frozenset("" if user is None else str(user) for user in found)


def scope_function() -> Callable[[HttpRequest], Iterable[object] | None] | None:
    """Return the function of ADMIN_SCOPE. Raise ConfigError where it isn't one."""
    if (path := options().ADMIN_SCOPE) is None:
        return None
    function = imported(path, f"{SETTING}['ADMIN_SCOPE']")
    if not callable(function):
        raise ConfigError(f"{SETTING}['ADMIN_SCOPE'] names '{path}', which is not a function.")
    return cast("Callable[[HttpRequest], Iterable[object] | None]", function)


def in_scope(rows: QuerySet[Row], request: HttpRequest, user_path: str) -> QuerySet[Row]:
    """
    Keep the rows of the users that the request may see.

    ``user_path`` is the look-up from a row to its user; without one only who may see everyone's
    rows sees any.
    """
    if (users := scope_of(request)) is None:
        return rows
    return rows.filter(**{f"{user_path}__in": users}) if user_path else rows.none()


def may_see(request: HttpRequest, user: str | None) -> bool:
    """Return whether a user's figures may be shown; None stands for those of everyone."""
    users = scope_of(request)
    return users is None or user in users
