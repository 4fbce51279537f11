"""The process that watches the code, in development."""

from __future__ import annotations

import logging
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from django.utils.autoreload import StatReloader, autoreload_started

from ..process.signals import REOPEN_LOGS, take_signals
from ..process.wakeup import Wakeup, readable

logger = logging.getLogger("django_perfectqueue.reloader")

INTERVAL = 0.5


class SourceFiles:
    """
    The files of which a generation is made, as they were when it loaded them.

    That is what Django's own server watches: all modules, and what its apps ask for, such as
    templates; and besides what lies beside the project's modules, so that the error in a
    new file is found to be mended, though no generation could load it.
    """

    def __init__(self) -> None:
        self.reloader = StatReloader()
        autoreload_started.send(sender=self.reloader)
        for folder in {file.parent for file in project_files()}:
            self.reloader.watch_dir(folder, "*.py")
        self.seen = dict(self.reloader.snapshot_files())

    def changed(self) -> Path | None:
        """Return a file that has been changed since the last look."""
        now = dict(self.reloader.snapshot_files())
        changed = [file for file, time in now.items() if self.seen.get(file, time) != time]
        self.seen.update(now)
        return min(changed, default=None)


class Reloader:
    """Tells when a file has changed; it ends by any signal, and with its supervisor."""

    def __init__(
        self, files: SourceFiles, on_change: Callable[[Path], None], *, parent_alive: int
    ) -> None:
        self.files = files
        self.on_change = on_change
        self.parent_alive = parent_alive
        self.wakeup = Wakeup()
        self.stopping = False

    def run(self) -> int:
        take_signals(self.on_signal)
        while not self.stopping:
            if file := self.files.changed():
                self.on_change(file)
            if self.parent_alive in readable([self.wakeup.read_fd, self.parent_alive], INTERVAL):
                break
            self.wakeup.wait(0)
        return 0

    def on_signal(self, signum: int, frame: object) -> None:
        self.stopping = self.stopping or signum != REOPEN_LOGS
        self.wakeup.wake()


def project_files() -> Iterator[Path]:
    """Yield the files of all modules but those of Python and of installed packages."""
    others = installed()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not others.intersection(Path(file).parents):
            yield Path(file)


def installed() -> set[Path]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = (*site.getsitepackages(), site.getusersitepackages())
    return {Path(folder) for folder in (*folders, *packages) if folder}
