"""
The recipes for running it hold: the files of contrib, and the databases in the documentation.

systemd accepts the units, pq_worker every command, and the system checks every database.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import skipUnless

from django.core.management import load_command_class
from django.db import connection
from django.test import SimpleTestCase

from ..checks.test_checks import database_errors
from ..databases import die_with_parent
from ..waiting import LONG, wait_until

ROOT = Path(__file__).resolve().parents[2]
CONTRIB = ROOT / "contrib"
SETTINGS = """
DATABASES = {
    name: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{name}.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }
    for name in ("default", "jobs0", "jobs1")
}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_perfectqueue", "shop"]
SECRET_KEY = "not a secret"
USE_TZ = True
PERFECTQUEUE = {"POLL_INTERVAL": 0.2}
"""
TASKS = """
import time
from django_perfectqueue.application import handler

@handler("nap")
def nap(task):
    time.sleep(60 if task.key == "long" else 0)
"""
INSTALLED = "/srv/mysite/.venv/bin/python"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_A_SHELL = re.compile(r"^ExecStart=.* pq_worker (.+)$", re.MULTILINE)
IN_A_LIST = re.compile(r"^\s*(?:CMD |args: |command: )\[(--.+|\"--.+)\]$", re.MULTILINE)


def commands():
    """Return (file, arguments) of each command of contrib that starts a worker."""
    for file in filter(Path.is_file, CONTRIB.rglob("*")):
        text = file.read_text()
        for line in IN_A_SHELL.findall(text):
            yield file, line.split()
        for line in IN_A_LIST.findall(text):
            yield file, line.replace('"', "").split(", ")


class CommandTests(SimpleTestCase):
    def test_the_worker_accepts_each(self):
        found = list(commands())
        self.assertEqual(
            {file.name for file, _ in found},
            {"worker.service", "worker@.service", "Dockerfile", "compose.yaml", "worker.yaml"},
        )
        for file, arguments in found:
            with self.subTest(file.name, arguments=arguments):
                parser = load_command_class("django_perfectqueue", "pq_worker").create_parser(
                    "manage.py", "pq_worker"
                )
                parser.called_from_command_line = False
                self.assertTrue(parser.parse_args(arguments))


@skipUnless(shutil.which("systemd-analyze"), "There is no systemd-analyze here.")
class UnitTests(SimpleTestCase):
    def test_systemd_has_nothing_to_say(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in (CONTRIB / "systemd").iterdir():
                text = file.read_text().replace(INSTALLED, sys.executable)
                Path(folder, file.name.replace("@", "@jobs0")).write_text(text)
            for file in Path(folder).iterdir():
                verified = subprocess.run(
                    ["systemd-analyze", "verify", "--man=no", file],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                said = [line for line in verified.stdout.splitlines() if folder in line]
                with self.subTest(file.name):
                    self.assertEqual((verified.returncode, said), (0, []))


class DatabaseTests(SimpleTestCase):
    databases = {"default"}  # what holds differs with its kind

    def test_the_system_checks_accept_each(self):
        entries = [
            entry
            for page in sorted((ROOT / "docs").rglob("*.md"))
            for entry in databases_of(page.read_text())
        ]
        engines = {entry["ENGINE"].rpartition(".")[2] for entry in entries}
        self.assertEqual(engines, {"mysql", "postgresql", "sqlite3"})
        for entry in entries:
            if connection.vendor in entry["ENGINE"]:
                with self.subTest(entry):
                    self.assertEqual(database_errors(**entry), [])


def databases_of(text):
    """Return the databases that the Python blocks of a page set up."""
    for block in PYTHON.findall(text):
        if block.startswith("DATABASES = {"):
            names = {"BASE_DIR": Path("/srv")}
            exec(block, names)
            yield names["DATABASES"]["default"]


class SeveralDatabasesTests(SimpleTestCase):
    """One unit of the template for each database, as `workers.target` starts them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        Path(self.folder, "several.py").write_text(SETTINGS)
        Path(self.folder, "shop").mkdir()
        Path(self.folder, "shop", "tasks.py").write_text(TASKS)
        for name in ("jobs0", "jobs1"):
            self.manage("migrate", "--database", name, "--verbosity", "0")

    def test_a_full_database_delays_no_other(self):
        for database, key in (("jobs0", "long"), ("jobs0", "long2"), ("jobs1", "k1")):
            self.manage("pq_submit", key, "nap", "{}", "--database", database)
        workers = [self.start_unit("jobs0"), self.start_unit("jobs1")]
        wait_until(lambda: self.status("jobs1", "k1") == "finished")
        wait_until(lambda: self.status("jobs0", "long2") == "finished")
        self.assertEqual(self.status("jobs0", "long"), "running")
        for worker in workers:
            worker.send_signal(signal.SIGQUIT)
            self.assertEqual(worker.wait(LONG), 0)

    def start_unit(self, database):
        """Run what the unit's ExecStart says, for this instance."""
        text = (CONTRIB / "systemd/worker@.service").read_text()
        [arguments] = IN_A_SHELL.findall(text)
        worker = subprocess.Popen(
            self.command("pq_worker", *arguments.replace("%i", database).split()),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )
        self.addCleanup(worker.wait)
        self.addCleanup(worker.send_signal, signal.SIGQUIT)
        return worker

    def status(self, database, key):
        shown = self.manage("pq_task", "show", key, "--json", "--database", database)
        return json.loads(shown)["status"]

    def manage(self, *arguments):
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            check=True,
        ).stdout

    def command(self, *arguments):
        return [sys.executable, "-m", "django", *arguments]

    def environment(self):
        path = os.pathsep.join([str(ROOT), str(self.folder)])
        return {**os.environ, "DJANGO_SETTINGS_MODULE": "several", "PYTHONPATH": path}
