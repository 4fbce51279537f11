"""
Workers that are forked from a process that has imported everything.

A start of ``python -m django pq_worker`` takes 0.9 s of CPU, nearly all of it for imports, which
are the same each time.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading

from django_perfectqueue.worker.launcher.generation import ForkedProcess

from ..databases import die_with_parent
from ..databases.environment import ROOT
from ..databases.lifetime import libc
from ..waiting import LONG, wait_until

CAN_FORK = sys.platform == "linux"
ADOPT_ORPHANS = 36
ROOM = 100_000

starting = threading.Lock()
templates = {}


class ForkedWorker(ForkedProcess):
    """A child of this process, with the part of Popen's interface that the tests use."""

    def wait(self, within=LONG):
        def ended():
            return self.poll() is not None

        wait_until(ended, within=within)
        return self.returncode


def fork_worker(arguments, environment, files):
    """Return a child of this process that runs Django's command line, with these three files."""
    # A fork of this process starts its own, and each kind of database has its own modules.
    key = os.getpid(), environment["DATABASE_URL"].partition(":")[0]
    with starting:
        if key not in templates:
            templates[key] = Template(environment)
        return templates[key].fork(arguments, environment, files)


class Template:
    def __init__(self, environment):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared = {name: environment[name] for name in ("DATABASE_URL", "PYTHONPATH")}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.template", str(theirs.fileno())],
                cwd=ROOT,
                env={
                    **os.environ,
                    **shared,
                    "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
                    "PERFECTQUEUE_TEST_ROOM": "." * ROOM,  # for the workers' environments
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent(),
            )
        atexit.register(self.end)

    def fork(self, arguments, environment, files):
        request = {"arguments": arguments, "environment": environment, "parent": os.getpid()}
        # The worker's parent ends at once, which makes the worker a child of this process.
        libc.prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
        try:
            socket.send_fds(self.socket, [json.dumps(request).encode()], files)
            pid = self.socket.recv(20)
        finally:
            libc.prctl(ADOPT_ORPHANS, 0, 0, 0, 0)
        if not pid:
            raise AssertionError("The template of the workers has ended.")
        return ForkedWorker(int(pid))

    def end(self):
        self.socket.close()
        self.process.wait()
