"""What programs read that write programs: AGENTS.md, whose examples run, and llms.txt."""

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest import skipUnless

from django.test import SimpleTestCase

import django_perfectqueue
from django_perfectqueue import compat

from .test_docs import DOCS, LINK, OUTSIDE, ROOT, names, parsers_of

GUIDE = Path(django_perfectqueue.__file__).parent / "AGENTS.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WORDS = 900
SEVERAL = """
import io, json, shlex, sys
from contextlib import redirect_stdout
from django.core.management import execute_from_command_line

for line in json.load(sys.stdin):
    out = io.StringIO()
    with redirect_stdout(out):
        execute_from_command_line(shlex.split(line)[1:])
    print(json.dumps([line, out.getvalue()]))
"""
"""Runs many commands in one process, and prints each with its output."""


@skipUnless(compat.HAS_TASKS, "It shows tasks of Django.")
class GuideTests(SimpleTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_its_examples_run_from_top_to_bottom(self):
        several, printed = [], {}
        for language, body in BLOCK.findall(GUIDE.read_text()):
            if language == "python":
                self.write(*body.split("\n", 1))
                continue
            for line in body.splitlines():
                words = line.split()
                if words[2:3] != ["pq_worker"] and line.startswith("python manage.py pq_"):
                    several.append(line)
                else:
                    printed |= self.run_all(several)
                    several = []
                    self.run_line(line)
        printed |= self.run_all(several)

        for line, output in printed.items():
            if line.endswith("--json"):
                for one in output.splitlines():
                    with self.subTest(line):
                        self.assertIsInstance(json.loads(one), dict)
        shown = json.loads(printed["python manage.py pq_task show k1 --json"])
        self.assertEqual((shown["status"], shown["result"]), ("finished", "Hello Ann"))
        self.assertGreater(len(printed), 12)

    def write(self, comment, source):
        """Append a block to the file that its first line names."""
        path = self.folder / comment.removeprefix("# ")
        before = path.read_text() if path.exists() and path.name != "tests.py" else ""
        if path.name == "settings.py" and not compat.HAS_NATIVE_TASKS:
            source += 'INSTALLED_APPS += ["django_tasks"]\n'
        path.write_text(before + source)

    def run_line(self, line):
        line = line.replace("django-admin", "python -m django")
        self.run_process(line.replace("python", f"'{sys.executable}'", 1))

    def run_all(self, lines):
        if not lines:
            return {}
        command = [sys.executable, "-c", SEVERAL]
        printed = self.run_process(command, json.dumps(lines))
        return dict(json.loads(one) for one in printed.splitlines())

    def run_process(self, command, given=""):
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=self.folder,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "mysite.settings",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.folder)]),
            },
            input=given,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))
        return done.stdout

    def test_it_is_short_and_links_only_to_pages_on_the_web(self):
        text = GUIDE.read_text()
        self.assertLessEqual(len(text.split()), WORDS)
        self.assertEqual([to for to in LINK.findall(text) if not OUTSIDE.match(to)], [])

    def test_every_command_but_the_worker_prints_json(self):
        for name in names():
            parsers = parsers_of(name)
            for parser in parsers[1:] or parsers:
                with self.subTest(parser.prog):
                    flags = {flag for action in parser._actions for flag in action.option_strings}
                    self.assertEqual("--json" in flags, name != "pq_worker")


@skipUnless(DOCS.is_dir(), "The documentation is not beside the tests.")
class ListTests(SimpleTestCase):
    def test_it_has_each_page_in_its_section_and_says_what_it_is_for(self):
        spec = spec_from_file_location("llms", DOCS / "extensions" / "llms.py")
        llms = module_from_spec(spec)
        spec.loader.exec_module(llms)
        text = llms.llms_of(DOCS, "https://example.com/")

        self.assertRegex(text, r"\A# django-perfectqueue\n\n> .+\n\n")
        for file in sorted(DOCS.rglob("*.md")):
            page = file.relative_to(DOCS).with_suffix("").as_posix()
            if page != "index":
                with self.subTest(page):
                    self.assertEqual(text.count(f"](https://example.com/{page}.html)"), 1)
        self.assertIn("run workers as a service", text)
        self.assertEqual(
            re.findall(r"^## (.+)", text, re.MULTILINE),
            ["Start", "How to", "Reference", "Explanation"],
        )
