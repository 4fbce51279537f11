"""How far a long command has come, on one line of the terminal."""

from __future__ import annotations

import time

from django.core.management.base import OutputWrapper

from django_perfectqueue.lib.durations import short_duration

EVERY_SECONDS = 0.1
EVERY_COUNT = 100_000
BAR = 24


class ProgressLine:
    """
    A line that is rewritten on a terminal; elsewhere a new line every 100,000.

    ``total`` is what ``part`` will have grown to; None when that can't be known.
    """

    def __init__(self, stream: OutputWrapper, text: str, *, total: int | None = None) -> None:
        self.stream = stream
        self.text = text
        self.total = total
        self.lively = stream.isatty()
        self.began = time.monotonic()
        self.drawn = self.began
        self.shown_count = 0
        self.shown = 0

    def show(self, count: int, part: int = 0) -> None:
        if self.lively:
            if time.monotonic() - self.drawn >= EVERY_SECONDS:
                self.draw(self.describe_progress(count, part))
        elif count - self.shown_count >= EVERY_COUNT:
            self.shown_count = count
            self.stream.write(self.describe_progress(count, part), str)

    def describe_progress(self, count: int, part: int) -> str:
        seconds = max(time.monotonic() - self.began, 1e-6)
        words = self.text % f"{count:,}"
        rate = f"{count / seconds:,.0f} a second"
        if not self.total or not part:
            return f"{words}, {rate}"
        share = min(part / self.total, 1.0)
        left = f"{short_duration(max(1, round(seconds / share - seconds)))} left"
        return f"{bar(share)}  {words}, {rate}, {left}"

    def draw(self, describe_progress: str) -> None:
        self.drawn = time.monotonic()
        self.stream.write("\r" + describe_progress.ljust(self.shown), str, "")
        self.stream.flush()
        self.shown = len(describe_progress)

    def clear(self) -> None:
        """Wipe the line, so that what is said next stands alone."""
        if self.shown:
            self.stream.write("\r" + " " * self.shown + "\r", str, "")
            self.stream.flush()
            self.shown = 0


def bar(share: float) -> str:
    """Return a part of 1 as a bar and in words."""
    full = round(BAR * share)
    return f"[{'#' * full}{'.' * (BAR - full)}] {share:4.0%}"
