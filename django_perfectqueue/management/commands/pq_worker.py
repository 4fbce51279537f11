"""Run tasks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import connections

from django_perfectqueue import conf
from django_perfectqueue.application import CommandHandler, Dispatch, Registry
from django_perfectqueue.checks.databases import sqlite_advice
from django_perfectqueue.checks.messages import SCHEDULES, TAG
from django_perfectqueue.checks.settings import backoff as check_backoff
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.health.tables import lacks_tables
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.version import __version__
from django_perfectqueue.payload.inputs import QUEUE_LENGTH, checked
from django_perfectqueue.queue import database
from django_perfectqueue.store.database.transaction import unmigrated
from django_perfectqueue.store.lanes.shares import queue_weights
from django_perfectqueue.worker import discovery
from django_perfectqueue.worker.database.link import prepare
from django_perfectqueue.worker.launcher import generation
from django_perfectqueue.worker.launcher.launcher import Launcher, Notifier, taken_out_of
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process import child, output, signals
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.supervisor.supervisor import Supervisor

from ..base import CommandOptions, HintingCommand, cli_errors, known_alias
from ..flags import add_flags
from ..terminal import plural

SHOWN = 8
# The options that override a setting.
OVERRIDES = {
    "processors": "PROCESSORS",
    "headroom": "HEADROOM",
    "processor_type": "PROCESSOR_TYPE",
    "concurrency": "CONCURRENCY",
    "queue_order": "QUEUE_ORDER",
    "poll_interval": "POLL_INTERVAL",
    "prefetch": "TASK_PREFETCH",
    "max_requests": "RECYCLE.tasks",
    "max_age": "RECYCLE.age",
    "max_memory": "RECYCLE.memory",
}


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
    using = known_alias(options["database"] or database())
    dispatch, names = work_of(options, values, using)
    names = options["queues"] or names
    check_backoff()
    if not dispatch.load():
        raise ConfigError(discovery.no_handlers(dispatch))
    return Plan(
        dispatch=dispatch,
        queues=tuple(dict.fromkeys(checked("queue", name, QUEUE_LENGTH) for name in names)),
        using=using,
        options=values,
        burst=options["burst"],
        reload=options["reload"],
        generation=int(os.environ.pop(generation.GENERATION, "1")),
        health=options["health_port"],
    )


def work_of(
    options: CommandOptions, values: conf.Options, using: str
) -> tuple[type[Dispatch], list[str]]:
    """Return the dispatch that was asked for, and the queues that go with it."""
    if options["exec"] is not None:
        if options["dispatch"]:
            raise ConfigError("Name a Dispatch, or a program by --exec, but not both.")
        return exec_of(options["exec"]), [values.DEFAULT_QUEUE]
    own = discovery.found(options["dispatch"] or values.DISPATCH)
    dispatch, more = discovery.with_django_tasks(own, using)
    return dispatch, [values.DEFAULT_QUEUE, *more]


def exec_of(text: str) -> type[Exec]:
    """
    Return the dispatch for a program with its arguments, written as for a shell.

    Raise ConfigError when it is no command, or is not found.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--exec can't be read: {error}: {text}") from error
    if not words or not words[0]:
        raise ConfigError("--exec needs a program, such as: --exec 'convert --fast'.")
    if shutil.which(words[0]) is None:
        raise ConfigError(
            f"--exec: there is no program '{words[0]}' on PATH, or it may not be executed."
        )
    handler = type("Handler", (CommandHandler,), {"command": words, "__module__": __name__})
    return type("Exec", (Exec,), {"command": words, "routes": {EVERY_TYPE: handler}})


