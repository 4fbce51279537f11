"""Django's own tests of its tasks, from the source distribution of the Django that is installed."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import django

REQUIRED = "PERFECTQUEUE_REQUIRE_CONFORMANCE"
PATIENCE = 300
BUILD = """
def prepare_metadata_for_build_wheel(directory, settings=None):
    import pathlib
    name = "Django-{version}.dist-info"
    folder = pathlib.Path(directory, name)
    folder.mkdir()
    text = "Metadata-Version: 2.1\\nName: Django\\nVersion: {version}\\n"
    (folder / "METADATA").write_text(text)
    return name
"""


class UnavailableError(Exception):
    """There is no way to the source distribution from here."""


def copy(into):
    """
    Put the package ``tasks`` of Django's tests into a folder; raise UnavailableError.

    It is fetched once, and kept in the user's cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "django-perfectqueue")
    kept = cache / f"django-{django.__version__}-tests-of-tasks"
    with alone(cache):
        if not kept.exists():
            fetch(kept)
    shutil.copytree(kept, Path(into, "tasks"))


@contextlib.contextmanager
def alone(folder):
    """Let those who test the other databases wait for the first to fetch it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(kept):
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        build = Path(folder, "build", "setuptools", "build_meta.py")
        build.parent.mkdir(parents=True)
        build.with_name("__init__.py").touch()
        build.write_text(BUILD.replace("{version}", django.__version__))
        download(folder, build.parent.parent)
        archives = list(Path(folder).glob("*.tar.gz"))
        if not archives:
            raise UnavailableError("pip brought no archive")
        whole = Path(folder, "tasks")
        whole.mkdir()
        unpack(archives[0], whole)
        whole.rename(kept)


def unpack(archive, into):
    with tarfile.open(archive) as tar:
        for member in tar:
            _root, _sign, path = member.name.partition("/")
            if path.startswith("tests/tasks/") and path.endswith(".py"):
                (into / Path(path).name).write_bytes(tar.extractfile(member).read())


def download(folder, build):
    """
    Let pip bring the archive.

    pip asks it for its metadata, and would fetch and run setuptools for that; a module in
    its place gives the name and the version at once.
    """
    arguments = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-cache-dir"]
    arguments += ["--no-build-isolation", "--retries", "1", "--dest", folder]
    arguments.append(f"django=={django.__version__}")
    environment = {**os.environ, "PYTHONPATH": str(build)}
    environment.pop("PYTHONWARNINGS", None)
    done = call([*pip(folder), *arguments], env=environment)
    if done.returncode:
        raise UnavailableError((done.stderr.strip() or "pip failed").splitlines()[-1])


def pip(folder):
    """Return a command that is pip: this Python's own, another's, or one made for the purpose."""
    ways = [[sys.executable, "-m", "pip"], ["pip3"], ["uv", "tool", "run", "pip"]]
    for way in ways:
        with contextlib.suppress(OSError):
            if call([*way, "--version"]).returncode == 0:
                return way
    made = Path(folder, "venv")
    if call([sys.executable, "-m", "venv", str(made)]).returncode:
        raise UnavailableError("there is no pip")
    return [str(made / "bin" / "python"), "-m", "pip"]


def call(command, **options):
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{command[0]} took too long") from error
