"""
One storm on one database, in a process of its own: ``python -m benchmarks.storm.run TERMS RESULT``.

It has a server, a worker and clients of its own, and ends them all.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos import history
from benchmarks.chaos.operations import BULK
from benchmarks.chaos.run import CORRECTED, SHOWN, Chaos, said
from benchmarks.chaos.stage import Stage
from benchmarks.child import answer
from benchmarks.database import Target
from benchmarks.servers import SERVERS

from . import auditor, scenario
from .calls import read_calls
from .faults import FAULTS, crowd_of
from .fleet import MARK, Crowd, Host
from .terms import ISOLATION, Terms

if TYPE_CHECKING:
    from benchmarks.chaos.fleet import Host as ChaosHost

END_WITHIN = 30.0


class Storm(Chaos):
    faults = FAULTS
    host_class = Host
    terms: Terms

    def target_for(self, host: str) -> Target:
        return self.target

    def offset(self) -> float:
        """Return 0: all times are those of the monotonic clock."""
        return 0.0

    @property
    def variables(self) -> dict[str, str]:
        return {**super().variables, ISOLATION: self.terms.isolation}

    def start_proxy(self, hosts: object, stack: object) -> None:
        """There is none: workers and clients reach the server themselves."""

    def prepare(self) -> None:
        make_rules()

    def fleet(self, hosts: Sequence[ChaosHost]) -> Crowd:
        # The name of what marks a host's processes is that of the worker's, to be ended apart.
        return Crowd(
            hosts,
            clients=self.terms.clients,
            command=["benchmarks.storm.process", json.dumps(self.terms.as_json())],
            environment={**os.environ, MARK: self.mark},
            log=self.files.folder / "clients.log",
        )

    def work(self, stage: Stage) -> dict[str, Any]:
        crowd = crowd_of(stage)
        self.begin(stage)
        crowd.wanted = True
        seconds = self.strike(stage)
        crowd.dismiss()
        stage.wait_for(lambda: not crowd.clients(), END_WITHIN)
        stuck = [f"client {pid} did not end when asked to" for pid in crowd.clients()]
        self.drain(stage)
        stuck += self.stop(stage)
        return {**self.audited(self.recorded(stage, stuck)), "seconds": seconds}

    def drain(self, stage: Stage) -> None:
        """Lift all pauses, and work until nothing is left; what is left then has been lost."""
        from .client import Client

        until = time.monotonic() + self.terms.drain
        ended = threading.Event()

        def drain() -> None:
            from django.db import connection

            try:
                helper = Client(self.terms, self.files, "drain")
                helper.drain(lambda: ended.is_set() or time.monotonic() > until)
            finally:
                connection.close()

        helping = threading.Thread(target=drain, daemon=True)
        helping.start()
        super().drain(stage)
        ended.set()
        helping.join()

    def recorded(self, stage: Stage, stuck: list[str]) -> auditor.Record:
        from django.db import connection

        connection.close()
        rows = history.read_rows()
        stuck = stuck + [
            f"{row.key} has no end" for row in rows if row.type == BULK and not row.outcome
        ]
        return auditor.Record(
            calls=read_calls(self.files.calls),
            rows=[row for row in rows if row.type != BULK],
            strikes=stage.strikes,
            drift=history.read_drift() + said(stage.fleet, CORRECTED),
            stuck=stuck,
            alive_time=self.terms.alive_time,
            forgets=self.terms.database == "postgresql",
        )

    def audited(self, seen: auditor.Record) -> dict[str, Any]:
        found = auditor.violations(seen)
        self.write_down(found[:SHOWN], lambda one: auditor.story(seen, one.task))
        return {
            "calls": Counter(call.verb for call in seen.calls),
            "answers": Counter(call.answer or "none" for call in seen.calls),
            "tasks": len(seen.lives),
            "attempts": sum(len(life.takes) for life in seen.lives.values()),
            "kinds": Counter(one.kind for one in found),
            "violations": list(map(str, found[:SHOWN])),
        }


def make_rules() -> None:
    """Make the shares and the limits that hold throughout."""
    from django_perfectqueue.fairness.limits import set_limit
    from django_perfectqueue.fairness.shares import set_share

    for user, weight in scenario.WEIGHTS.items():
        set_share(user, weight=weight, max_running=scenario.CAPS.get(user))
    for key, cap in scenario.LIMITS.items():
        scope, _, name = key.partition(":")
        set_limit(name, scope=scope, max_running=cap)  # type: ignore[arg-type]
    for key, rate in scenario.RATES.items():
        scope, _, name = key.partition(":")
        set_limit(
            name,
            scope=scope,  # type: ignore[arg-type]
            rate=rate.rate,
            period=rate.period,
            burst=rate.burst,
        )


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    terms = Terms(**job)
    with SERVERS[terms.database](durable=True) as server:
        return Storm(terms, folder, server).run()


if __name__ == "__main__":
    answer(measure)
