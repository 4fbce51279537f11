"""What is to become of tasks by the class of their error, as handlers and tasks may say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django_perfectqueue.lib.checks import number, whole
from django_perfectqueue.lib.durations import LONGEST, seconds_of

from . import BACKOFF, Backoff, BackoffFunction, Wait

Rule = type[BaseException] | Iterable[type[BaseException]]
RuleWithWaits = Rule | Mapping[type[BaseException], Backoff | BackoffFunction | Wait | None]

RETRY_ON, DISCARD_ON, FAIL_ON = RULES = ("retry_on", "discard_on", "fail_on")

# What handlers and Django's tasks say of their attempts must be, where it is not None.
CHECKS = {
    "max_attempts": whole(1),
    "retry_wait": number(0, LONGEST, of="seconds"),
    "backoff": BACKOFF,
    "time_limit": number(0, math.inf, above=True, of="seconds"),
    "kill_wait": number(0, math.inf, of="seconds"),
}


def rules_of(target: object) -> dict[str, object]:
    """Return what a handler or a task says of the classes of its errors."""
    return {name: getattr(target, name, ()) for name in RULES}


def rule_for(rules: Mapping[str, object], error: BaseException) -> tuple[str, object]:
    """
    Return the name of the rule for an error, and the waits that it has, if any.

    The rule of the nearest class holds, in the order in which Python looks up methods.
    """
    if not any(rules.values()):
        return "", None
    known = {kind: (name, waits) for name in rules for kind, waits in by_class(rules[name])}
    nearest = (known[kind] for kind in type(error).__mro__ if kind in known)
    return next(nearest, ("", None))


def by_class(value: Any) -> Iterator[tuple[Any, object]]:
    """
    Yield the classes of a rule, each with the waits that it has.

    Raise TypeError or ValueError where it is no rule.
    """
    if isinstance(value, type | str):
        yield value, None
    elif isinstance(value, Mapping):
        yield from value.items()
    else:
        for one in value:
            kind, waits = one if isinstance(one, tuple) else (one, None)
            yield kind, waits


def hashable(value: object) -> object:
    """Return a rule as pairs that can be kept in what is frozen; one that is wrong as it is."""
    try:
        return tuple(by_class(value))
    except (TypeError, ValueError):
        return value


def problems(target: object) -> Iterator[tuple[str, str]]:
    """Yield each name of CHECKS and RULES whose value will not do, and what it must be."""
    for name, check in CHECKS.items():
        if (given := getattr(target, name, None)) is not None and (problem := check.problem(given)):
            yield name, problem
    seen: dict[type, str] = {}
    for name, value in rules_of(target).items():
        try:
            pairs: list[tuple[object, object]] = list(by_class(value))
        except (TypeError, ValueError):
            pairs = [(value, None)]
        for kind, waits in pairs:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                yield name, f"must be classes of exceptions, not {kind!r}."
            elif seen.setdefault(kind, name) != name:
                yield name, f"must not have {kind.__qualname__}, which {seen[kind]} has."
            elif waits is not None and not is_wait(waits, name):
                wanted = "a wait or a backoff" if name == RETRY_ON else "no wait"
                yield name, f"must have {wanted} for {kind.__qualname__}, not {waits!r}."


def is_wait(waits: object, name: str) -> bool:
    if name != RETRY_ON:
        return False
    if isinstance(waits, int | float | str | timedelta):
        return seconds_of(waits) is not None
    return BACKOFF.holds(waits)
