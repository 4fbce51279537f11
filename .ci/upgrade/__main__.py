"""
Two releases work on one database at once, and the schema moves forwards under their load.

The release before is the newest tag, or --from. Until a release is tagged, this tree stands
for it. Both are built as wheels and installed in folders of their own.

Where this tree has no newer migration, the new wheel gets a made-up one, which adds columns,
an index and a table. That shows what a migration does to running workers, and not
that the next release's own migration is harmless.

The order is that of docs/reference/support.md: the old worker and old programs run, the new
worker waits, `migrate` runs, the new worker and programs join, and the old worker stops.
Then each task must have run, and each attempt once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).resolve().parent / "project"
sys.path.insert(0, str(ROOT))

from tests.databases.environment import SERVERS  # noqa: E402

OLD, NEW = "old", "new"
MADE_UP = "9999_made_up"
PATIENCE = 60.0
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("perfectqueue", "{after}")]
    operations = [
        migrations.AddField("task", "later", models.IntegerField(null=True)),
        migrations.AddField("task", "later_still", models.IntegerField(db_default=7)),
        migrations.AddIndex("task", models.Index(fields=["later"], name="perfectqueue_by_later")),
        migrations.CreateModel("Later", [("id", models.BigAutoField(primary_key=True))]),
    ]
"""


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="pq-upgrade-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        build(folder, arguments.old)
        for kind in arguments.database.split(","):
            with started(kind) as server:
                Upgrade(folder, kind, server.url, arguments.seconds).run()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".ci/upgrade", description=__doc__.split("\n\n")[0])
    parser.add_argument("--from", dest="old", metavar="REF", default=last_tag())
    parser.add_argument("--database", default=",".join(SERVERS))
    parser.add_argument("--seconds", type=float, default=1.5, help="of load in each phase")
    return parser.parse_args()


def last_tag() -> str:
    """Return the newest release tag before this commit, or HEAD where there is none."""
    found = subprocess.run(
        git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"),
        capture_output=True,
        text=True,
    )
    return found.stdout.strip() or "HEAD"


def git(*arguments: str) -> list[str]:
    """Return a command for this checkout, also where another user owns it, as in containers."""
    return ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", *arguments]


# The wheels


def build(folder: Path, old: str) -> None:
    sources = {OLD: folder / "source-old", NEW: folder / "source-new"}
    unpack(old, sources[OLD])
    copy_tree(sources[NEW])
    before, after = (migrations_of(sources[release]) for release in (OLD, NEW))
    if set(before) - set(after):
        sys.exit(f"This tree lacks migrations of {old}: {sorted(set(before) - set(after))}")
    if before == after:
        path = sources[NEW] / "django_perfectqueue/migrations" / f"{MADE_UP}.py"
        path.write_text(MIGRATION.format(after=after[-1]))
        after = [*after, MADE_UP]
    for release, source in sources.items():
        rename(source, release)
        install(source, folder / release)
    more = ", ".join(after[len(before) :])
    print(f"old: {old}; new: this tree; the schema moves forwards by {more}", flush=True)


def unpack(ref: str, into: Path) -> None:
    into.mkdir()
    archive = subprocess.run(git("archive", ref), stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=into, input=archive.stdout, check=True)


def copy_tree(into: Path) -> None:
    into.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "django_perfectqueue", into / "django_perfectqueue", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into)


def migrations_of(source: Path) -> list[str]:
    files = (source / "django_perfectqueue/migrations").glob("[0-9]*.py")
    return sorted(file.stem for file in files)


def rename(source: Path, release: str) -> None:
    """Mark the version, so that nobody takes this wheel for the released one."""
    path = source / "pyproject.toml"
    text = re.sub(r'^(version = ".*)"$', rf'\1+{release}"', path.read_text(), flags=re.M)
    path.write_text(text)


def install(source: Path, into: Path) -> None:
    """Build a wheel and unpack it into a folder; what it depends on is this environment's."""
    quiet = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = source / "dist"
    subprocess.run([*quiet, "wheel", "--no-deps", "--wheel-dir", wheels, source], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*quiet, "install", "--no-deps", "--target", into, wheel], check=True)


@contextlib.contextmanager
def started(kind: str) -> Iterator[object]:
    server = SERVERS[kind](durable=True)
    server.start()
    try:
        yield server
    finally:
        server.remove()


# The upgrade


