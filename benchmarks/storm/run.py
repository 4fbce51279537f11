"""
One storm on one database, in a process of its own: ``python -m benchmarks.storm.run TERMS RESULT``.

It has a server, a worker and clients of its own, and ends them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos import history
from benchmarks.chaos.operations import BULK
from benchmarks.chaos.run import CLIENT, CORRECTED, SAID_SO, SHOWN, Chaos, said
from benchmarks.chaos.stage import Stage
from benchmarks.chaos.terms import FOLDER, HOST
from benchmarks.child import answer
from benchmarks.database import Target
from benchmarks.servers import SERVERS

from . import auditor, scenario
from .calls import read_calls
from .faults import FAULTS
from .fleet import MARK, Crowd, Host
from .terms import ISOLATION, Terms

if TYPE_CHECKING:
    from benchmarks.chaos.fleet import Host as ChaosHost

END_WITHIN = 30.0


class Storm(Chaos):
    faults = FAULTS
    terms: Terms

    def target_for(self, host: str) -> Target:
        return self.target

    def offset(self) -> float:
        """Return 0: all times are those of the monotonic clock."""
        return 0.0

    def host(self, name: str) -> Host:
        return Host(name, self.mark, self.target, self.files, self.terms)

    def run(self) -> dict[str, Any]:
        """Let it storm for so long; return what came of it."""
        with contextlib.ExitStack() as stack:
            client = self.host(CLIENT)
            self.prepare(client)
            crowd = self.crowd(client)
            stack.callback(crowd.end)
            stage = Stage(
                terms=self.terms,
                fleet=crowd,
                server=self.server,
                target=self.target,
                proxy=None,
                drawn=random.Random(self.terms.seed),
                offset=self.offset(),
            )
            return self.storm(stage, crowd)

    def prepare(self, client: ChaosHost) -> None:
        """Make the tables and the rules; this process uses the database, too."""
        os.environ.update(client.environment)
        os.environ.update({HOST: CLIENT, FOLDER: str(self.files.folder)})
        os.environ[ISOLATION] = self.terms.isolation
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        make_rules()

    def crowd(self, client: ChaosHost) -> Crowd:
        # The name of what marks a host's processes is that of the worker's, to be ended apart.
        return Crowd(
            [self.host(name) for name in self.names],
            clients=self.terms.clients,
            command=["benchmarks.storm.client", json.dumps(self.terms.as_json())],
            environment={**os.environ, MARK: self.mark},
            log=self.files.folder / "clients.log",
        )

    def storm(self, stage: Stage, crowd: Crowd) -> dict[str, Any]:
        self.begin(stage)
        crowd.wanted = True
        began = time.monotonic()
        self.strike(stage)
        seconds = time.monotonic() - began
        crowd.dismiss()
        stage.wait_for(lambda: not crowd.clients(), END_WITHIN)
        stuck = [f"client {pid} did not end when asked to" for pid in crowd.clients()]
        self.drain(stage)
        stuck += self.stop(stage)
        return {
            **self.audited(self.recorded(stage, stuck)),
            "seconds": seconds,
            "strikes": Counter(strike.fault for strike in stage.strikes),
            "said": said(crowd, SAID_SO),
            "version": self.version(),
        }

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
            calls=read_calls(self.files.events),
            rows=[row for row in rows if row.type != BULK],
            strikes=stage.strikes,
            drift=history.read_drift() + said(stage.fleet, CORRECTED),
            stuck=stuck,
            alive_time=self.terms.alive_time,
            forgets=self.terms.database == "postgresql",
        )

    def audited(self, seen: auditor.Record) -> dict[str, Any]:
        found = auditor.violations(seen)
        with (self.files.folder / "evidence.txt").open("w") as file:
            for one in found[:SHOWN]:
                file.write("\n".join([str(one), *auditor.story(seen, one.task)]) + "\n\n")
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
