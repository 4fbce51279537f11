"""
Enter the project's own environment, making or renewing it first when need be.

Needs nothing but Python's standard library. ``python3 bootstrap.py EXTRA ...``
makes the environment and stops there.
"""

from __future__ import annotations

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
from importlib import util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
PROJECT = "django-perfectqueue"
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "perfectqueue.json"
OLDEST_PYTHON = (3, 10)
ENTERED = "PERFECTQUEUE_ENTERED"
OPT_OUT = "PERFECTQUEUE_NO_BOOTSTRAP"
LINES_SHOWN = 20


class BootstrapError(Exception):
    """The environment could not be made; the message says why and what helps."""


def enter(extras: Iterable[str]) -> None:
    """
    Return once this script runs where the project and its extras are installed.

    Unless that is so already, start the script again from its beginning, in the
    project's environment. Exit with a message when that cannot be made.
    """
    extras = set(extras)
    try:
        if not inside_environment_with(extras):
            prepare(extras)
            restart()
    except BootstrapError as error:
        sys.exit(f"bootstrap: {error}")


def inside_environment_with(extras: set[str]) -> bool:
    if os.environ.get(OPT_OUT) == "1" or os.environ.pop(ENTERED, ""):
        return True
    if inside_own_environment():
        return is_fresh(extras)
    return sys.prefix != sys.base_prefix and not missing_requirements(extras)


def inside_own_environment() -> bool:
    return Path(sys.prefix).resolve() == ENVIRONMENT.resolve()


def prepare(extras: set[str]) -> None:
    """
    Make or renew the environment, one caller at a time.

    Extras add up: those of earlier calls stay.
    """
    require_python()
    with one_at_a_time():
        if is_fresh(extras):
            return
        if not is_usable():
            make_environment()
        extras |= set(read_stamp().get("extras", []))
        say(f"Installing {PROJECT}[{','.join(sorted(extras))}] into {ENVIRONMENT.name}")
        install([editable(extras)])
        write_stamp(extras, pyproject=pyproject_digest())


def restart() -> None:
    os.environ[ENTERED] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(PYTHON, [str(PYTHON), *sys.orig_argv[1:]])


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


def is_fresh(extras: set[str]) -> bool:
    stamp = read_stamp()
    return (
        is_usable()
        and stamp.get("pyproject") == pyproject_digest()
        and extras <= set(stamp.get("extras", []))
    )


def is_usable() -> bool:
    made_here = read_stamp().get("root", str(ROOT)) == str(ROOT)
    version = environment_version() or "0"
    return made_here and PYTHON.exists() and version_tuple(version) >= OLDEST_PYTHON


def version_tuple(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def environment_version() -> str | None:
    try:
        found = VERSION.search((ENVIRONMENT / "pyvenv.cfg").read_text())
    except OSError:
        return None
    return found[1] if found else None


VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", re.MULTILINE)


def read_stamp() -> dict[str, Any]:
    try:
        stamp: dict[str, Any] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def write_stamp(extras: Iterable[str], *, pyproject: str) -> None:
    stamp = {
        "root": str(ROOT),
        "pyproject": pyproject,
        "extras": sorted(extras),
    }
    STAMP.write_text(json.dumps(stamp, indent=1))


def pyproject_digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def make_environment() -> None:
    clear_environment()
    base = getattr(sys, "_base_executable", sys.executable)
    say(f"Making {ENVIRONMENT.name} with Python {python_version()}")
    uv = find_uv()
    if uv:
        run([uv, "venv", "--quiet", "--allow-existing", "--python", base, str(ENVIRONMENT)])
    else:
        require_ensurepip()
        run([base, "-m", "venv", str(ENVIRONMENT)])
    write_stamp([], pyproject="")


def clear_environment() -> None:
    if inside_own_environment():
        raise BootstrapError(f"{ENVIRONMENT} has moved: run this script outside it once.")
    if STAMP.exists():
        shutil.rmtree(ENVIRONMENT)
    elif environment_version():
        raise BootstrapError(
            f"{ENVIRONMENT} is for Python {environment_version()}, and not of this script's "
            f"making. Run this with that Python, or remove it, or set {OPT_OUT}=1 to run with "
            "what is installed."
        )


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


def install(requirements: list[str]) -> None:
    """Install into the project's environment: through uv, or through pip should that fail."""
    uv = find_uv()
    if uv and succeeds([uv, "pip", "install", "--python", str(PYTHON), *requirements]):
        return
    pip = [str(PYTHON), "-m", "pip"]
    if not succeeds([*pip, "--version"]):
        require_ensurepip()
        run([str(PYTHON), "-m", "ensurepip", "--default-pip"])
    run([*pip, "install", "--quiet", *requirements])


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
    return "The command above failed; when its cause is mended, run this again."


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


def wanted_by(requirement: str, extras: set[str]) -> bool:
    named = EXTRA.search(requirement)
    return named is None or named[1] in extras


def say(message: str) -> None:
    print(f"bootstrap: {message} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        prepare(set(sys.argv[1:]))
    except BootstrapError as error:
        sys.exit(f"bootstrap: {error}")
