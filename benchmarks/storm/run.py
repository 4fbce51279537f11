"""
One storm on one database, in a process of its own: ``python -m benchmarks.storm.run TERMS RESULT``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.chaos.faults.stage import Stage, make_rules
from benchmarks.chaos.run import measured
from benchmarks.chaos.terms import Terms
from benchmarks.child import answer

from . import scenario


class StormLoad:
    """Clients that use every verb at random."""

    def __init__(self, terms: Terms) -> None:
        make_rules(scenario.SHARES, scenario.TERMS)
        self.terms = terms
        self.stuck: list[str] = []

    def start(self, stage: Stage) -> None:
        stage.fleet.wanted = True

    def stop(self, stage: Stage) -> None:
        self.stuck = stage.dismissed()

    @contextlib.contextmanager
    def settling(self, stage: Stage) -> Iterator[None]:
        """Lift all pauses, and work beside the workers until nothing is left."""
        from .client import Client

        until = time.monotonic() + self.terms.drain
        ended = threading.Event()

        def drain() -> None:
            from django.db import connection

            try:
                Client(self.terms, "drain").drain(
                    lambda: ended.is_set() or time.monotonic() > until
                )
            finally:
                connection.close()

        helping = threading.Thread(target=drain, daemon=True)
        helping.start()
        yield
        ended.set()
        helping.join()

    def leftovers(self, stage: Stage) -> list[str]:
        return self.stuck

    def facts(self) -> dict[str, Any]:
        return {"caps": scenario.CAPS, "rates": scenario.RATES, "pauses": scenario.PAUSES}


if __name__ == "__main__":
    answer(partial(measured, make_load=StormLoad))
