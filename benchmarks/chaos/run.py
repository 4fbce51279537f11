"""
One run on one database, in a process of its own.

It has a server, a proxy and hosts of its own, and ends them all.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.database import Target
from benchmarks.environment import StuckError
from tests.databases import Server
from tests.databases.environment import SERVERS
from tests.databases.server import DATABASE

from .audit import attempts, checker, history, plays, triggers
from .audit.recovery import recoveries
from .faults import proxy
from .faults.fleet import Fleet, Host
from .faults.kinds import FAULTS
from .faults.stage import Stage
from .terms import Files, Terms

CLIENT = "client"
BEGIN_WITHIN = 60.0
END_WITHIN = 60.0
SHOWN = 100
OF_A_KIND = 20
# In seconds: the order of events is not known where the clock was set further.
MOVED = 0.5
SAMPLES = 20
OPEN = ("ticket", "debouncedsubmit")
SAID_SO = (" CRITICAL ", "raised an exception and continues")
CORRECTED = ("A counter differed",)


class Run(Stage):
    def __init__(self, terms: Terms, server: Server, folder: Path) -> None:
        super().__init__(terms, server)
        self.files = Files(folder)
        self.mark = uuid.uuid4().hex

    @property
    def has_proxy(self) -> bool:
        return self.terms.database != "sqlite" and not self.terms.storm

    def target_for(self, host: str) -> Target:
        """The database as a host reaches it: through the proxy."""
        home = self.files.home(host)
        return Target.of(self.terms.database, DATABASE, home) if self.has_proxy else self.target

    def run(self) -> dict[str, Any]:
        """Have it all go wrong for so long; return what came of it."""
        with contextlib.ExitStack() as stack:
            client, hosts = self.host(CLIENT), list(map(self.host, self.terms.names()))
            if self.has_proxy:
                self.proxy = self.start_proxy([client, *hosts], stack)
            os.environ.update(client.environment)
            import django
            from django.core.management import call_command

            django.setup()
            from .workload.load import Load, Storm

            call_command("migrate", verbosity=0)
            with self.link() as link:
                triggers.install(link)
            load = (Storm if self.terms.storm else Load)(self.terms)
            self.fleet = Fleet(hosts, self.terms, self.files.folder / "clients.log")
            stack.callback(self.fleet.end)
            self.offset = self.clocks_apart()
            found = self.work(load)
            if abs(moved := self.clocks_apart() - self.offset) > MOVED:
                raise StuckError(f"The machine's clock was set by {moved:.1f} s: try it again.")
            with self.link() as link:
                version = link.version()
            return {
                **found,
                "strikes": Counter(strike.fault for strike in self.strikes),
                "said": said(self.fleet, SAID_SO),
                "version": version,
            }

    def host(self, name: str) -> Host:
        return Host(name, self.mark, self.target_for(name), self.files, self.terms)

    def start_proxy(self, hosts: list[Host], stack: contextlib.ExitStack) -> proxy.Proxy:
        kind = self.terms.database
        server = proxy.socket_in(self.server.home, kind)
        log = stack.enter_context((self.files.folder / "proxy.log").open("wb"))
        sockets = [proxy.socket_in(host.home, kind) for host in hosts]
        return stack.enter_context(proxy.running(server, sockets, log))

    def clocks_apart(self) -> float:
        """Return what the database's clock says more than the one that nobody sets."""
        found = []
        with self.link() as link:
            for _sample in range(SAMPLES):
                before = time.monotonic()
                reported = triggers.clock(link)
                after = time.monotonic()
                found.append((after - before, reported - (before + after) / 2))
        return min(found)[1]

    def work(self, load: Any) -> dict[str, Any]:
        self.fleet.wanted = True
        for thread in load.threads:
            thread.start()
        try:
            self.begin()
            seconds = self.strike()
        finally:
            for thread in reversed(load.threads):
                thread.stop()
            stuck = self.dismissed()
        with load.settling(self):
            self.drain()
        seen = self.gathered(load, [*stuck, *self.stop()])
        return {**self.audited(seen), "seconds": seconds}

    def begin(self) -> None:
        for host in self.fleet:
            host.start()
        if not self.wait_for(lambda: all(h.processors() for h in self.fleet), BEGIN_WITHIN):
            raise StuckError(f"The workers do not start.\n{ends_of_logs(self.fleet)}")

    def strike(self) -> float:
        """
        Strike with one fault after another, each as often as the others. One for which
        there was nothing to strike comes again later.
        """
        began = time.monotonic()
        until = began + self.terms.seconds
        deck: list[str] = []
        while time.monotonic() < until and len(self.strikes) != self.terms.strikes:
            self.wait(self.drawn.uniform(self.terms.least_pause, self.terms.most_pause))
            if not deck:
                deck = list(self.terms.faults)
                self.drawn.shuffle(deck)
            name = deck.pop()
            struck = FAULTS[name].act(self)
            if struck is None:
                deck.insert(0, name)
                continue
            self.strikes.append(struck)
            tell(struck)
        return time.monotonic() - began

    def drain(self) -> None:
        """Wait until nothing is left to do; what is left then has been lost."""
        with self.link() as link:
            self.wait_for(
                lambda: (
                    not any(
                        link.value(f"SELECT count(*) FROM perfectqueue_{name}") for name in OPEN
                    )
                ),
                self.terms.drain,
            )

    def stop(self) -> list[str]:
        """Stop the workers in good order; return what did not go so."""
        self.fleet.stop()
        self.wait_for(self.fleet.have_ended, END_WITHIN)
        found = []
        for host in self.fleet:
            if pids := host.pids():
                found.append(f"{host.name}: {len(pids)} processes did not end")
            elif host.launcher is not None and host.launcher.returncode:
                found.append(f"{host.name} ended with exit code {host.launcher.returncode}")
        return found

    def gathered(self, load: Any, leftovers: list[str]) -> history.History:
        """Return all that was seen; the connection of the beginning has not outlived it."""
        from django.db import connection

        connection.close()
        with self.link() as link:
            born, gone = history.read_tasks(link)
            return history.History(
                rows=history.read_rows(),
                born=born,
                gone=gone,
                changes=history.read_all(link, history.Change, "chaos_ticket"),
                steps=history.read_all(link, history.Step, "chaos_step"),
                closes=history.read_all(link, history.Close, "chaos_close"),
                strikes=self.strikes,
                effects=history.read_effects(link),
                drift=read_drift() + said(self.fleet, CORRECTED),
                leftovers=leftovers,
                edges=history.read_edges(link),
                batches=history.read_batches(),
                alive_time=self.terms.alive_time,
                **history.read_events(self.files.events, self.offset),
                **load.facts(),
            )

    def audited(self, seen: history.History) -> dict[str, Any]:
        every = checker.violations(seen)
        found = of_each_kind(every)
        self.write_down(seen, found)
        return {
            "tasks": len(seen.born),
            "calls": Counter(f"{one.verb}: {one.answer or 'none'}" for one in seen.calls),
            **plays.counts(seen),
            "ticks": sum(one.fired for one in seen.ticks.values()),
            "outcomes": Counter(row.outcome or "none" for row in seen.rows),
            "attempts": len(seen.runs),
            "ahead": attempts.acquired_ahead(seen),
            "broken_off": sum(run.ended is None for run in seen.runs),
            "refused": sum(bool(call.refused) for call in seen.calls),
            "forgotten": len(attempts.forgotten(seen)),
            "kinds": Counter(one.kind for one in every),
            "violations": list(map(str, found)),
            "recoveries": [one.as_json() for one in recoveries(seen, self.terms)],
        }

    def write_down(self, seen: history.History, found: Sequence[checker.Violation]) -> None:
        """Keep all that was seen of the tasks to which something happened."""
        with (self.files.folder / "evidence.txt").open("w") as file:
            for one in found:
                file.write("\n".join([str(one), *history.story(seen, one.task)]) + "\n\n")


def read_drift() -> list[str]:
    """Return where counters differ from the tickets that there are, and who sleeps with work."""
    from django_perfectqueue import store
    from django_perfectqueue.models import Account, Lane, State, Ticket

    found: list[str] = []
    upkeep = store.upkeep
    after: Any
    for recount, after in ((upkeep.recount_accounts, upkeep.FIRST_ID), (upkeep.recount_meters, "")):
        while after is not None:
            after, differing = recount(after, using="default")
            found += differing
    waiting = set(Ticket.objects.filter(state=State.WAITING, timer_at=None).values_list("lane"))
    asleep = {
        row
        for model in (Account, Lane)
        for row in model.objects.filter(has_waiting=False).values_list("pk")
    }
    found += [f"lane {lane} sleeps with work in it" for (lane,) in waiting & asleep]
    unknown = Account.objects.filter(
        has_open=False, pk__in=Lane.objects.filter(has_waiting=True, held_by=0).values("account")
    )
    found += [f"account {own.pk} knows nothing of an open lane" for own in unknown]
    return found


def of_each_kind(found: list[checker.Violation]) -> list[checker.Violation]:
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


def measured(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    terms = Terms(**job)
    with SERVERS[terms.database](durable=True) as server:
        return Run(terms, server, folder).run()
