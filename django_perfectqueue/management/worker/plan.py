"""What the worker is to do, by its options and the settings; the program of ``--exec``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from typing import ClassVar

from django_perfectqueue import backoff as backoffs
from django_perfectqueue import compat, conf, queue
from django_perfectqueue.application import CommandHandler, Dispatch
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.worker.discovery import found, no_handlers, with_django_tasks
from django_perfectqueue.worker.launcher.launcher import GENERATION
from django_perfectqueue.worker.plan import Plan

from ..base import CommandOptions, known_alias
from .options import chosen_options

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
