"""
Names of limits that are made of a task's data: templates such as ``stripe:{data[account]}``.

They are read as str.format() reads them, but name nothing else than ``user`` and items of
``data``: no attribute, no conversion, no format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from string import Formatter

from django_perfectqueue.exceptions import InvalidTaskError

from .inputs import checked_limits

FIELD = re.compile(r"user|data(?:\[[^][{}]+\])+")
ITEM = re.compile(r"\[([^][]+)\]")
MOST_TYPES = 1_000

# By the type of a task the names that its handler declares, and who finds them.
of_types: dict[str, tuple[str, ...]] = {}
finders: list[Callable[[str], tuple[str, ...]]] = []
# What tasks say of their limits that may be defined before there are models, by their paths.
noted: dict[str, object] = {}


def of_type(type_: str) -> tuple[str, ...]:
    """Return the names and templates that the handler of a type declares."""
    if type_ not in of_types:
        if len(of_types) >= MOST_TYPES:
            of_types.clear()
        of_types[type_] = tuple(name for find in finders for name in find(type_))
    return of_types[type_]


def parts(template: str) -> list[tuple[str, str | None]]:
    """
    Return the texts of a template, each with the field after it, if there is one.

    Raise InvalidTaskError where it is none, or has another field.
    """
    found = []
    try:
        for text, field, form, conversion in Formatter().parse(template):
            if field is not None and (form or conversion or not FIELD.fullmatch(field)):
                raise ValueError(f"it may have {{user}} and {{data[key]}}, not {{{field}}}")
            found.append((text, field))
    except ValueError as error:
        raise InvalidTaskError(f"The limit {template!r} can't be read: {error}.") from error
    return found


def checked_templates(value: object) -> tuple[str, ...]:
    """Return names and templates of limits as checked_limits() does; raise InvalidTaskError."""
    names = checked_limits(value)
    for name in names:
        parts(name)
    return names


def filled(templates: Iterable[str], data: Callable[[], object], user: str) -> list[str]:
    """
    Return the names that templates make of a task; ``data`` returns its data, where it is asked.

    Raise InvalidTaskError for a template that names what the task lacks, or no text or number.
    """
    return [
        "".join(
            text + ("" if field is None else value_of(field, template, data, user))
            for text, field in parts(template)
        )
        for template in templates
    ]


def value_of(field: str, template: str, data: Callable[[], object], user: str) -> str:
    value: object = (user or None) if field == "user" else data()
    for key in ITEM.findall(field):
        if isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        raise InvalidTaskError(f"The limit {template!r} needs {field}, which the task lacks.")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise InvalidTaskError(f"The limit {template!r} needs a text or a number, not {kind}.")
    # As it is stored: what str() returns of a member of an enum is the member's name.
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return int.__repr__(value) if isinstance(value, int) else str(value)
    except ValueError as error:  # Python writes no number of thousands of digits.
        raise InvalidTaskError(f"The limit {template!r} is too long: {error}.") from error
