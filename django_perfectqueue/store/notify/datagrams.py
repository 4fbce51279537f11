"""
Notifications on one host: a folder with a socket for each worker that listens.

Anyone on the host may send: a message carries the name of a queue and makes a worker look for
tasks, no more. Only the folder's owner may listen there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_perfectqueue.conf import options

PREFIX = "perfectqueue-"
OPEN_TO_SENDERS = 0o755
WRITABLE_BY_OTHERS = 0o022
ROOT = 0
WRITABLE_BY_ALL = 0o666
LONGEST_PATH = 103
LONGEST_NAME = 18
LONGEST_MESSAGE = 1024
MOST_LISTENERS = 64
TRIES = 3


def send(message: str, connection: BaseDatabaseWrapper) -> None:
    """Reach every worker on this host that listens; wait for none."""
    folder = folder_of(connection)
    if folder is None or not stat.S_ISDIR(mode_of(folder)):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, os.scandir(folder) as entries:
        sender.setblocking(False)
        for entry in islice(entries, MOST_LISTENERS):
            if stat.S_ISSOCK(mode_of(entry.path)):
                deliver(sender, message.encode(), entry.path)


def deliver(sender: socket.socket, message: bytes, path: str) -> None:
    """Send to one socket, or remove it when its owner died without doing so."""
    try:
        sender.sendto(message, path)
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            os.unlink(path)
    except OSError:
        # Its buffer is full of notifications as it is, or it is not for us.
        return


def folder_of(connection: Any) -> str | None:
    """Return where those meet who use this database, or None for one in memory."""
    entry = connection.settings_dict
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            return None
        identity: tuple[object, ...] = (os.fspath(entry["NAME"]),)
    else:
        given = entry["OPTIONS"]
        named = [given.get(name) for name in ("unix_socket", "host", "port", "read_default_file")]
        identity = (entry["HOST"], entry["PORT"], entry["NAME"], *named)
    try:
        parent = os.fspath(options().notify_folder or tempfile.tempdir or tempfile.gettempdir())
    except FileNotFoundError:
        return None  # Workers see tasks when they look, and check says why.
    return folder(parent, connection.vendor, *identity)


@functools.lru_cache
def folder(parent: str, vendor: str, *identity: object) -> str:
    if vendor == "sqlite":
        identity = (os.path.realpath(str(identity[0])),)
    digest = hashlib.blake2b(repr((vendor, *map(str, identity))).encode(), digest_size=6)
    return os.path.join(parent, PREFIX + digest.hexdigest())


def fits(folder: str) -> bool:
    """Return whether the path of a socket in this folder is short enough for the system."""
    return len(os.fsencode(folder)) + 1 + LONGEST_NAME <= LONGEST_PATH


def mode_of(path: str) -> int:
    """Return the mode of a file or a link, or 0 when it is not there: its owner may just leave."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


class SocketListener:
    """A socket in the folder of the database."""

    proven = True

    def __init__(self, using: str) -> None:
        self.using = using
        self.socket: socket.socket | None = None
        self.path = ""

    @property
    def is_open(self) -> bool:
        """Whether it can be notified; its folder may have been swept away."""
        return self.socket is not None and os.path.lexists(self.path)

    def open(self) -> None:
        """Raise OSError when the socket can't be made."""
        self.close()
        folder = folder_of(connections[self.using])
        if folder is None:
            raise OSError("A database in memory has no other process.")
        self.path = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(4)}")
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "The path is too long for a socket", self.path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        for trial in range(TRIES):
            make(folder)
            try:
                self.socket.bind(self.path)
                break
            except FileNotFoundError:
                # Someone who left has just taken the empty folder away.
                if trial == TRIES - 1:
                    raise
        os.chmod(self.path, WRITABLE_BY_ALL)

    def fileno(self) -> int:
        return -1 if self.socket is None else self.socket.fileno()

    def read(self) -> Iterable[Notification]:
        messages = []
        with contextlib.suppress(BlockingIOError):
            while self.socket is not None:
                messages.append(self.socket.recv(LONGEST_MESSAGE).decode(errors="replace"))
        return parsed(messages)

    def close(self) -> None:
        """Take the socket away, and the folder when it was the last one there."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            with contextlib.suppress(OSError):
                os.unlink(self.path)
                os.rmdir(os.path.dirname(self.path))


def make(folder: str) -> None:
    """
    Make a folder in which only this user may have sockets, and everyone may send to them.

    Raise OSError when there is one already that others may write to: they could delete sockets,
    or create so many that a sender never reaches ours.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.chmod(folder, OPEN_TO_SENDERS)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "This is no folder", folder)
    if found.st_uid not in (os.geteuid(), ROOT) or found.st_mode & WRITABLE_BY_OTHERS:
        reason = "Another user may write to it; set NOTIFY to a folder of the worker's own"
        raise PermissionError(errno.EACCES, reason, folder)


# What a notification says.


CALL = "call"
# How many times less often than each POLL_INTERVAL a worker at rest polls, at the most.
AT_REST = 5


class Notification(NamedTuple):
    """
    In this queue a task may run in so many seconds; without a name, in some queue.

    With a ``holder`` there is news of what this holder has: someone wants it to stop, or has
    ended it. It orders nothing: who hears it asks the database, sooner than it would have
    done anyway. As a message it is the seconds, a blank and the name, or CALL and the holder.
    """

    queue: str = ""
    delay: float = 0.0
    holder: int | None = None

    @property
    def message(self) -> str:
        if self.holder is not None:
            return f"{CALL} {self.holder}"
        return f"{self.delay:.3f} {self.queue}"


def parsed(messages: Iterable[str]) -> Iterator[Notification]:
    """Yield the notifications among messages that anyone may have sent."""
    for message in messages:
        word, _blank, rest = message.partition(" ")
        try:
            if word == CALL:
                yield Notification(holder=int(rest))
            else:
                yield Notification(rest, max(0.0, float(word)))
        except ValueError:
            continue
