"""A fleet of workers, each on a host of its own."""

import contextlib
import json
import os
import signal
from types import SimpleNamespace

import environ
from django.core.management import call_command
from django.db import connection

from django_perfectqueue.queue import Queue

from ..databases.server import Server
from ..waiting import wait_until
from ..worker.workers import Worker, WorkerTestCase

DISPATCH = "tests.fleet.handlers.FleetDispatch"
PATIENCE = 60.0


class ExternalServer(Server):
    """A database that was started elsewhere, reached at this address."""

    def __init__(self, url):
        super().__init__()
        self.address = url

    @property
    def url(self):
        return self.address


class FleetTestCase(WorkerTestCase):
    """Its diary records what all hosts did; ``at`` is one clock for all of them."""

    def worker_on(self, host, *arguments, **settings):
        with host.inside():
            return self.worker_at(host.url, *arguments, **settings)

    def worker_at(self, url, *arguments, **settings):
        # Only a process that starts here is on the host of this thread.
        terms = {"database": ExternalServer(url), "afresh": True, **settings}
        worker = Worker(self.folder, DISPATCH, *arguments, **terms)
        self.addCleanup(worker.end)
        return worker

    def visit(self, *keys, waiting=True, users=None):
        """Submit tasks, each of its own user by default; they wait for their gates if at all."""
        tasks = []
        for number, key in enumerate(keys):
            data = {"diary": str(self.diary)}
            if waiting:
                data["until"] = str(self.gate_of(key))
            tasks.append(
                {
                    "key": key,
                    "type": "visit",
                    "data": data,
                    "user": f"u{number % (users or len(keys))}",
                }
            )
        Queue().submit_many(tasks)

    def gate_of(self, key):
        return self.folder / f"gate-{key}"

    def open_gates(self, keys):
        for key in keys:
            self.gate_of(key).touch()

    def reported(self, word, **wanted):
        """Return what the diary has under this word."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        entries = [SimpleNamespace(**json.loads(line)) for line in lines]
        return [
            entry
            for entry in entries
            if entry.word == word
            and all(getattr(entry, name) == value for name, value in wanted.items())
        ]

    def wait_until_reported(self, word, count, **wanted):
        def reported():
            return len(self.reported(word, **wanted)) >= count

        wait_until(reported, within=PATIENCE)
        return self.reported(word, **wanted)


def wait_until_up(*workers):
    """Wait until all these workers take tasks."""

    def up():
        return all(worker.processors() for worker in workers)

    wait_until(up, within=PATIENCE)


def freeze(worker):
    """Stop all processes of a worker where they are."""
    for pid in worker.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def thaw(worker):
    for pid in worker.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def migrate():
    call_command("migrate", "perfectqueue", verbosity=0)


@contextlib.contextmanager
def moved_to(url):
    """Have this thread's connection lead to another server."""
    home = connection.settings_dict
    connection.close()
    connection.settings_dict = {**home, **environ.Env.db_url_config(url)}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = home
