"""A drawing of rate, latency, dead rows and sizes over a run: needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fairness.charts import STYLE, saved

from .report import DEAD, is_pinned

MIN = 60.0


def drawn(record: Mapping[str, Any], path: Path) -> Path:
    """Draw a run, the time of the open snapshot shaded; raise ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    samples, count = record["samples"], len(record["samples"])
    moments = [sample["at"] / MIN for sample in samples]
    pinned = [at for number, at in enumerate(moments) if is_pinned(number, count)]
    after = moments[count - count // 3]
    fields = (
        ("tasks a second", {"": "rate"}),
        ("a lone task, ms", {"": "wait"}),
        (DEAD[record["database"]].removesuffix(", most"), {"": "dead"}),
        ("MiB", {"tables": "data_mib", "indexes": "indexes_mib"}),
    )
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "sustained"}):
        figure, rows = pyplot.subplots(
            len(fields), 1, figsize=(8, 7), sharex=True, layout="constrained"
        )
        for axes, (label, lines) in zip(rows, fields, strict=True):
            axes.axvspan(pinned[0], after, color="#e8ecf1")
            for name, figure_name in lines.items():
                axes.plot(moments, [sample[figure_name] for sample in samples], label=name or None)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        rows[0].set_title(
            f"{record['database']}, {record['terms']['processors']} processors;"
            " shaded: a snapshot is open",
            fontsize=10,
        )
        rows[-1].legend(fontsize=7)
        rows[-1].set_xlabel("minutes")
        return saved(figure, path)
