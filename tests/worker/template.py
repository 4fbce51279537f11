"""
The program of a template: it has imported Django and the package, and forks workers from itself.

A worker that is forked here is a child of the process that asks for it, has arguments,
environment and files of its own, and reads its settings anew.
"""

import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.signals import setting_changed
from django.db import connections
from django.utils.functional import empty

from ..databases import die_with_parent

LONGEST = 1 << 17
BOUNDS = slice(47, 49)  # of the environment, in /proc/PID/stat after the program's name
PATIENCE = 10.0


def main(server):
    django.setup()
    import django_perfectqueue.management.commands.pq_worker  # noqa: F401

    request, files = wait_for_request(server)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    wait_for_parent(request["parent"])
    replace_environment(request["environment"])
    forget_settings()
    sys.argv = [str(Path(django.__file__).with_name("__main__.py")), *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", "django", *request["arguments"]]
    execute_from_command_line(sys.argv)


def wait_for_request(server):
    """Fork a worker for each request, and answer its pid; return only in the workers."""
    while True:
        text, files, _flags, _address = socket.recv_fds(server, LONGEST, 3)
        if not text:
            server.close()
            sys.exit()
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(writer, str(pid).encode())
                os._exit(0)
            for file in (reader, writer, server.detach()):
                os.close(file)
            return json.loads(text), files
        # It has ended, so its child has been adopted, before who asked hears of that.
        os.waitpid(between, 0)
        server.send(os.read(reader, 20))
        for file in (reader, writer, *files):
            os.close(file)


def wait_for_parent(pid):
    """Wait until that process has adopted this one, to end with it from then on."""
    deadline = time.monotonic() + PATIENCE
    while os.getppid() != pid and time.monotonic() < deadline:
        time.sleep(0.001)
    die_with_parent(parent=pid)()


def replace_environment(environment):
    """Replace it in Python, in C, and where others read it: in /proc/PID/environ."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[BOUNDS])
    text = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    if len(text) > end - start:
        raise ValueError(f"An environment of {len(text)} bytes has no room in {end - start}.")
    os.environ.clear()  # C has none of the old strings any more, which are written over.
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    os.environ.update(environment)


def forget_settings():
    """Have the settings, and what was made of them, be read anew."""
    for module in ("tests.settings", "tests.worker.settings"):
        del sys.modules[module]
    settings._wrapped = empty
    vars(connections).pop("settings", None)
    connections.__init__()
    for name in ("PERFECTQUEUE", "TASKS"):
        setting_changed.send(None, setting=name, value=None, enter=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
