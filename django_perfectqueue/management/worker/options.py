"""The options of pq_worker, and the settings that they override."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_perfectqueue import conf
from django_perfectqueue.exceptions import ConfigError

from ..base import CommandOptions
from ..flags import add_flags

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
"""The options that override a setting."""
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
