"""Do what a page of the documentation says, and compare what is printed."""

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..databases import die_with_parent
from ..waiting import LONG, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w/]+\.(?:py|html))`")
INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
OURS = re.compile("DJANGO|PERFECTQUEUE|DATABASE_URL|PYTHON")
READS = re.compile("pq_(task (list|show)|queue show)")
CLIENT = "from django.test import Client; client = Client(SERVER_NAME='localhost')"
BY_HAND = ("venv", "pip install", "createsuperuser", "runserver")
VARIABLE = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)", "TIME"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
    (r"\b\S+:\d+$", "HOST:PID"),
    (r"\bpid \d+", "pid PID"),
    (r"\b\d+(\.\d+)?(ms|s|m\d+s|h\d+m)(?= |,|\.|$)", "SPAN"),
    (r"\b(\d+ min )?\d+(\.\d+)? s\b", "SPAN"),
    (r"\([\d.]+ finished a second\)", "(RATE)"),
    (r"^Processor \d+ ", "Processor N "),
    (r" +", " "),
)


@dataclass
class Block:
    """A fenced block, with what is said since the one before it."""

    lead: str
    kind: str
    text: str

    @property
    def file(self):
        names = FILE.findall(self.lead)
        return names[-1] if names and self.kind in ("python", "html") else None

    @property
    def steps(self):
        """Each command, with the lines that it prints."""
        if self.kind == "sh":
            return [(self.text, None)]
        reported = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [(line, printed.splitlines()) for line, _nl, printed in map(cut, reported)]

    @property
    def lines(self):
        return [line for line in self.text.splitlines() if line.strip()]


def cut(text):
    return text.partition("\n")


def sections(name):
    """Return the blocks below each heading of a page."""
    parts = re.split(r"^##+ (.+)$", (ROOT / name).read_text(), flags=re.MULTILINE)
    return {title: blocks(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def blocks(text):
    end = 0
    found = []
    for match in FENCED.finditer(text):
        found.append(Block(text[end : match.start()], *match.groups()))
        end = match.end()
    return [*found, Block(text[end:], "", "")]


def alike(lines):
    """Return lines without what differs from run to run, and how often each is there."""
    return Counter(filter(None, map(bare, lines)))


def bare(line):
    line = line.strip()
    for pattern, word in VARIABLE:
        line = re.sub(pattern, word, line)
    return line


class Project:
    """A folder in which a page is followed, by a test."""

    def __init__(self, case, folder):
        self.case = case
        self.folder = Path(folder)
        self.worker = None
        tools = self.folder / ".tools"
        tools.mkdir()
        script(tools / "python", f'exec {shlex.quote(sys.executable)} "$@"')
        script(tools / "django-admin", f'exec {shlex.quote(sys.executable)} -m django "$@"')
        kept = {name: os.environ[name] for name in os.environ if not OURS.match(name)}
        self.environment = kept | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }

    def follow(self, found):
        for block in found:
            self.heed(block.lead)
            if block.file:
                self.write(block)
            elif block.kind in ("sh", "console"):
                for line, printed in block.steps:
                    self.obey(line, printed)

    def heed(self, lead):
        """Do what the page asks for between two blocks, and see what it says is seen."""
        if sent := re.search(r"[Ss]end (?:\*(.+?)\*|an empty text)", lead):
            form = {"customer": "ann", "text": sent[1] or ""}
            page = self.browse(f"post('/', {form!r}, follow=True)")
        for line in INDENTED.findall(lead):
            self.worker.wait_for(line)
        if "Ctrl-C" in lead:
            self.worker.stop(signal.SIGINT)
        for seen in re.findall(r"(?:says|shows) \*(.+?)\*", lead):
            self.case.assertIn(seen, page if sent else self.browse("get('/')"))

    def write(self, block):
        file = self.folder / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a" if "at the end of" in block.lead.lower() else "w") as stream:
            stream.write("\n" + block.text)

    def obey(self, line, printed):
        if any(word in line for word in BY_HAND):
            return
        if "pq_worker" in line and "--burst" not in line:
            self.worker = Worker(self, line)
            for reported in printed or ["Processor 2 started, pid 1."]:
                self.worker.wait_for(reported)
            return
        if "pq_task cancel" in line:
            wait_until(self.a_task_runs)
        if printed is None:
            self.run(line)
            return
        with self.case.subTest(line):
            self.see(line, printed)

    def see(self, line, printed):
        """Run what is to print this; what only reads is run again until it does."""
        said = []

        def it_is_as_documented():
            done = self.run(line)
            said[:] = [line, done.stdout, done.stderr]
            return agree(printed, done)

        try:
            wait_until(it_is_as_documented, within=LONG if READS.search(line) else 0)
        except AssertionError as error:
            self.case.fail("\n".join(said) or str(error))

    def a_task_runs(self):
        return self.run("python manage.py pq_task list --status running --json").stdout

    def run(self, line):
        done = subprocess.run(
            ["sh", "-e", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * LONG,
        )
        self.case.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}\n{done.stderr}")
        return done

    def browse(self, request):
        """Return the page that a browser shows after a request."""
        code = f"{CLIENT}; print(client.{request}.content.decode())"
        return self.run(f"python manage.py shell --no-imports -c {shlex.quote(code)}").stdout

    def close(self):
        if self.worker:
            self.worker.stop(signal.SIGQUIT)


def agree(reported, done):
    """
    Return whether each line of the page was printed, and each that was printed is there.

    Of what was printed as an error, such as a log, only a part need be there. Those who
    write at once do so in any order, but for the first line.
    """
    out = done.stdout.splitlines()
    missing = alike(reported) - (alike(out) + alike(done.stderr.splitlines()))
    return (
        not missing and not alike(out) - alike(reported) and alike(reported[:1]) == alike(out[:1])
    )


def script(file, line):
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(stat.S_IRWXU)


class Worker:
    """A worker that goes on in another terminal."""

    def __init__(self, project, line):
        self.printed = project.folder / ".printed"
        self.heard = Counter()
        with open(self.printed, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *shlex.split(line)[1:]],
                cwd=project.folder,
                env=project.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )

    def wait_for(self, line):
        """Wait until it has printed a line once more than it was waited for."""
        wanted = bare(line)
        self.heard[wanted] += 1

        def it_is_printed():
            return alike(self.printed.read_text().splitlines())[wanted] >= self.heard[wanted]

        try:
            wait_until(it_is_printed)
        except AssertionError as error:
            raise AssertionError(f"No {wanted!r} in: {self.printed.read_text()}") from error

    def stop(self, signum):
        if self.process.poll() is None:
            self.process.send_signal(signum)
            self.process.wait(LONG)
