"""
Make an environment for the project, or enter it; the one place that does.

Needs nothing but Python's standard library. ``python3 bootstrap.py EXTRA ...`` makes or
renews ``.venv`` with these extras. With ``--into FOLDER`` it makes another environment, and
with ``--with REQUIREMENT`` that has more in it, such as another Django; its Python is the
one that runs this script.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
PROJECT = "django-perfectqueue"
OLDEST_PYTHON = (3, 10)
ENTERED = "PERFECTQUEUE_ENTERED"
OPT_OUT = "PERFECTQUEUE_NO_BOOTSTRAP"
LINES_SHOWN = 20


class BootstrapError(Exception):
    """The environment could not be made; the message says why and what helps."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment; its stamp says what was installed for which pyproject.toml."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "perfectqueue.json"

    def is_entered(self) -> bool:
        return Path(sys.prefix).resolve() == self.folder.resolve()

    def prepare(self, extras: Iterable[str], more: Iterable[str] = ()) -> None:
        """
        Make or renew it with these extras and more requirements, one caller at a time.

        Extras add up: those of earlier calls stay.
        """
        require_python()
        with one_at_a_time():
            if self.is_fresh(extras, more):
                return
            if not self.is_usable():
                self.make()
            stamp = self.read_stamp()
            extras = {*extras, *stamp.get("extras", [])}
            more = {*more, *stamp.get("more", [])}
            say(f"Installing {PROJECT}[{','.join(sorted(extras))}] into {self.folder.name}")
            self.install([editable(extras), *sorted(more)])
            self.write_stamp(extras, more, pyproject=pyproject_digest())

    def is_fresh(self, extras: Iterable[str], more: Iterable[str] = ()) -> bool:
        stamp = self.read_stamp()
        return (
            self.is_usable()
            and stamp.get("pyproject") == pyproject_digest()
            and set(extras) <= set(stamp.get("extras", []))
            and set(more) <= set(stamp.get("more", []))
        )

    def is_usable(self) -> bool:
        made_here = self.read_stamp().get("root", str(ROOT)) == str(ROOT)
        version = self.version() or "0"
        return made_here and self.python.exists() and version_tuple(version) >= OLDEST_PYTHON

    def version(self) -> str | None:
        """Return the version of its Python, None where there is no environment."""
        try:
            found = VERSION.search((self.folder / "pyvenv.cfg").read_text())
        except OSError:
            return None
        return found[1] if found else None

    def read_stamp(self) -> dict[str, Any]:
        try:
            stamp: dict[str, Any] = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return {}
        return stamp

    def write_stamp(self, extras: Iterable[str], more: Iterable[str], *, pyproject: str) -> None:
        stamp = {
            "root": str(ROOT),
            "pyproject": pyproject,
            "extras": sorted(extras),
            "more": sorted(more),
        }
        self.stamp.write_text(json.dumps(stamp, indent=1))

    def make(self) -> None:
        self.clear()
        base = getattr(sys, "_base_executable", sys.executable)
        say(f"Making {self.folder.name} with Python {python_version()}")
        uv = find_uv()
        if uv:
            run([uv, "venv", "--quiet", "--allow-existing", "--python", base, str(self.folder)])
        else:
            require_ensurepip()
            run([base, "-m", "venv", str(self.folder)])
        self.write_stamp([], [], pyproject="")

    def clear(self) -> None:
        if self.is_entered():
            raise BootstrapError(f"{self.folder} has moved: run this script outside it once.")
        if self.stamp.exists():
            shutil.rmtree(self.folder)
        elif self.version():
            raise BootstrapError(
                f"{self.folder} is for Python {self.version()}, and not of this script's "
                f"making. Run this with that Python, or remove it, or set {OPT_OUT}=1 to run with "
                "what is installed."
            )

    def install(self, requirements: list[str]) -> None:
        """Install through uv, or through pip should that fail."""
        uv = find_uv()
        if uv and succeeds([uv, "pip", "install", "--python", str(self.python), *requirements]):
            return
        pip = [str(self.python), "-m", "pip"]
        if not succeeds([*pip, "--version"]):
            require_ensurepip()
            run([str(self.python), "-m", "ensurepip", "--default-pip"])
        run([*pip, "install", "--quiet", *requirements])


OWN = Environment(ROOT / ".venv")
VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", re.MULTILINE)


