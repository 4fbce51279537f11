from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.recorder import note
from benchmarks.restarts.audit import ACQUIRED, BEGAN, ENDED
from django_perfectqueue import store
from django_perfectqueue.application import Application, Dispatch


class Recorded(Application):
    """Holds its processor for a moment; its processor notes whenever it has acquired."""

    @classmethod
    def after_fork(cls) -> None:
        for name in ("finish_and_acquire", "take_alone"):
            setattr(store, name, noting(getattr(store, name)))

    def perform(self) -> None:
        data = self.task.data
        note(BEGAN, task=data["i"])
        time.sleep(data["seconds"])
        note(ENDED, task=data["i"])


def noting(acquire: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(acquire)
    def noted(*arguments: Any, **options: Any) -> Any:
        taken = acquire(*arguments, **options)
        note(ACQUIRED)
        return taken

    return noted


class RecordedDispatch(Dispatch):
    routes = {"recorded": Recorded}
