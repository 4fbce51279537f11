"""The database server loses connections, is restarted, or crashes; or its file is locked."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from benchmarks.chaos.history import Strike
from benchmarks.chaos.stage import Stage
from benchmarks.database import Link

from .base import SERVERS, fault

MOST_BACKENDS = 6
BACKENDS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ),
    "mariadb": (
        "SELECT id FROM information_schema.processlist"
        " WHERE db = database() AND id <> connection_id()"
    ),
}
END = {"postgresql": "SELECT pg_terminate_backend(%s)", "mariadb": "KILL %s"}


@fault("backend", databases=SERVERS)
def end_backends(stage: Stage) -> Strike | None:
    """The server ends some connections, whoever's and whatever they are at."""
    with stage.link() as link:
        found = [int(pid) for (pid,) in link.run(BACKENDS[link.kind])]
        chosen = stage.drawn.sample(found, min(len(found), stage.drawn.randint(1, MOST_BACKENDS)))
        at = stage.now()
        for backend in chosen:
            with contextlib.suppress(Exception):  # it has ended by itself
                link.run(END[link.kind], backend)
    return Strike("backend", at, at)


@fault("restarted-server", databases=SERVERS)
def restart_server(stage: Stage) -> Strike | None:
    """The server is stopped in good order, is away for a moment, and is started again."""
    at = stage.now()
    stage.server.stop()
    stage.wait(stage.drawn.uniform(0.0, 2.0))
    stage.server.start()
    return Strike("restarted-server", at, stage.now())


@fault("crashed-server", databases=SERVERS)
def crash_server(stage: Stage) -> Strike | None:
    """The server and all its processes are killed; it is started again and recovers."""
    at = stage.now()
    stage.server.kill()
    stage.wait(stage.drawn.uniform(0.0, 1.0))
    stage.server.start()
    forgets = stage.terms.database == "postgresql"
    return Strike("crashed-server", at, stage.now(), crash=forgets)


@fault("crashed-backend", databases=["postgresql"])
def crash_backend(stage: Stage) -> Strike | None:
    """One of the server's processes is killed, which makes it restart all of them."""
    with stage.link() as link:
        [pid] = stage.one_of([int(pid) for (pid,) in link.run(BACKENDS[link.kind])]) or [0]
        if not pid:
            return None
        at = stage.now()
        os.kill(pid, signal.SIGKILL)
        has_lost_us(stage, link)
    stage.server.wait_until_it_answers()
    return Strike("crashed-backend", at, stage.now(), crash=True)


def has_lost_us(stage: Stage, link: Link) -> None:
    """Wait until the server has ended this connection as well, as it does all."""
    until = time.monotonic() + stage.server.patience
    while time.monotonic() < until:
        try:
            link.run("SELECT 1")
        except Exception:
            return
        time.sleep(0.01)


@fault("locked-file", databases=["sqlite"])
def lock_file(stage: Stage) -> Strike | None:
    """Another program writes to the database file, and takes its time."""
    with stage.link() as link:
        link.run("BEGIN IMMEDIATE")
        at = stage.now()
        stage.wait(stage.drawn.uniform(0.5, 4.0))
        link.run("ROLLBACK")
        return Strike("locked-file", at, stage.now())