def enter(extras: Iterable[str]) -> None:
    """
    Return once this script runs where the project and its extras are installed.

    Unless that is so already, start the script again from its beginning, in the
    project's environment. Exit with a message when that cannot be made.
    """
    extras = set(extras)
    try:
        if not inside_environment_with(extras):
            OWN.prepare(extras)
            restart()
    except BootstrapError as error:
        sys.exit(f"bootstrap: {error}")


def inside_environment_with(extras: set[str]) -> bool:
    if os.environ.get(OPT_OUT) == "1" or os.environ.pop(ENTERED, ""):
        return True
    if OWN.is_entered():
        return OWN.is_fresh(extras)
    return sys.prefix != sys.base_prefix and not missing_requirements(extras)


def restart() -> None:
    os.environ[ENTERED] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(OWN.python, [str(OWN.python), *sys.orig_argv[1:]])


def require_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        raise BootstrapError(
            f"Python {needed} or later is needed; {sys.executable} is {python_version()}."
        )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    with open(ROOT / "pyproject.toml") as project:
        fcntl.flock(project, fcntl.LOCK_EX)
        yield


def version_tuple(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def pyproject_digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def require_ensurepip() -> None:
    if util.find_spec("venv") is None or util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise BootstrapError(
            "this Python cannot make virtual environments. On Debian and Ubuntu install "
            f"what it lacks with: apt-get install {package}"
        )


def find_uv() -> str | None:
    """Return uv's path if it runs; a version manager's stand-in for it may not."""
    uv = shutil.which("uv")
    if uv is None:
        return None
    return uv if succeeds([uv, "--version"]) else None


def editable(extras: Iterable[str]) -> str:
    return f"--editable={ROOT}[{','.join(sorted(extras))}]"


def succeeds(command: list[str]) -> bool:
    return call(command).returncode == 0


def run(command: list[str]) -> None:
    done = call(command)
    if done.returncode:
        ending = "\n".join(done.stdout.strip().splitlines()[-LINES_SHOWN:])
        raise BootstrapError(f"{' '.join(command)}\n{ending}\n{advice(done.stdout)}")


def call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=tool_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def tool_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in NOT_FOR_TOOLS}
    return {
        **kept,
        "UV_PYTHON_DOWNLOADS": "never",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }


NOT_FOR_TOOLS = {"PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS", "VIRTUAL_ENV"}


def advice(output: str) -> str:
    if UNREACHABLE.search(output):
        return (
            "The package index could not be reached. The first run needs a network (or pip "
            "and uv configured for a local index); later runs do not."
        )
    return "The command above failed; when its cause is removed, run this again."


UNREACHABLE = re.compile(
    "name resolution|name or service not known|dns error|failed to fetch|connection|connect error"
    "|timed out|network is unreachable|no matching distribution found for hatchling",
    re.IGNORECASE,
)


def missing_requirements(extras: set[str]) -> list[str]:
    """Name what this interpreter lacks of the project, its requirements and extras."""
    from importlib.metadata import PackageNotFoundError, requires, version

    def is_installed(name: str) -> bool:
        with contextlib.suppress(PackageNotFoundError):
            return bool(version(name))
        return False

    if not is_installed(PROJECT):
        return [PROJECT]
    wanted = [NAME.match(line) for line in requires(PROJECT) or [] if wanted_by(line, extras)]
    return [name[0] for name in wanted if name and not is_installed(name[0])]


NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
OLDER = re.compile(r"""python_version\s*<\s*["'](\d+)\.(\d+)["']""")


def wanted_by(requirement: str, extras: set[str]) -> bool:
    """Return whether a requirement is one of this Python's and of these extras."""
    older = OLDER.search(requirement)
    if older and sys.version_info[:2] >= (int(older[1]), int(older[2])):
        return False
    named = EXTRA.search(requirement)
    return named is None or named[1] in extras


def say(message: str) -> None:
    print(f"bootstrap: {message} ...", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--into", type=Path, default=OWN.folder, metavar="FOLDER")
    parser.add_argument("--with", action="append", default=[], dest="more", metavar="REQUIREMENT")
    options = parser.parse_args()
    try:
        Environment(options.into.absolute()).prepare(options.extras, options.more)
    except BootstrapError as error:
        sys.exit(f"bootstrap: {error}")


if __name__ == "__main__":
    main()
