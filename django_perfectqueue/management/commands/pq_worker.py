"""Run tasks."""

from __future__ import annotations

import os
import shlex
import socket
import sys

from django.conf import settings
from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import connections

from django_perfectqueue import conf
from django_perfectqueue.application import Dispatch, Registry
from django_perfectqueue.lib.imports import path_of
from django_perfectqueue.lib.version import __version__
from django_perfectqueue.store.lanes.shares import queue_weights
from django_perfectqueue.worker.database.link import prepare
from django_perfectqueue.worker.discovery import types_of
from django_perfectqueue.worker.launcher.generation import (
    SUPERVISOR,
    Generation,
    PidFile,
    first_environment,
    forked,
    may_fork,
    same_command,
)
from django_perfectqueue.worker.launcher.launcher import Launcher, Notifier, taken_out_of
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process import output
from django_perfectqueue.worker.process.child import set_title
from django_perfectqueue.worker.process.signals import hold_back
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.supervisor.supervisor import Supervisor

from ..base import CommandOptions, SummedUpCommand, cli_errors
from ..worker import (
    Exec,
    add_options,
    arguments,
    check_database,
    check_health,
    check_unpatched,
    chosen_options,
    is_there,
    plan_of,
)

SHOWN = 8


class Command(SummedUpCommand):
    summary = "Runs tasks in processes of its own, until it is stopped."
    requires_system_checks = ()
    started_by_itself = False

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser)

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
        raise CommandError(f"The worker ended with exit code {code}.", returncode=code)

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
        with cli_errors():
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
        with cli_errors():
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
        reporter.say(f"Database: {plan.using} ({vendor})")
        reporter.say(queues_in_words(plan))
        reporter.say(handlers(plan.dispatch))
        reporter.say(staff(plan.options))


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
    types = types_of(dispatch)
    more = len(types) - SHOWN
    shown = ", ".join(types[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    source = "tasks modules" if issubclass(dispatch, Registry) else path_of(dispatch)
    return f"Handlers: {shown} ({source})"


def staff(options: conf.Options) -> str:
    """Return in words how many processors there are, and how many tasks each runs at once."""
    count = options.PROCESSORS
    words = f"{count} processor" if count == 1 else f"{count} processors"
    if options.PROCESSOR_TYPE == "process":
        return words
    tasks = "task" if options.places == 1 else "tasks"
    return f"{words} ({options.PROCESSOR_TYPE}): {options.places} {tasks} at once in each"
