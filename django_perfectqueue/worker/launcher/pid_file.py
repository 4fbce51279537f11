"""The file with the pid of the worker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from django_perfectqueue.exceptions import ConfigError

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
