"""One supervisor, as its launcher sees it, and the file with the pid of the worker."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from django_perfectqueue.exceptions import ConfigError

from ..database.link import prepare_for_fork
from ..process.signals import ALIVE, DETACH, GO, READY, REPLACED, STOP, STOP_NOW, drain, held_back

SUPERVISOR, GENERATION = "PERFECTQUEUE_SUPERVISOR", "PERFECTQUEUE_GENERATION"


class ForkedProcess:
    """A forked child, with the part of Popen's interface that a generation uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


class Generation:
    """
    One supervisor, with the code and settings of its start.

    It sends a byte when it takes tasks. When the launcher dies, the socket closes, and the
    supervisor stops.
    """

    def __init__(
        self, process: subprocess.Popen[bytes] | ForkedProcess, channel: socket.socket
    ) -> None:
        self.process = process
        self.socket = channel
        self.socket.setblocking(False)
        self.hears = self.ready = self.answered = self.gone = self.dismissed = False

    @property
    def sources(self) -> list[int]:
        """The descriptors to wait on while it runs."""
        return [] if self.gone or self.code() is not None else [self.socket.fileno()]

    def tell(self, word: bytes) -> None:
        """Send a byte to the supervisor, if it still listens."""
        with contextlib.suppress(OSError):
            self.socket.send(word)

    def listen(self) -> None:
        """Read what the supervisor has sent."""
        said = None if self.gone else drain(self.socket.fileno())
        self.gone = said is None
        self.hears = self.hears or bool(said)
        self.ready = self.ready or READY in (said or b"")
        self.answered = self.answered or bool(said)

    def has_answered(self) -> bool:
        """Return whether it answered since the last call, and request another answer."""
        answered, self.answered = self.answered, False
        self.tell(ALIVE)
        return answered

    def replace(self, signum: int) -> None:
        """Say that another generation takes tasks, and stop this one by a signal."""
        self.tell(REPLACED)
        self.send(signum)

    def send(self, signum: int) -> None:
        """
        Send a signal; a stop kills a supervisor that does not handle signals yet.

        It has started no task, and may be waiting for a database that does not answer.
        """
        self.listen()
        if signum in (STOP, STOP_NOW, DETACH) and not self.hears:
            self.dismissed = True
            signum = signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signum)

    def code(self) -> int | None:
        """Return its exit code once it has ended, as a shell would name it."""
        code = self.process.poll()
        if code is None:
            return None
        if self.dismissed and code < 0:
            return 0
        return 128 - code if code < 0 else code

    def close(self) -> None:
        """Close the socket; the process may go on."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.returncode = 0


def spawned(command: Sequence[str], environment: Mapping[str, str]) -> Generation:
    """Start a supervisor in a fresh interpreter, which reads code and settings anew."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as failing:
        failing.callback(ours.close)
        process = subprocess.Popen(  # noqa: S603
            command,
            env={**environment, SUPERVISOR: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        failing.pop_all()
    return Generation(process, ours)


def forked() -> tuple[Generation, None] | tuple[None, socket.socket]:
    """
    Fork the first supervisor: this process has just read the code and the settings.

    Return its generation; in the child, once the launcher lets it go on, the socket to the
    launcher. The child exits if the launcher ends before.
    """
    ours, theirs = socket.socketpair()
    prepare_for_fork()
    # The garbage collector does not touch frozen objects, so both keep sharing their pages.
    gc.freeze()
    with held_back():
        pid = os.fork()
        if pid:
            theirs.close()
            return Generation(ForkedProcess(pid), ours), None
        os.setsid()
    ours.close()
    if theirs.recv(1) != GO:
        sys.exit(0)
    return None, theirs


def may_fork() -> bool:
    """Return whether this process has one thread; a fork would end the others."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task")) == 1
    return threading.active_count() == 1


def first_environment() -> dict[str, str]:
    """
    Return the environment with which this process was started.

    Variables that settings have added since, as from an .env file, would hide the file's new
    values from the next generation.
    """
    with contextlib.suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().rstrip(b"\0").split(b"\0")
        pairs = [entry.partition(b"=") for entry in entries]
        if all(name and equals for name, equals, _value in pairs):
            return {os.fsdecode(name): os.fsdecode(value) for name, _equals, value in pairs}
    return dict(os.environ)


# The file with the pid of the worker.


LONGEST = 64


class PidFile:
    """
    A file with the launcher's pid, and a lock on it that ends with the launcher.

    Only the lock decides whether a worker uses it: the file of a killed worker does not block
    another, even if its pid was reused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.file = -1

    def take(self) -> None:
        """Write it; raise ConfigError if a worker holds the lock, or it can't be written."""
        try:
            while self.file < 0:
                self.file = self.locked(os.O_CREAT)
            self.check()
            os.truncate(self.file, 0)
            os.pwrite(self.file, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            raise ConfigError(
                f"A worker is running already, with the pid file {self.path}: its pid is"
                f" {self.written() or '?'}."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"The pid file can't be written. {error}. Name another path with --pid-file."
            ) from error

    def locked(self, flags: int = 0) -> int:
        """
        Return the file, open and locked; -1 when it has been replaced meanwhile.

        Symbolic links are not followed: in a shared folder another user may create one. Raise
        BlockingIOError if another process holds the lock.
        """
        flags |= os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.is_at_its_path(file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return -1

    def is_at_its_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Raise ConfigError if the file is not a pid file."""
        ours = os.fstat(self.file)
        text = os.pread(self.file, LONGEST, 0) if stat.S_ISREG(ours.st_mode) else b"no file"
        if ours.st_size >= LONGEST or not (text.strip().isdigit() or not text.strip()):
            self.let_go()
            raise ConfigError(
                f"{self.path} is no pid file, and is left as it is. Name another path with"
                " --pid-file."
            )

    def written(self) -> str:
        try:
            return self.path.read_text()[:LONGEST].strip()
        except (OSError, ValueError):
            return ""

    def let_go(self) -> None:
        """Release the lock and keep the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def remove(self) -> None:
        """Delete it, unless a successor has written it."""
        with contextlib.suppress(OSError):
            if self.file < 0:
                self.file = self.locked()
            ours = self.file >= 0 and self.is_at_its_path(self.file)
            if ours and self.written() == str(os.getpid()):
                self.path.unlink()
        self.let_go()
