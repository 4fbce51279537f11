"""The options of pq_worker, and the settings that they override."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from django_perfectqueue import conf
from django_perfectqueue.exceptions import ConfigError

from ..base import CommandOptions
from ..flags import add_flags
from ..values import at_least

OVERRIDES: dict[str, tuple[str, Callable[[str], object], str]] = {
    "processors": ("PROCESSORS", at_least(1), "N"),
    "processor_type": ("PROCESSOR_TYPE", str, "TYPE"),
    "concurrency": ("CONCURRENCY", at_least(1), "N"),
    "queue_order": ("QUEUE_ORDER", str, "ORDER"),
    "poll_interval": ("POLL_INTERVAL", float, "SECONDS"),
    "prefetch": ("TASK_PREFETCH", at_least(0), "N"),
    "max_requests": ("RECYCLE.tasks", at_least(1), "N"),
    "max_age": ("RECYCLE.age", float, "SECONDS"),
    "max_memory": ("RECYCLE.memory", at_least(1), "MIB"),
}
"""The options that override a setting: the setting, the type and the word for a value."""


def add_options(parser: CommandParser) -> None:
    add = parser.add_argument

    def override(name: str, text: str) -> None:
        _setting, kind, word = OVERRIDES[name]
        add(flag(name), type=kind, metavar=word, help=text)

    add(
        "dispatch",
        nargs="?",
        help=(
            "Dotted path of a Dispatch. Otherwise the setting DISPATCH, or all handlers in the"
            " tasks modules of the installed apps."
        ),
    )
    add(
        "--exec",
        metavar="COMMAND",
        help=(
            "Run this program for every task, of whatever type: 'prog arg'. It gets the data as"
            " JSON on its standard input, and the key as its last argument."
        ),
    )
    add_flags(parser, ("--queue",), action="append", dest="queues")
    add_flags(parser, ("--database",))
    add(
        "--wait-for-database",
        type=at_least(1),
        metavar="SECONDS",
        help="Wait so long at the start for a database that can't be reached or is not migrated.",
    )
    override("processors", "How many processes.")
    override("processor_type", "How each of them runs tasks: process, thread or async.")
    override(
        "concurrency", "How many tasks each of them runs at once, if they are thread or async."
    )
    override(
        "queue_order",
        (
            "How to go through several queues: fair (by weight and time), ordered (the first is"
            " served first), round_robin or shuffled."
        ),
    )
    override("poll_interval", "How often to look for tasks when there were none.")
    override("prefetch", "How many tasks to take in advance.")
    override("max_requests", "Replace a processor when it has run so many tasks.")
    override("max_age", "Replace a processor when it is so old, between two tasks.")
    override("max_memory", "Replace a processor when it holds so much memory, between two tasks.")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--burst", action="store_true", help="Leave when no task is due any more."
    )
    how_long.add_argument(
        "--reload",
        action="store_true",
        help="Start anew whenever the code has changed. For development.",
    )
    add(
        "--pid-file",
        metavar="PATH",
        help="Write the worker's pid there, and start no second one with the same file.",
    )
    add(
        "--health-port",
        type=address,
        metavar="[HOST:]PORT",
        help="Answer /live and /ready over HTTP there (default host: 127.0.0.1).",
    )


def flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def chosen_options(options: CommandOptions) -> conf.Options:
    """Return the settings, with what the command line says instead."""
    given: dict[str, Any] = {}
    for name, (setting, *_more) in OVERRIDES.items():
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


def address(text: str) -> tuple[str, int]:
    """Return the host and the port that were written as "8001" or "0.0.0.0:8001"."""
    host, _colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ArgumentTypeError(f"must be a port from 1 to 65535, or HOST:PORT, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


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
