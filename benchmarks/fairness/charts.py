"""Drawings of who got what: needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .report import head, unique, where, worst
from .rules import OURS

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairness",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
METADATA = {"Date": None}

Record = dict[str, Any]


def drawn(records: Iterable[Record], folder: Path) -> list[Path]:
    """
    Draw for each scenario who got how much as time went on, and the share errors of rules.

    Raise ImportError when matplotlib is not there.
    """
    import matplotlib

    matplotlib.use("svg")
    samples = [record for record in records if "groups" in record]
    if not samples:
        return []
    with matplotlib.rc_context(STYLE):
        return [
            *([draw_rules(samples, folder / "rules.svg")] if is_of_rules(samples) else []),
            *(
                draw_lines(worst(samples, name), folder / f"{name}.svg")
                for name in unique(samples, "scenario")
            ),
        ]


def is_of_rules(samples: Sequence[Record]) -> bool:
    return any(sample["database"] == OURS for sample in samples)


def draw_rules(samples: Sequence[Record], path: Path) -> Path:
    """Draw the share error of each rule, one field for each scenario; of the most processors."""
    from matplotlib import pyplot

    names, rules = unique(samples, "scenario"), unique(samples, "database")
    most = max(sample["processors"] for sample in samples)
    found = {
        (sample["scenario"], sample["database"]): sample["share_error"] * 100
        for sample in samples
        if sample["processors"] == most
    }
    rows = -(-len(names) // 2)
    figure, fields = pyplot.subplots(
        rows, 2, figsize=(9, 0.6 + 2.2 * rows), sharey=True, squeeze=False, layout="constrained"
    )
    for name, axes in itertools.zip_longest(names, fields.flat):
        if name is None:
            axes.set_axis_off()
            continue
        errors = [found[name, rule] for rule in rules]
        colors = ["#1b7f4d" if rule == OURS else "#9aa5b1" for rule in rules]
        bars = axes.barh(range(len(rules)), errors, color=colors)
        axes.bar_label(bars, labels=[f"{error:.1f}" for error in errors], padding=3, fontsize=8)
        axes.set_yticks(range(len(rules)), rules)
        axes.set_xlim(0, max(10, *errors) * 1.15)
        axes.set_title(next(one["title"] for one in samples if one["scenario"] == name), fontsize=9)
    fields.flat[0].invert_yaxis()
    figure.supxlabel("share error, % of all processor time", fontsize=9)
    return saved(figure, path)


def draw_lines(sample: Record, path: Path) -> Path:
    """Draw what each group got, and dashed what it was entitled to."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    moments = sample["lines"]["at"]
    for group in sample["lines"]["groups"]:
        (line,) = axes.plot(moments, group["got"], label=group["name"] or "without a user")
        axes.plot(moments, group["asked"], color=line.get_color(), linestyle="--", linewidth=0.9)
    axes.set_title(f"{sample['title']} ({head(where(sample))})", fontsize=10)
    axes.set_xlabel("seconds")
    axes.set_ylabel("processor seconds, dashed: entitled")
    axes.legend(fontsize=7)
    return saved(figure, path)


def saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, metadata=METADATA)
    pyplot.close(figure)
    return path
