"""What must hold before a worker starts."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from django.core.management.base import CommandError

from django_perfectqueue.health.schema import lacks_tables, unmigrated
from django_perfectqueue.worker.process.signals import DETACH, STOP, STOP_NOW

from ..base import cli_errors

WAIT = 0.5
STOPS = {STOP, STOP_NOW, DETACH}
PATCHERS = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
PATCHED = ("os", "socket", "select", "signal", "thread", "threading", "time", "subprocess")


def check_unpatched() -> None:
    """Raise CommandError where someone has put other code in place of the system's calls."""
    for module, ask in PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and any(map(getattr(patcher, ask), PATCHED)):
            raise CommandError(
                f"{module.partition('.')[0]} has replaced parts of Python, on which the"
                " processes of a worker depend. Don't let it do so where pq_worker runs, or in"
                " its settings; to run many tasks at once use --processor-type thread or async."
            )


def is_there(using: str, seconds: float, say: Callable[[str], object]) -> bool:
    """
    Wait a number of seconds for a database, and log why; return False on a signal to stop.

    The signal stays pending until it is taken.
    """
    deadline, logged = time.monotonic() + seconds, False
    while seconds:
        try:
            check_database(using)
        except CommandError as error:
            if signal.sigpending() & STOPS:
                return False
            if time.monotonic() >= deadline:
                return True
            if not logged:
                say(f"Waiting up to {seconds} s. {error}")
            logged = True
            time.sleep(WAIT)
        else:
            return True
    return True


def check_database(using: str) -> None:
    """Raise CommandError when the database can't be used as it is."""
    with cli_errors(using):
        if lacks_tables(using):
            raise CommandError(unmigrated(using))


def check_health(health: tuple[str, int] | None) -> None:
    """Raise CommandError when nobody can listen there."""
    if health is None:
        return
    # Imported here, as few workers need an HTTP server.
    from django_perfectqueue.worker.helpers.probe_server import refusal

    if why := refusal(health):
        raise CommandError(f"Can't listen at {health[0]}, port {health[1]}: {why}.")
