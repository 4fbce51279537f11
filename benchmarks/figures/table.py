"""The table: read it, write it, and compare it with what is counted now."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("figures.toml")
TOLERANCE = 0.02
# How often the feeder of a worker looks for tasks depends on the clock.
TOLERANCE_OF_DRAINS = 0.05
HEADER = """\
# The figures that must not creep. The gate fails where one is over 2 % larger than here,
# and 5 % for a worker's drain.
# Count them and write this file anew: python -m benchmarks.figures --write
"""

Figures = dict[str, dict[str, float]]


def read(path: Path = TABLE) -> tuple[dict[str, str], Figures]:
    """Return the versions that the table was counted with, and its figures by section."""
    if not path.exists():
        return {}, {}
    sections = tomllib.loads(path.read_text())
    return sections.pop("versions", {}), sections


def write(versions: dict[str, str], figures: Figures, path: Path = TABLE) -> None:
    parts = [HEADER, section("versions", {name: f'"{text}"' for name, text in versions.items()})]
    parts += [
        section(name, {key: f"{value:g}" for key, value in figures[name].items()})
        for name in figures
    ]
    path.write_text("\n".join(parts))


def section(name: str, lines: dict[str, str]) -> str:
    return "".join([f"[{name}]\n", *(f"{key} = {value}\n" for key, value in lines.items())])


def risen(before: Figures, now: Figures) -> list[str]:
    """Return a line for each figure that is larger than the table allows."""
    return [
        f"{name}.{key}: {old:g} in the table, {new:g} now"
        for name, key, old, new in pairs(before, now)
        if new > old * (1 + tolerance_of(key))
    ]


def tolerance_of(key: str) -> float:
    return TOLERANCE_OF_DRAINS if key.startswith("drain_") else TOLERANCE


def fallen(before: Figures, now: Figures) -> list[str]:
    """Return a line for each figure by which the table can be lowered."""
    return [
        f"{name}.{key}: {old:g} in the table, {new:g} now"
        for name, key, old, new in pairs(before, now)
        if new < old
    ]


def pairs(before: Figures, now: Figures) -> list[tuple[str, str, float, float]]:
    """A figure that the table does not have counts as 0 there."""
    return [
        (name, key, before.get(name, {}).get(key, 0), new)
        for name, section in now.items()
        for key, new in section.items()
    ]
