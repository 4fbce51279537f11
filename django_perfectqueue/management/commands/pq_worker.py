"""Run tasks."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable

from django.conf import settings
from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import connections
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue import backoff as backoffs
from django_perfectqueue import compat, conf, queue, store
from django_perfectqueue.application import Dispatch, Registry
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.health.schema import lacks_tables, unmigrated
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.version import __version__
from django_perfectqueue.worker.database.connecting import prepare
from django_perfectqueue.worker.discovery import found, no_handlers, types_of, with_django_tasks
from django_perfectqueue.worker.launcher.generation import (
    SUPERVISOR,
    Generation,
    first_environment,
    forked,
    may_fork,
    same_command,
)
from django_perfectqueue.worker.launcher.launcher import GENERATION, Launcher
from django_perfectqueue.worker.launcher.pid_file import PidFile
from django_perfectqueue.worker.launcher.systemd import Notifier, taken_out_of
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process import output
from django_perfectqueue.worker.process.signals import DETACH, STOP, STOP_NOW, hold_back
from django_perfectqueue.worker.process.title import set_title
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.supervisor.supervisor import Supervisor

from ..base import CommandOptions, SummedUpCommand, at_least, known_alias, speaking
from ..queues.exec import Exec, exec_of

SHOWN = 8
WAIT = 0.5
STOPS = {STOP, STOP_NOW, DETACH}
PATCHERS = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
PATCHED = ("os", "socket", "select", "signal", "thread", "threading", "time", "subprocess")

OVERRIDES = {
    "processors": "PROCESSORS",
    "processor_type": "PROCESSOR_TYPE",
    "concurrency": "CONCURRENCY",
    "queue_order": "QUEUE_ORDER",
    "poll_interval": "POLL_INTERVAL",
    "prefetch": "TASK_PREFETCH",
    "max_requests": "MAX_REQUEST_PER_CHILD",
    "max_age": "MAX_AGE_PER_CHILD",
    "max_memory": "MAX_MEMORY_PER_CHILD",
}


class Command(SummedUpCommand):
    summary = gettext_lazy("Runs tasks in processes of its own, until it is stopped.")
    requires_system_checks = ()
    started_by_itself = False

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "dispatch",
            nargs="?",
            help=_(
                "Dotted path of a Dispatch. Otherwise the setting DISPATCH, or all handlers"
                " in the tasks modules of the installed apps."
            ),
        )
        add(
            "--exec",
            metavar="COMMAND",
            help=_(
                "Run this program for every task, of whatever type: 'prog arg'. It gets the"
                " data as JSON on its standard input, and the key as its last argument."
            ),
        )
        add("--processors", type=at_least(1), metavar="N", help=_("How many processes."))
        add(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help=_("A queue to serve; may be repeated."),
        )
        add(
            "--queue-order",
            metavar="ORDER",
            help=_(
                "How to go through several queues: fair (by weight and time), ordered (the first"
                " is served first), round_robin or shuffled."
            ),
        )
        add("--database", metavar="ALIAS", help=_("The database of the queues."))
        add(
            "--wait-for-database",
            type=at_least(1),
            metavar="SECONDS",
            help=_(
                "Wait so long at the start for a database that can't be reached or is not migrated."
            ),
        )
        how_long = parser.add_mutually_exclusive_group()
        how_long.add_argument(
            "--burst", action="store_true", help=_("Leave when no task is due any more.")
        )
        how_long.add_argument(
            "--reload",
            action="store_true",
            help=_("Start anew whenever the code has changed. For development."),
        )
        add(
            "--poll-interval",
            type=float,
            metavar="SECONDS",
            help=_("How often to look for tasks when there were none."),
        )
        add(
            "--processor-type",
            metavar="TYPE",
            help=_("How each of them runs tasks: process, thread or async."),
        )
        add(
            "--concurrency",
            type=at_least(1),
            metavar="N",
            help=_("How many tasks each of them runs at once, if they are thread or async."),
        )
        add(
            "--prefetch",
            type=at_least(0),
            metavar="N",
            help=_("How many tasks to take in advance."),
        )
        add(
            "--max-requests",
            type=at_least(1),
            metavar="N",
            help=_("Replace a processor when it has run so many tasks."),
        )
        add(
            "--max-age",
            type=float,
            metavar="SECONDS",
            help=_("Replace a processor when it is so old, between two tasks."),
        )
        add(
            "--max-memory",
            type=at_least(1),
            metavar="MIB",
            help=_("Replace a processor when it holds so much memory, between two tasks."),
        )
        add(
            "--pid-file",
            metavar="PATH",
            help=_("Write the worker's pid there, and start no second one with the same file."),
        )
        add(
            "--health-port",
            type=address,
            metavar="[HOST:]PORT",
            help=_("Answer /live and /ready over HTTP there (default host: 127.0.0.1)."),
        )

    def run_from_argv(self, argv: list[str]) -> None:
        self.started_by_itself = True
        hold_back()
        super().run_from_argv(argv)

    def handle(self, *args: object, **options: object) -> None:
        """Be the launcher, or the supervisor when a launcher has started this."""
        check_unpatched()
        if self.started_by_itself:
            output.install()
            style = self.stderr.style_func
            self.stdout, self.stderr = OutputWrapper(sys.stdout), OutputWrapper(sys.stderr)
            self.stderr.style_func = style
        launcher = os.environ.pop(SUPERVISOR, None)
        if launcher is not None:
            code = self.supervise(socket.socket(fileno=int(launcher)), options)
        else:
            code = self.launch(options)
        if not code:
            return
        if self.started_by_itself:
            sys.exit(code)
        raise CommandError(_("The worker ended with exit code %d.") % code, returncode=code)

    def launch(self, options: CommandOptions) -> int:
        """Be the launcher, and in a fork of it the first supervisor."""
        command, environment = same_command(), first_environment()
        for_us = taken_out_of(environment)
        first: Generation | None = None
        if self.started_by_itself and may_fork():
            taken_out_of(os.environ)
            first, channel = forked()
            if channel is not None:
                return self.supervise(channel, options)
        if not self.started_by_itself:
            environment, for_us = dict(os.environ), {}
            taken_out_of(environment)
            command = [sys.executable, "-m", "django", "pq_worker", *arguments(options)]
            environment["DJANGO_SETTINGS_MODULE"] = settings.SETTINGS_MODULE
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        echo = () if self.stdout_is_ours() else (self.stdout, self.stderr)
        set_title("launcher")
        with speaking():
            launcher = Launcher(
                command,
                detach_wait=chosen_options(options).DETACH_WAIT,
                environment=environment,
                echo=echo,
                pid_file=PidFile(options["pid_file"]) if options["pid_file"] else None,
                notifier=Notifier(for_us),
                first=first,
            )
            return launcher.run()

    def stdout_is_ours(self) -> bool:
        """Return whether a child process prints to the same place."""
        try:
            return bool(self.stdout.fileno() == 1)
        except (AttributeError, OSError, ValueError):
            return False

    def supervise(self, launcher: socket.socket, options: CommandOptions) -> int:
        set_title("supervisor")
        self.check(tags=["perfectqueue"])
        with speaking():
            plan = plan_of(options)
        prepare(plan.using, idle_limit=plan.options.IDLE_TRANSACTION_LIMIT)
        if not is_there(plan.using, options["wait_for_database"] or 0, self.say):
            return 0
        check_database(plan.using)
        check_health(plan.health)
        reporter = Reporter(self.print, self.style, options["verbosity"])
        self.introduce(plan, reporter)
        return Supervisor(plan, reporter, launcher).run()

    def say(self, text: str) -> None:
        self.stderr.write(text)

    def print(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def introduce(self, plan: Plan, reporter: Reporter) -> None:
        vendor = connections[plan.using].display_name
        reporter.head(f"django-perfectqueue {__version__}")
        reporter.say(
            _("Database: %(alias)s (%(vendor)s)") % {"alias": plan.using, "vendor": vendor}
        )
        reporter.say(queues_in_words(plan))
        reporter.say(handlers(plan.dispatch))
        reporter.say(staff(plan.options))


def queues_in_words(plan: Plan) -> str:
    """Return in words which queues are served, and how they share the worker."""
    names = {"queues": ", ".join(plan.queues)}
    if len(plan.queues) == 1:
        return _("Queues: %(queues)s") % names
    if plan.options.QUEUE_ORDER == conf.FAIR:
        weights = store.queue_weights(plan.queues, using=plan.using)
        names["weights"] = " : ".join(f"{weights.get(queue, 1.0):g}" for queue in plan.queues)
        return _("Queues: %(queues)s share by weight (%(weights)s)") % names
    if plan.options.QUEUE_ORDER == "ordered":
        return _("Queues, each served before those behind it: %(queues)s") % names
    return _("Queues: %(queues)s (%(order)s)") % {**names, "order": plan.options.QUEUE_ORDER}


def handlers(dispatch: type[Dispatch]) -> str:
    """Return in words what runs the tasks."""
    if issubclass(dispatch, Exec):
        return _("Every task is run by: %s") % shlex.join(dispatch.command)
    types = types_of(dispatch)
    more = len(types) - SHOWN
    shown = ", ".join(types[:SHOWN]) + (_(" and %d more") % more if more > 0 else "")
    source = _("tasks modules") if issubclass(dispatch, Registry) else path_of(dispatch)
    return _("Handlers: %(types)s (%(source)s)") % {"types": shown, "source": source}


def staff(options: conf.Options) -> str:
    """Return in words how many processors there are, and how many tasks each runs at once."""
    count = options.PROCESSORS
    words = ngettext("%d processor", "%d processors", count) % count
    if options.PROCESSOR_TYPE == "process":
        return words
    concurrency = options.places
    more = (
        ngettext("%d task at once in each", "%d tasks at once in each", concurrency) % concurrency
    )
    return f"{words} ({options.PROCESSOR_TYPE}): {more}"


def plan_of(options: CommandOptions) -> Plan:
    """Return what is to be done; raise ConfigError or InvalidTaskError when it can't be."""
    values = chosen_options(options)
    if values.EAGER:
        raise ConfigError(
            _(
                "EAGER is on: tasks run where they are submitted, and a worker would do so, too."
                " Take it out of PERFECTQUEUE to run a worker."
            )
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


def check_unpatched() -> None:
    """Raise CommandError where someone has put other code in place of the system's calls."""
    for module, ask in PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and any(map(getattr(patcher, ask), PATCHED)):
            raise CommandError(
                _(
                    "%(module)s has replaced parts of Python, on which the processes of a worker"
                    " depend. Don't let it do so where pq_worker runs, or in its settings; to run"
                    " many tasks at once use --processor-type thread or async."
                )
                % {"module": module.partition(".")[0]}
            )


def check_backoff(backoff: object) -> None:
    """Raise ConfigError when the waits of the settings are a path that leads nowhere."""
    try:
        if isinstance(backoff, str):
            backoffs.backoff_at(backoff)
    except ConfigError as error:
        raise ConfigError(f"{conf.SETTING}['BACKOFF']: {error}") from error


def work_of(
    options: CommandOptions, values: conf.Options, using: str
) -> tuple[type[Dispatch], list[str]]:
    """Return the dispatch that was asked for, and the queues that go with it."""
    names = [values.DEFAULT_QUEUE]
    if options["exec"] is not None:
        if options["dispatch"]:
            raise ConfigError(_("Name a Dispatch, or a program by --exec, but not both."))
        return exec_of(options["exec"]), names
    dispatch = found(options["dispatch"] or values.DISPATCH)
    if compat.HAS_TASKS:
        dispatch, more = with_django_tasks(dispatch, using)
        names += more
    return dispatch, names


def chosen_options(options: CommandOptions) -> conf.Options:
    """Return the settings, with what the command line says instead."""
    given = {
        name: options[option] for option, name in OVERRIDES.items() if options[option] is not None
    }
    values = conf.options().replace(**given)
    if values.PROCESSOR_TYPE == "process" and given.get("CONCURRENCY", 1) > 1:
        raise ConfigError(
            _(
                "A processor of the type 'process' runs one task at a time: give"
                " --processor-type thread or async as well, or more --processors."
            )
        )
    return values


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
                say(
                    _("Waiting up to %(seconds)d s. %(error)s")
                    % {"seconds": seconds, "error": error}
                )
            logged = True
            time.sleep(WAIT)
        else:
            return True
    return True


def check_database(using: str) -> None:
    """Raise CommandError when the database can't be used as it is."""
    with speaking(using):
        if lacks_tables(using):
            raise CommandError(unmigrated(using))


def check_health(health: tuple[str, int] | None) -> None:
    """Raise CommandError when nobody can listen there."""
    if health is None:
        return
    # Imported here, as few workers need an HTTP server.
    from django_perfectqueue.worker.helpers.probe_server import refusal

    if why := refusal(health):
        raise CommandError(
            _("Can't listen at %(host)s, port %(port)d: %(why)s.")
            % {"host": health[0], "port": health[1], "why": why}
        )


def address(text: str) -> tuple[str, int]:
    """Return the host and the port that were written as "8001" or "0.0.0.0:8001"."""
    host, _colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        message = _("must be a port from 1 to 65535, or HOST:PORT, not %(text)r")
        raise ArgumentTypeError(message % {"text": text})
    return host.strip("[]") or "127.0.0.1", int(port)


def arguments(options: CommandOptions) -> list[str]:
    """Return options as they are written on a command line."""
    words = [options["dispatch"]] if options["dispatch"] else []
    for name in options["queues"] or ():
        words += ["--queue", name]
    for option in ("exec", "database", *OVERRIDES):
        if options[option] is not None:
            words += [f"--{option.replace('_', '-')}", str(options[option])]
    words += [f"--{name}" for name in ("burst", "reload") if options[name]]
    if options["health_port"]:
        host, port = options["health_port"]
        words += ["--health-port", f"[{host}]:{port}"]
    if options["wait_for_database"] is not None:
        words += ["--wait-for-database", str(options["wait_for_database"])]
    colour = "--force-color" if options["force_color"] else "--no-color"
    if options["force_color"] or options["no_color"]:
        words.append(colour)
    return [*words, "--verbosity", str(options["verbosity"])]
