"""The options of pq_worker, what it is to do by them, and what must hold before it starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue import backoff as backoffs
from django_perfectqueue import compat, conf, queue
from django_perfectqueue.application import CommandHandler, Dispatch
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.health.tables import lacks_tables, unmigrated
from django_perfectqueue.worker.discovery import found, no_handlers, with_django_tasks
from django_perfectqueue.worker.launcher.launcher import GENERATION
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import DETACH, STOP, STOP_NOW

from .base import CommandOptions, cli_errors, known_alias
from .flags import add_flags

# The options that override a setting.
OVERRIDES = {
    "processors": "PROCESSORS",
    "processor_type": "PROCESSOR_TYPE",
    "concurrency": "CONCURRENCY",
    "queue_order": "QUEUE_ORDER",
    "poll_interval": "POLL_INTERVAL",
    "prefetch": "TASK_PREFETCH",
    "max_requests": "RECYCLE.tasks",
    "max_age": "RECYCLE.age",
    "max_memory": "RECYCLE.memory",
}
DISPATCH = (
    "Dotted path of a Dispatch. Otherwise the setting DISPATCH, or all handlers in the tasks"
    " modules of the installed apps."
)


def add_options(parser: CommandParser) -> None:
    parser.add_argument("dispatch", nargs="?", help=DISPATCH)
    add_flags(parser, "--exec --queue+ --database --wait-for-database")
    add_flags(parser, " ".join(map(flag, OVERRIDES)))
    add_flags(parser.add_mutually_exclusive_group(), "--burst --reload")
    add_flags(parser, "--pid-file --health-port")


def flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def chosen_options(options: CommandOptions) -> conf.Options:
    """Return the settings, with what the command line says instead."""
    given: dict[str, Any] = {}
    for name, setting in OVERRIDES.items():
        if (value := options[name]) is not None:
            setting, _dot, key = setting.partition(".")
            known = given.get(setting, getattr(conf.options(), setting))
            given[setting] = {**known, key: value} if key else value
    values = conf.options().replace(**given)
    if values.PROCESSOR_TYPE == "process" and given.get("CONCURRENCY", 1) > 1:
        raise ConfigError(
            "A processor of the type 'process' runs one task at a time: give --processor-type"
            " thread or async as well, or more --processors."
        )
    return values


def arguments(options: CommandOptions) -> list[str]:
    """Return options as they are written on a command line."""
    words = [options["dispatch"]] if options["dispatch"] else []
    for name in options["queues"] or ():
        words += ["--queue", name]
    for option in ("exec", "database", "wait_for_database", *OVERRIDES):
        if options[option] is not None:
            words += [flag(option), str(options[option])]
    words += [f"--{name}" for name in ("burst", "reload") if options[name]]
    if options["health_port"]:
        host, port = options["health_port"]
        words += ["--health-port", f"[{host}]:{port}"]
    colour = "--force-color" if options["force_color"] else "--no-color"
    if options["force_color"] or options["no_color"]:
        words.append(colour)
    return [*words, "--verbosity", str(options["verbosity"])]


EVERY_TYPE = re.compile("")


class Exec(Dispatch):
    """Has tasks of every type run by one program."""

    command: ClassVar[Sequence[str]] = ()


def plan_of(options: CommandOptions) -> Plan:
    """Return what is to be done; raise ConfigError or InvalidTaskError when it can't be."""
    values = chosen_options(options)
    if values.EAGER:
        raise ConfigError(
            "EAGER is on: tasks run where they are submitted, and a worker would do so, too."
            " Take it out of PERFECTQUEUE to run a worker."
        )
    using = known_alias(options["database"] or queue.database())
    dispatch, names = work_of(options, values, using)
    names = options["queues"] or names
    check_backoff(values.BACKOFF)
    if not dispatch.load():
        raise ConfigError(no_handlers(dispatch))
    return Plan(
        dispatch=dispatch,
        queues=tuple(
            dict.fromkeys(queue.checked("queue", name, queue.QUEUE_LENGTH) for name in names)
        ),
        using=using,
        options=values,
        burst=options["burst"],
        reload=options["reload"],
        generation=int(os.environ.pop(GENERATION, "1")),
        health=options["health_port"],
    )


def work_of(
    options: CommandOptions, values: conf.Options, using: str
) -> tuple[type[Dispatch], list[str]]:
    """Return the dispatch that was asked for, and the queues that go with it."""
    names = [values.DEFAULT_QUEUE]
    if options["exec"] is not None:
        if options["dispatch"]:
            raise ConfigError("Name a Dispatch, or a program by --exec, but not both.")
        return exec_of(options["exec"]), names
    dispatch = found(options["dispatch"] or values.DISPATCH)
    if compat.HAS_TASKS:
        dispatch, more = with_django_tasks(dispatch, using)
        names += more
    return dispatch, names


def check_backoff(backoff: object) -> None:
    """Raise ConfigError when the waits of the settings are a path that leads nowhere."""
    try:
        if isinstance(backoff, str):
            backoffs.backoff_at(backoff)
    except ConfigError as error:
        raise ConfigError(f"{conf.SETTING}['BACKOFF']: {error}") from error


def exec_of(text: str) -> type[Exec]:
    """
    Return the dispatch for a program with its arguments, written as for a shell.

    Raise ConfigError when it is no command, or is not found.
    """
    words = split(text)
    if shutil.which(words[0]) is None:
        raise ConfigError(unknown(words[0]))
    handler = type("Handler", (CommandHandler,), {"command": words, "__module__": __name__})
    return type("Exec", (Exec,), {"command": words, "routes": {EVERY_TYPE: handler}})


def split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--exec can't be read: {error}: {text}") from error
    if not words or not words[0]:
        raise ConfigError("--exec needs a program, such as: --exec 'convert --fast'.")
    return words


def unknown(name: str) -> str:
    if "/" in name:
        return f"--exec: there is no program at '{name}', or it may not be executed."
    return f"--exec: there is no program '{name}' on PATH."


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
