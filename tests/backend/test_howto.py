import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import skipUnless

from django.core.management import call_command
from django.db import connection
from django.test import SimpleTestCase

from . import case  # noqa: F401  isort: skip
from django_perfectqueue import compat

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "howto" / "django-tasks.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MOST_LINES = 6


@skipUnless(PAGE.exists(), "The documentation is not beside the tests.")
@skipUnless(compat.HAS_NATIVE_TASKS, "It tells how it is on Django 6.0 and later.")
class FiveMinutesTests(SimpleTestCase):
    @skipUnless(connection.vendor == "sqlite", "Its project is on SQLite.")
    def test_the_first_task_runs_as_the_page_says(self):
        told = PAGE.read_text().partition("## In five minutes")[2].partition("\n## ")[0]
        blocks = BLOCK.findall(told)
        settings, tasks = [text for kind, text in blocks if kind == "python"]
        commands = [text.strip() for kind, text in blocks if kind == "sh"]
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            call_command("startproject", "sample", folder)
            (self.folder / "greetings").mkdir()
            call_command("startapp", "greetings", str(self.folder / "greetings"))
            with open(self.folder / "sample" / "settings.py", "a") as file:
                file.write(settings)
            (self.folder / "greetings" / "tasks.py").write_text(tasks)
            said = [self.run_line(command) for command in commands]
        self.assertIn("finished ", said[-1])
        self.assertIn("type=greetings.tasks.greet", said[-1])
        changed = [line for line in (settings + tasks).splitlines() if line.strip()]
        self.assertLessEqual(len(changed), MOST_LINES)

    def run_line(self, line):
        program, *arguments = shlex.split(line)
        self.assertEqual(program, "python")
        environment = {name: os.environ[name] for name in os.environ if "DJANGO" not in name}
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout
