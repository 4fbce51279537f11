"""The table of restarts, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.report import in_columns, machine

MARKS = ("<!-- restarts: begin -->", "<!-- restarts: end -->")
COLUMNS = (
    ("restarts", lambda one: one["restarts"]),
    ("tasks", lambda one: f"{one['tasks']:,}"),
    ("lost", lambda one: one["lost"] + one["unfinished"]),
    ("run twice", lambda one: one["twice"] + one["attempts"]),
    ("longest without an acquirer ms", lambda one: f"{one['unattended'] * 1e3:.0f}"),
    ("between two acquires ms", lambda one: f"{one['between'] * 1e3:.0f}"),
    ("before ms", lambda one: f"{one['between_before'] * 1e3:.0f}"),
    ("tasks a second before", lambda one: f"{one['usual']:.0f}"),
    ("lowest before", lambda one: one.get("lowest_before", "-")),
    ("median", lambda one: f"{one['median']:.0f}"),
    ("lowest", lambda one: one["lowest"]),
    ("lowest %", lambda one: f"{one['lowest_part'] * 100:.0f}"),
    ("a restart takes s", lambda one: f"{one['took']:.2f}"),
    ("at most s", lambda one: f"{one['took_longest']:.2f}"),
)


def report(records: Iterable[dict[str, Any]]) -> str:
    records = list(records)
    parts = [machine(record["machine"]) for record in records if "machine" in record]
    rows = [
        [f"{one['database']}, {one['processors']}", *(str(cell(one)) for _name, cell in COLUMNS)]
        for one in records
        if "restarts" in one
    ]
    if rows:
        parts.append(in_columns(["", *(name for name, _cell in COLUMNS)], rows))
    parts += [
        f"- {one['database']}, {one['processors']}: {one['error'].splitlines()[0]}"
        for one in records
        if "error" in one
    ]
    return "\n\n".join(parts)


def is_unbroken(one: dict[str, Any]) -> bool:
    """Return whether no task was lost or run twice, and someone acquired at every moment."""
    if "error" in one:
        return False
    return not any(one[name] for name in ("lost", "unfinished", "twice", "attempts", "unattended"))