WAIT = 0.5
STOPS = {signals.STOP, signals.STOP_NOW, signals.DETACH}
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

    The signal stays pending until it is taken. Raise CommandError when it can't be used then.
    """
    deadline, logged = time.monotonic() + seconds, False
    while True:
        try:
            check_database(using)
            return True
        except CommandError as error:
            if seconds and signal.sigpending() & STOPS:
                return False
            if time.monotonic() >= deadline:
                raise
            if not logged:
                say(f"Waiting up to {seconds} s. {error}")
            logged = True
            time.sleep(WAIT)


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


class Command(HintingCommand):
    help = "Runs tasks in processes of its own, until it is stopped."
    requires_system_checks = ()
    started_by_itself = False

    def add_arguments(self, parser: CommandParser) -> None:
        add_flags(parser, "dispatch? --exec --queue+ --database --wait-for-database")
        add_flags(parser, " ".join(map(flag, OVERRIDES)))
        add_flags(parser.add_mutually_exclusive_group(), "--burst --reload")
        add_flags(parser, "--pid-file --health-port")

    def run_from_argv(self, argv: list[str]) -> None:
        self.started_by_itself = True
        signals.hold_back()
        super().run_from_argv(argv)

    def handle(self, *args: object, **options: object) -> None:
        """Be the launcher, or the supervisor when a launcher has started this."""
        check_unpatched()
        if not self.started_by_itself:
            raise CommandError(
                "A worker forks, and is a program of its own: start manage.py pq_worker. In tests"
                " django_perfectqueue.test.drain() runs what is due."
            )
        output.install()
        style = self.stderr.style_func
        self.stdout, self.stderr = OutputWrapper(sys.stdout), OutputWrapper(sys.stderr)
        self.stderr.style_func = style
        launcher = os.environ.pop(generation.SUPERVISOR, None)
        if launcher is not None:
            code = self.supervise(socket.socket(fileno=int(launcher)), options)
        else:
            code = self.launch(options)
        if code:
            sys.exit(code)

    def launch(self, options: CommandOptions) -> int:
        """Be the launcher, and in a fork of it the first supervisor."""
        command, environment = [sys.executable, *sys.orig_argv[1:]], generation.first_environment()
        for_us = taken_out_of(environment)
        first: generation.Generation | None = None
        if generation.may_fork():
            taken_out_of(os.environ)
            first, channel = generation.forked()
            if channel is not None:
                return self.supervise(channel, options)
        child.set_title("launcher")
        with cli_errors():
            launcher = Launcher(
                command,
                detach_wait=chosen_options(options).DETACH_WAIT,
                environment=environment,
                pid_file=generation.PidFile(options["pid_file"]) if options["pid_file"] else None,
                notifier=Notifier(for_us),
                first=first,
            )
            return launcher.run()

    def supervise(self, launcher: socket.socket, options: CommandOptions) -> int:
        child.set_title("supervisor")
        self.check(tags=[TAG])
        with cli_errors():
            plan = plan_of(options)
        self.check(tags=[SCHEDULES])
        prepare(plan.using, idle_limit=plan.options.IDLE_TRANSACTION_LIMIT)
        if not is_there(plan.using, options["wait_for_database"] or 0, self.stderr.write):
            return 0
        check_health(plan.health)
        reporter = Reporter(self.print, self.style, options["verbosity"])
        self.introduce(plan, reporter)
        return Supervisor(plan, reporter, launcher).run()

    def print(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def introduce(self, plan: Plan, reporter: Reporter) -> None:
        vendor = connections[plan.using].display_name
        reporter.head(f"django-perfectqueue {__version__}")
        reporter.say(f"Database: {plan.using} ({vendor})")
        reporter.say(queues_in_words(plan))
        reporter.say(handlers(plan.dispatch))
        reporter.say(staff(plan.options))
        for advice in () if plan.burst else sqlite_advice(plan.using):
            reporter.say(f"{advice.msg} {advice.hint}")


def queues_in_words(plan: Plan) -> str:
    """Return in words which queues are served, and how they share the worker."""
    queues = ", ".join(plan.queues)
    if len(plan.queues) == 1:
        return f"Queues: {queues}"
    if plan.options.QUEUE_ORDER == conf.FAIR:
        weights = queue_weights(plan.queues, using=plan.using)
        shares = " : ".join(f"{weights.get(queue, 1.0):g}" for queue in plan.queues)
        return f"Queues: {queues} share by weight ({shares})"
    if plan.options.QUEUE_ORDER == "ordered":
        return f"Queues, each served before those behind it: {queues}"
    return f"Queues: {queues} ({plan.options.QUEUE_ORDER})"


def handlers(dispatch: type[Dispatch]) -> str:
    """Return in words what runs the tasks."""
    if issubclass(dispatch, Exec):
        return f"Every task is run by: {shlex.join(dispatch.command)}"
    types = discovery.types_of(dispatch)
    more = len(types) - SHOWN
    shown = ", ".join(types[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    source = "tasks modules" if issubclass(dispatch, Registry) else path_of(dispatch)
    return f"Handlers: {shown} ({source})"


def staff(options: conf.Options) -> str:
    """Return in words how many processors there are, and how many tasks each runs at once."""
    words = plural(options.PROCESSORS, "processor")
    words += f", {options.kept} of them kept for short tasks" if options.kept else ""
    if options.PROCESSOR_TYPE == "process":
        return words
    return f"{words} ({options.PROCESSOR_TYPE}): {plural(options.places, 'task')} at once in each"