class Upgrade:
    """One database, and the processes of two releases on it."""

    def __init__(self, folder: Path, kind: str, url: str, seconds: float) -> None:
        self.folder = folder
        self.kind = kind
        self.url = url
        self.seconds = seconds
        self.notes = folder / f"{kind}.notes"
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        try:
            self.upgrade()
            self.audit()
        except BaseException:
            for log in sorted(self.folder.glob(f"{self.kind}*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}", flush=True)
            raise
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def upgrade(self) -> None:
        self.manage(OLD, "migrate", "--verbosity", "0")
        old_worker = self.start(OLD, "worker", "django", "pq_worker")
        old_load = self.start(OLD, "load", "shop.load")
        new_worker = self.start(NEW, "worker", "django", "pq_worker", "--wait-for-database", "60")
        self.wait("the old worker runs tasks", lambda: bool(self.noted(OLD)))
        time.sleep(self.seconds)
        if self.noted(NEW):
            raise SystemExit("The new worker ran tasks before its migrations.")
        began = time.monotonic()
        self.manage(NEW, "migrate", "--verbosity", "0")
        migrated = time.monotonic() - began
        new_load = self.start(NEW, "load", "shop.load")
        at_once = len(self.noted(OLD))
        self.wait("the new worker runs tasks", lambda: bool(self.noted(NEW)))
        time.sleep(self.seconds)
        if len(self.noted(OLD)) == at_once:
            raise SystemExit("The old worker ran no task beside the new one.")
        self.end(old_load)
        self.end(old_worker)
        time.sleep(self.seconds)
        self.end(new_load)
        self.wait("all tasks end", lambda: set(self.submitted()) <= self.ended())
        self.end(new_worker)
        print(f"{self.kind}: the schema moved forwards in {migrated:.1f} s", flush=True)

    def audit(self) -> None:
        """Raise SystemExit unless each submitted task finished, and each attempt ran once."""
        submitted = self.submitted()
        attempts = collections.Counter(tuple(line[:2]) for line in self.lines())
        runs = collections.Counter(key for key, _ in attempts)
        faults = [f"ran twice: {key}, attempt {n}" for (key, n), c in attempts.items() if c > 1]
        faults += [f"lost: {key}" for key in submitted if not runs[key]]
        # The fourth of each four of the ten raises at its first attempt, and only there.
        for key in submitted:
            wanted = 2 if int(key.rpartition("-")[2]) % 15 in (3, 7) else 1
            if runs[key] != wanted:
                faults.append(f"{key} has {runs[key]} attempts, not {wanted}")
        faults += [f"not finished: {key}" for key in set(submitted) - self.ended("finished")]
        if faults:
            raise SystemExit("\n".join([f"{self.kind}: {len(faults)} faults", *faults[:20]]))
        by = ", ".join(f"{len(self.noted(release))} by the {release}" for release in (OLD, NEW))
        print(f"{self.kind}: {len(submitted)} tasks, each finished once; attempts: {by}")

    # Processes

    def environment(self, release: str) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "settings",
            "NOTES": str(self.notes),
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder / release, PROJECT))),
            "RELEASE": release,
        }

    def manage(self, release: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            cwd=self.folder,
            env=self.environment(release),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        return done.stdout

    def start(self, release: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{self.kind}.{release}.{name}.log"
        keys = self.folder / f"{self.kind}.{release}.{name}.out"
        with log.open("wb") as errors, keys.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.folder,
                env=self.environment(release),
                stdout=output,
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        if code := process.wait(PATIENCE):
            raise SystemExit(f"{process.args} ended with exit code {code}")

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.kind}: waited in vain until {what}")
            for process in self.processes:
                if process.poll():
                    raise SystemExit(f"{process.args} ended with {process.returncode}")
            time.sleep(0.2)

    # What they wrote

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.notes.read_text().splitlines()]

    def noted(self, release: str) -> list[str]:
        if not self.notes.exists():
            return []
        return [key for key, _, by in self.lines() if by == release]

    def submitted(self) -> list[str]:
        files = self.folder.glob(f"{self.kind}.*.load.out")
        return [key for file in files for key in file.read_text().split()]

    def ended(self, *statuses: str) -> set[str]:
        query = (
            "from django_perfectqueue.models import Task; print(*Task.objects.filter("
            f"status__in={statuses or ('finished', 'failed', 'cancelled', 'expired')})"
            ".values_list('key', flat=True))"
        )
        return set(self.manage(NEW, "shell", "--verbosity", "0", "-c", query).split())


main()
