from __future__ import annotations

from procrastinate.contrib.django import app

from benchmarks.probe import note


@app.task(name="noop")
def noop(i: int) -> None:
    note(i)
