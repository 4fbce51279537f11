"""
One run on one database, in a process of its own: ``python -m benchmarks.chaos.run TERMS RESULT``.

It has a server, a proxy and hosts of its own, and ends them all.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.audit import Violation
from benchmarks.child import answer
from benchmarks.database import Link, Target, connect
from benchmarks.servers import SERVERS
from tests.databases import Server
from tests.databases.server import DATABASE

from . import checker, history, proxy, scenario, triggers
from .faults import FAULTS, Fault
from .fleet import Fleet, Host
from .operations import Operations
from .recovery import recoveries
from .schedules import end_schedules, put_schedules
from .stage import Stage
from .terms import FOLDER, HOST, Files, Terms

if TYPE_CHECKING:
    from .feeder import Feeder
    from .operators import Operators

CLIENT = "client"
BEGIN_WITHIN = 60.0
END_WITHIN = 60.0
SHOWN = 100
OF_A_KIND = 20
SAMPLES = 20
SAID_SO = (" CRITICAL ", "stumbled")
CORRECTED = ("A counter did not agree",)


class StuckError(Exception):
    """What was waited for did not come; the message holds the end of a worker's log."""


class Chaos:
    faults: Mapping[str, Fault] = FAULTS
    host_class = Host

    def __init__(self, terms: Terms, folder: Path, server: Server) -> None:
        self.terms = terms
        self.files = Files(folder)
        self.server = server
        self.mark = uuid.uuid4().hex

    @property
    def target(self) -> Target:
        """The database, without anything in between."""
        return Target.of(self.terms.database, DATABASE, self.server.home)

    def target_for(self, host: str) -> Target:
        """The database as a host reaches it: through the proxy."""
        if self.terms.database == "sqlite":
            return self.target
        return Target.of(self.terms.database, DATABASE, self.files.home(host))

    def run(self) -> dict[str, Any]:
        """Have it all go wrong for so long; return what came of it."""
        with contextlib.ExitStack() as stack:
            client, hosts = self.host(CLIENT), list(map(self.host, self.terms.names()))
            between = self.start_proxy([client, *hosts], stack)
            os.environ.update({**client.environment, **self.variables})
            import django
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            self.prepare()
            fleet = self.fleet(hosts)
            stack.callback(fleet.end)
            stage = Stage(
                terms=self.terms,
                fleet=fleet,
                server=self.server,
                target=self.target,
                proxy=between,
                drawn=random.Random(self.terms.seed),
                offset=self.offset(),
            )
            found = self.work(stage)
            with self.link() as link:
                version = link.version()
            return {
                **found,
                "strikes": Counter(strike.fault for strike in stage.strikes),
                "said": said(fleet, SAID_SO),
                "version": version,
            }

    @property
    def variables(self) -> dict[str, str]:
        """What else this process has in its environment, with those that it starts."""
        return {HOST: CLIENT, FOLDER: str(self.files.folder)}

    def fleet(self, hosts: Sequence[Host]) -> Fleet:
        return Fleet(hosts)

    def host(self, name: str) -> Host:
        return self.host_class(name, self.mark, self.target_for(name), self.files, self.terms)

    def start_proxy(self, hosts: list[Host], stack: contextlib.ExitStack) -> proxy.Proxy | None:
        kind = self.terms.database
        if kind == "sqlite":
            return None
        server = proxy.socket_in(self.server.home, kind)
        log = stack.enter_context((self.files.folder / "proxy.log").open("wb"))
        sockets = [proxy.socket_in(host.home, kind) for host in hosts]
        return stack.enter_context(proxy.running(server, sockets, log))

    def prepare(self) -> None:
        """Make the triggers and the rules."""
        from .feeder import make_rules

        with self.link() as link:
            triggers.install(link)
        make_rules()
        self.first_ticks = put_schedules(self.terms)

    def link(self) -> contextlib.AbstractContextManager[Link]:
        return contextlib.closing(connect(self.target))

    def offset(self) -> float:
        """Return what the database's clock says more than the one that nobody sets."""
        found = []
        with self.link() as link:
            for _sample in range(SAMPLES):
                before = time.monotonic()
                reported = triggers.clock(link)
                after = time.monotonic()
                found.append((after - before, reported - (before + after) / 2))
        return min(found)[1]

    def work(self, stage: Stage) -> dict[str, Any]:
        from .feeder import Feeder
        from .operators import Operators

        feeder, operators = Feeder(self.terms), Operators(self.terms)
        operators.start()
        feeder.start()
        try:
            self.begin(stage)
            seconds = self.strike(stage)
        finally:
            feeder.stop()
            operators.stop()
        ticks = end_schedules(self.first_ticks)
        settled = time.monotonic()
        operators.settle(self.terms.drain, stage.wait)
        self.drain(stage)
        drained = time.monotonic() - settled
        leftovers = self.stop(stage)
        seen = replace(self.gathered(stage, feeder, operators, leftovers), ticks=ticks)
        return {
            **self.audited(seen),
            "seconds": seconds,
            "drained": drained,
        }

    def begin(self, stage: Stage) -> None:
        for host in stage.fleet:
            host.start()
        if not stage.wait_for(lambda: all(h.processors() for h in stage.fleet), BEGIN_WITHIN):
            raise StuckError(f"The workers do not start.\n{ends_of_logs(stage.fleet)}")

    def strike(self, stage: Stage) -> float:
        """
        Strike with one fault after another, each as often as the others. One for which
        there was nothing to strike comes again later.
        """
        began = time.monotonic()
        until = began + self.terms.seconds
        deck: list[str] = []
        while time.monotonic() < until and len(stage.strikes) != self.terms.strikes:
            stage.wait(stage.drawn.uniform(self.terms.least_pause, self.terms.most_pause))
            if not deck:
                deck = list(self.terms.faults)
                stage.drawn.shuffle(deck)
            name = deck.pop()
            struck = self.faults[name].act(stage)
            if struck is None:
                deck.insert(0, name)
                continue
            stage.strikes.append(struck)
            tell(struck)
        return time.monotonic() - began

    def drain(self, stage: Stage) -> None:
        """Wait until nothing is left to do; what is left then has been lost."""
        with self.link() as link:
            stage.wait_for(
                lambda: not link.value("SELECT count(*) FROM perfectqueue_ticket"),
                self.terms.drain,
            )

    def stop(self, stage: Stage) -> list[str]:
        """Stop the workers in good order; return what did not go so."""
        stage.fleet.stop()
        stage.wait_for(stage.fleet.have_ended, END_WITHIN)
        found = []
        for host in stage.fleet:
            if pids := host.pids():
                found.append(f"{host.name}: {len(pids)} processes did not end")
            elif host.launcher is not None and host.launcher.returncode:
                found.append(f"{host.name} ended with exit code {host.launcher.returncode}")
        return found

    def gathered(
        self, stage: Stage, feeder: Feeder, operators: Operators, leftovers: list[str]
    ) -> history.History:
        """Return all that was seen; the connection of the beginning has not outlived it."""
        from django.db import connection

        connection.close()
        events = history.read_events(self.files.events, stage.offset)
        rows = history.read_rows()
        with self.link() as link:
            changes, closes = history.read_changes(link), history.read_closes(link)
            effects, edges = history.read_effects(link), history.read_edges(link)
        asked = operators.asked(stage.offset)
        stored, maybe_committed = operators.keys(row.key for row in rows)
        children = (f"{row.key}/child" for row in rows if row.type == "parent")
        caps = {user: cap for user, (_, cap) in scenario.SHARES.items() if cap is not None}
        return history.History(
            rows=rows,
            changes=changes,
            closes=closes,
            runs=events.runs,
            verbs=events.verbs,
            reported=events.reported,
            strikes=stage.strikes,
            stored=frozenset([*feeder.stored, *events.submitted, *stored]),
            maybe_committed=frozenset([*feeder.maybe_committed, *children, *maybe_committed]),
            effects=effects,
            caps=caps,
            limits={scenario.NARROW: scenario.WIDTH},
            drift=history.read_drift() + said(stage.fleet, CORRECTED),
            leftovers=leftovers,
            graph=(feeder.graph.nodes, feeder.graph.callbacks),
            operations=Operations(
                asked=asked,
                webs=operators.notes.webs,
                refused=events.refused,
                edges=edges,
                batches=history.read_batches(),
            ),
        )

    def audited(self, seen: history.History) -> dict[str, Any]:
        every = checker.violations(seen)
        found = of_each_kind(every)
        self.write_down(found, lambda one: history.story(seen, one.task) if one.task else ())
        return {
            "tasks": len(seen.rows),
            "nodes": sum(row.key.startswith("node-") for row in seen.rows),
            "callbacks": sum("!" in row.key for row in seen.rows),
            "operations": Counter(f"{one.verb}: {one.answer}" for one in seen.operations.asked),
            "ticks": sum(one.fired for one in seen.ticks.values()),
            "outcomes": Counter(row.outcome or "none" for row in seen.rows),
            "attempts": len(seen.runs),
            "ahead": checker.acquired_ahead(seen),
            "broken_off": sum(run.ended is None for run in seen.runs),
            "refused": sum(verb.answer == "refused" for verb in seen.verbs),
            "reported": Counter(reported.reason for reported in seen.reported),
            "doubtful": sum(not key.endswith("/child") for key in seen.maybe_committed),
            "forgotten": len(checker.forgotten(seen)),
            "kinds": Counter(one.kind for one in every),
            "violations": list(map(str, found)),
            "recoveries": [one.as_json() for one in recoveries(seen, self.terms)],
        }

    def write_down(
        self, found: Sequence[Violation], story: Callable[[Violation], Iterable[str]]
    ) -> None:
        """Keep all that was seen of the tasks to which something happened."""
        with (self.files.folder / "evidence.txt").open("w") as file:
            for one in found:
                file.write("\n".join([str(one), *story(one)]) + "\n\n")


def of_each_kind(found: list[Violation]) -> list[Violation]:
    """Return the first of each kind, so that none hides the others."""
    kinds = dict.fromkeys(one.kind for one in found)
    return [one for kind in kinds for one in [one for one in found if one.kind == kind][:OF_A_KIND]]


def tell(struck: history.Strike) -> None:
    took = struck.restored - struck.at
    print(f"{struck.at:.3f} {struck.fault} {struck.host} {took:.1f} s {struck.pids}", flush=True)


def said(fleet: Fleet, words: Iterable[str]) -> list[str]:
    """Return the lines of the workers' logs with such words, to which no fault should lead."""
    found = []
    for host in fleet:
        for line in host.log.read_text(errors="replace").splitlines():
            if any(word in line for word in words):
                found.append(f"{host.name}: {line}")
    return found[:SHOWN]


def ends_of_logs(fleet: Fleet) -> str:
    return "\n".join(host.log.read_text(errors="replace")[-1000:] for host in fleet)


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    terms = Terms(**job)
    with SERVERS[terms.database](durable=True) as server:
        return Chaos(terms, folder, server).run()


if __name__ == "__main__":
    answer(measure)
