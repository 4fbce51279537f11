"""Limits that code declares beside its tasks, and their rows, which workers make of that."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError

from django_perfectqueue.exceptions import ConfigError, InvalidTaskError
from django_perfectqueue.lib.durations import rate_in
from django_perfectqueue.models import FAMILY, Limit, Worker
from django_perfectqueue.payload.limit_names import checked_templates, noted, parts
from django_perfectqueue.store.database.transaction import (
    in_transaction,
    retry_transaction,
    with_retries,
)

from . import edit
from .limits import in_force, owner

logger = logging.getLogger("django_perfectqueue.fairness")

TERMS = ("rate", "period", "burst", "max_running")


Terms = dict[str, Any]

# Where code names each limit, and what it says of it, in this process; without terms it is to be
# there.
declared: dict[str, tuple[str, Terms]] = {}


def digest(row: Limit) -> str:
    """Return what changes with the terms of a limit."""
    said = json.dumps([row.max_running, row.rate, float(row.period), row.burst])
    return hashlib.sha256(said.encode()).hexdigest()


def declare(where: str, limits: object) -> None:
    """
    Note which limits the tasks of a handler keep to, and what these are where it says so.

    ``limits`` are names, or a mapping from names to terms: a rate such as "100/min", or what
    set_limit() takes. Raise ConfigError where that can't be, and for two of one name.
    """
    try:
        for template in checked_templates(limits):
            # It covers the names that are made of the template: one, or a family.
            (text, field), *_others = parts(template)
            name = text + FAMILY if field else text
            terms = terms_of(limits[template]) if isinstance(limits, Mapping) else {}
            place, known = declared.get(name, (where, {}))
            if terms and known not in ({}, terms) and place != where:
                raise ConfigError(f"{place} says otherwise what the limit '{name}' is.")
            if terms and name == FAMILY:
                raise ConfigError(f"What '{template}' makes has to begin with a text.")
            declared[name] = (where, terms) if terms else (place, known)
    except (InvalidTaskError, ConfigError) as error:
        raise ConfigError(f"{where} has limits that can't be: {error}") from error


def declare_noted() -> Iterator[ConfigError]:
    """Declare what Django's tasks say; yield what can't be."""
    for where, limits in list(noted.items()):
        try:
            declare(where, limits)
        except ConfigError as error:
            yield error


def terms_of(said: object) -> Terms:
    """Return the terms of a limit as they are stored; raise ConfigError."""
    if isinstance(said, str):
        if (found := rate_in(said)) is None:
            raise ConfigError(f"A rate is such as '10/min' or '100/90s', not '{said}'.")
        said = dict(zip(TERMS, found, strict=False))
    if not isinstance(said, Mapping) or not {*said} <= {*TERMS}:
        raise ConfigError(f"Give a rate, or a mapping of {', '.join(TERMS)}, not {said!r}.")
    terms = edit.checked(Limit, said)
    edit.check_limit(Limit(**terms), terms)
    return terms


def store_declared(worker: int, *, using: str) -> None:
    """
    Store what code declares of limits, when a worker begins.

    A person's limit of the same name stays, and a person's change stands until the declaration
    itself changes. During a release that of the younger worker counts.
    """
    for error in declare_noted():
        logger.error("A limit is not stored. error=%s", error)
    own = {name: terms for name, (_where, terms) in declared.items() if terms}
    born = Worker.objects.using(using).filter(pk=worker).values_list("started_at", flat=True)
    started = with_retries(born.first, using=using) if own else None
    for name, terms in own.items():
        # Where another worker stores it just now, that is as well.
        with contextlib.suppress(IntegrityError):
            store_one(name, terms, started, using=using)


@retry_transaction
def store_one(name: str, terms: Terms, started: datetime | None, *, using: str) -> None:
    said = digest(Limit(**terms))
    with in_transaction(using):
        row = edit.locked(Limit, owner("name", name), using=using) or Limit(name=name)
        if row.pk and not row.declared_in:
            logger.warning(
                "A person has stored a limit of this name: that one stays. limit=%s", name
            )
        elif row.declared_in != said and (
            started is None or row.declared_at is None or row.declared_at <= started
        ):
            for term in TERMS:
                setattr(row, term, terms.get(term, 1.0 if term == "period" else None))
            row.declared_in, row.declared_at = said, started
            row.save(using=using)


def lacking(*, using: str) -> list[str]:
    """Return the limits that code names, and of which neither code nor a row says anything."""
    named = {f"name:{name}": name for name, (_where, terms) in declared.items() if not terms}
    held = in_force(list(named), using=using)
    return [name for key, name in named.items() if key not in held]
