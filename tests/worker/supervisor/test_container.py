"""A worker in a container: its root is read-only, and its user has any id and no name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import skipUnless

from django.db import connection

from ..workers import WorkerTestCase

USER = "1000650000"
CONTAINED = """
for place in "$@"; do shift; [ "$place" = -- ] && break; mount --bind "$place" "$place"; done
mount -o remount,bind,ro /
exec unshare --user --map-user=%s --map-group=0 -- "$@"
"""
CONTAINER = ("unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-ec", CONTAINED % USER)
LOOK = "import os; print(os.getuid()); open('found', 'w')"


def container(*writable):
    """Return the start of a command that can write to these folders alone."""
    return (*CONTAINER, "container", *map(str, writable), "--")


def run(*command):
    return subprocess.run([*container(), *command], capture_output=True, text=True)


def is_possible():
    return bool(shutil.which("unshare")) and run("true").returncode == 0


@skipUnless(is_possible(), "This machine makes no container by unshare.")
class ContainerTests(WorkerTestCase):
    def test_a_container_is_one(self):
        seen = run(sys.executable, "-c", LOOK)
        self.assertEqual(seen.stdout.strip(), USER)
        self.assertIn("Read-only file system", seen.stderr)

    def test_a_worker_runs_tasks(self):
        self.submit("k1", "note")
        within = container(self.folder, *self.places_of_the_database())
        worker = self.burst(within=within, NOTIFY=str(self.folder))
        self.assertEqual(worker.errors, "")
        self.assertEqual(self.status("k1"), "finished")

    def places_of_the_database(self):
        """Return where SQLite writes; let other users reach the socket of a server."""
        if connection.vendor == "sqlite":
            return [Path(connection.settings_dict["NAME"]).parent]
        given = connection.get_connection_params()
        socket = Path(given.get("unix_socket") or given.get("host") or "/")
        folder = socket if socket.is_dir() else socket.parent
        if folder.stat().st_uid != os.getuid():
            self.addCleanup(folder.chmod, folder.stat().st_mode)
            folder.chmod(0o711)
        return []
