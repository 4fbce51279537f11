from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .lifetime import children, die_with_parent, is_alive, make_folder, remove_folder

Self = TypeVar("Self", bound="Server")
UNPRIVILEGED = "nobody"
DATABASE = "perfectqueue"


class ServerError(Exception):
    """The server did not start or stop; the message holds the end of its log."""


class UnavailableError(Exception):
    """This machine lacks what the server needs; ``remedy`` is the line that helps."""

    def __init__(self, reason: str, *, remedy: str, on_package_index: bool = False) -> None:
        super().__init__(f"{reason} Remedy: {remedy}")
        self.remedy = remedy
        self.on_package_index = on_package_index


class Server:
    """
    A database server in a folder of its own, reached through a unix socket.

    ``durable`` has it keep what it confirmed through a crash, as in production;
    without it the server is fast, and may lose its data when killed.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM
    abandon_signal: ClassVar[int] = signal.SIGKILL
    patience = 60.0

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.maker = os.getpid()

    @property
    def url(self) -> str:
        """The server's database, as django-environ reads DATABASE_URL."""
        raise NotImplementedError

    def require(self) -> None:
        """Raise UnavailableError when the server cannot be had here."""
        raise NotImplementedError

    def initialise(self) -> None:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def connect(self, database: str = "") -> Any:
        """Return the driver's own connection, to a database or to none in particular."""
        raise NotImplementedError

    def create_database(self) -> None:
        raise NotImplementedError

    @property
    def home(self) -> Path:
        if self.folder is None:
            raise ServerError(f"{self.name} was not started.")
        return self.folder

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server, on the data of last time if there was one; return when it answers."""
        if self.folder is None:
            self.make_home()
            self.launch()
            self.create_database()
        elif not self.is_running:
            self.launch()

    def make_home(self) -> None:
        self.require()
        self.folder = make_folder(self.name)
        atexit.register(self.remove)
        self.give_away()
        self.initialise()

    def give_away(self) -> None:
        """Hand the folder to the user whom the server runs as."""
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(self.home, user.pw_uid, user.pw_gid)

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(self.abandon_signal),
                **self.as_unprivileged(),
            )
        self.wait_until_it_answers()

    def as_unprivileged(self) -> dict[str, Any]:
        common = {"cwd": self.home, "stdin": subprocess.DEVNULL}
        if os.geteuid() != 0:
            return common
        user = pwd.getpwnam(UNPRIVILEGED)
        return {**common, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self.as_unprivileged()
        )
        if done.returncode:
            raise ServerError(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')}")

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self.patience
        while not self.answers():
            if not self.is_running or time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not start:\n{self.end_of_log()}")
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            self.connect().close()
        except Exception:
            return False
        return True

    def end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Stop the server in good order. Its data stays."""
        self.end_with(self.stop_signal)

    def end_with(self, signum: int) -> None:
        if self.process is None or not self.is_running:
            return
        self.process.send_signal(signum)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the server and its children as a power cut would; return when they are gone."""
        if self.process is None or not self.is_running:
            return
        self.process.send_signal(signal.SIGSTOP)
        family = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_until_gone(family)

    def wait_until_gone(self, family: list[int]) -> None:
        deadline = time.monotonic() + self.patience
        while any(map(is_alive, family)):
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} left processes behind: {family}")
            time.sleep(0.02)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop the server for good and remove its folder. Does nothing in forked children."""
        if self.folder is None or os.getpid() != self.maker:
            return
        atexit.unregister(self.remove)
        self.end_with(self.abandon_signal)
        remove_folder(self.folder)
        self.folder = self.process = None

    def __enter__(self: Self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def find_programs(names: Iterable[str], folder: Path | None = None) -> dict[str, Path]:
    """Return where each program is, or nothing at all when one is missing."""
    folders = [str(folder)] if folder else [os.environ.get("PATH", ""), *SYSTEM_FOLDERS]
    found = {name: shutil.which(name, path=os.pathsep.join(folders)) for name in names}
    return {name: Path(path) for name, path in found.items() if path} if all(found.values()) else {}


SYSTEM_FOLDERS = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin"]
