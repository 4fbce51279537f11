"""The helper that watches the source files, in development."""

from __future__ import annotations

import logging
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from django.utils.autoreload import StatReloader, autoreload_started

from ..plan import Plan
from .base import Helper

logger = logging.getLogger("django_perfectqueue.reloader")

INTERVAL = 0.5


class SourceFiles:
    """
    The source files of a generation, with their times at its start.

    As in runserver these are all modules, and files that apps add, such as templates. The
    other files beside the project's modules are added, so that a fix to a new module that
    could not be imported is noticed, too.
    """

    def __init__(self) -> None:
        self.reloader = StatReloader()
        autoreload_started.send(sender=self.reloader)
        for folder in {file.parent for file in project_files()}:
            self.reloader.watch_dir(folder, "*.py")
        self.seen = dict(self.reloader.snapshot_files())

    def changed(self) -> Path | None:
        """Return a file that changed since the last call."""
        now = dict(self.reloader.snapshot_files())
        changed = [file for file, time in now.items() if self.seen.get(file, time) != time]
        self.seen.update(now)
        return min(changed, default=None)


class Reloader(Helper):
    """Calls ``on_change`` for changed files."""

    def __init__(self, plan: Plan, files: SourceFiles, on_change: Callable[[Path], None]) -> None:
        super().__init__(plan)
        self.files = files
        self.on_change = on_change

    def work(self) -> None:
        while not self.stopping:
            if file := self.files.changed():
                self.on_change(file)
            self.wait(INTERVAL)


def project_files() -> Iterator[Path]:
    """Yield the files of the modules outside of Python and installed packages."""
    others = installed()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not others.intersection(Path(file).parents):
            yield Path(file)


def installed() -> set[Path]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = (*site.getsitepackages(), site.getusersitepackages())
    return {Path(folder) for folder in (*folders, *packages) if folder}
