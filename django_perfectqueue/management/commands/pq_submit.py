from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, Literal

from django.core.management.base import CommandError, CommandParser
from django.db import Error, transaction

from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError, PayloadError
from django_perfectqueue.inspection.why_waiting import may_know, workers_serving
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import ARGUMENTS, TIMES, Queue
from django_perfectqueue.schedules import terms

from ..base import INTERRUPTED, TAKEN, CommandOptions, QueueCommand, diagnosis
from ..flags import add_flags
from ..terminal import ProgressLine, are, excerpt, parsed, plural, point

SENTENCES = {
    "submitted": "Task '%s' is submitted.",
    "ignored": "Task '%s' was there already, and this one is ignored.",
    "replaced": "Task '%s' is submitted, in the place of another.",
}
EXAMPLE = """pq_submit k1 user_task '{"uid": 1}'"""


class Command(QueueCommand):
    help = (
        "Submits a task, or with --file those of a file with one JSON object a line: pq_submit k1"
        """ mail.send '{"to": "ann"}'. Exits with 0"""
        " when it is stored, with 3 when its key is taken already, and with 1 on any other error."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_flags(parser, "key? type? data?")
        add_flags(parser.add_mutually_exclusive_group(), "--time --in")
        add_flags(parser, "--expect --expires --queue --user --priority --limit --tag --sequence")
        add_flags(parser, "--time-limit --unique --unique-for --debounce --at-most --leading")
        add_flags(parser, "--max-attempts --backoff")
        add_flags(parser, "--on-conflict --file --atomic")
        super().add_arguments(parser)

    def act(self, options: CommandOptions) -> None:
        check_choice(options)
        if options["file"]:
            self.submit_file(options)
        else:
            self.submit_one(options)

    def submit_one(self, options: CommandOptions) -> None:
        word = self.submitted(arguments(options))
        if self.as_json:
            self.print_json({"queue": self.queue.name, "key": options["key"], "done": word})
        else:
            self.say(SENTENCES[word] % options["key"])
            self.doubt(options["type"])

    def doubt(self, type_: str) -> None:
        """Warn that no worker of the queue knows a type; without workers, that no handler does."""
        workers = workers_serving(using=self.queue.using)
        here = [worker for worker in workers if self.queue.name in worker.queues]
        self.warn_unserved(self.queue.name)
        try:
            known = list(terms.known_types(using=self.queue.using))
            is_known = not known or type_ in known or terms.dispatch_here().knows(type_)
        except Exception:
            # It is submitted; a worker says what is wrong with the handlers.
            known, is_known = [], True
        if here:
            is_known = any(may_know(worker.routes_text, type_) for worker in here)
        if not is_known:
            who = "worker that serves its queue" if here else "handler here"
            self.complain(f"No {who} knows the type '{type_}'.{nearest(type_, known)}")

    def submitted(self, task: CommandOptions) -> str:
        """Submit a task, and return what became of it."""
        on_conflict = self.options["on_conflict"]
        try:
            self.options["key"] = self.queue.submit(**task).key
        except AlreadyExistsError:
            if on_conflict == "raise":
                raise
            if on_conflict == "ignore":
                return "ignored"
            self.queue.submit(**task, on_conflict="replace")
            return "replaced"
        return "submitted"

    def submit_file(self, options: CommandOptions) -> None:
        on_conflict, atomic = options["on_conflict"], options["atomic"]
        with opened(options["file"]) as source:
            progress = ProgressLine(self.stderr, "%s tasks")
            file = TasksFile(self.queue, source, on_conflict, atomic, progress)
            stored = file.submit()
        ignored = file.done - stored
        text = f"{are(stored, 'task')} submitted."
        if ignored:
            text += f" {ignored:,} {'was' if ignored == 1 else 'were'} there already."
        facts = {"queue": self.queue.name, "submitted": stored, "ignored": ignored}
        self.answer(facts, text)


@dataclass
class TasksFile:
    """
    The tasks of a file, one JSON object a line: ``line`` is the number of the one that was read
    last, and ``done`` how many tasks are stored or were there.
    """

    queue: Queue
    source: IO[bytes]
    on_conflict: Literal["raise", "ignore"]
    atomic: bool
    progress: ProgressLine
    line: int = 0
    done: int = 0

    def submit(self) -> int:
        """Return how many are stored. Raise CommandError, with those that are, where it ends."""
        using = self.queue.using
        try:
            with transaction.atomic(using=using) if self.atomic else nullcontext():
                return self.queue.submit_many(
                    self.tasks(), on_conflict=self.on_conflict, progress=self.is_stored
                )
        except (InvalidTaskError, PayloadError) as error:
            raise self.broken_off(f"Line {self.line}: {error}") from error
        except AlreadyExistsError as error:
            raise self.broken_off(f"Up to line {self.line}: {error}", TAKEN) from error
        except Error as error:
            raise self.broken_off(diagnosis(using, error)) from error
        except KeyboardInterrupt as error:
            raise self.broken_off("Interrupted.", INTERRUPTED) from error
        finally:
            self.progress.clear()

    def is_stored(self, done: int) -> None:
        """Note that so many of the tasks are stored: the next thousand may be read before."""
        self.done = done
        self.progress.show(done)

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield the tasks; raise InvalidTaskError when a line is none."""
        while text := self.source.readline():
            self.line += 1
            if text.strip():
                yield task_of(text)

    def broken_off(self, why: str, code: int = 1) -> CommandError:
        outcome = "Nothing was stored."
        if self.done and not self.atomic:
            outcome = (
                f"Stored are its first {plural(self.done, 'task')}; to go on, submit the file again"
                " with --on-conflict ignore."
            )
        return CommandError(f"{why} {outcome}", returncode=code)


def task_of(text: bytes) -> dict[str, object]:
    """
    Return the arguments of Queue.submit() that a line gives.

    Raise InvalidTaskError when it is no JSON object with these.
    """
    task = parsed(text)
    if not isinstance(task, dict):
        raise InvalidTaskError(f"A task must be a JSON object, not {excerpt(text)}.")
    for name in task:
        if name not in ARGUMENTS:
            raise InvalidTaskError(f"A task has no '{printable(name)}'.{nearest(name, ARGUMENTS)}")
    for name in ("key", "type"):
        if name not in task:
            raise InvalidTaskError(f"The task has no '{name}'.")
    return called(task) | {name: point(name, task[name]) for name in TIMES if name in task}


def called(task: CommandOptions) -> CommandOptions:
    """Return a task with its data; raise what checked_call() does where they are none of it."""
    function = function_of(str(task["type"]))
    return task | {"data": terms.checked_call(function, task.get("data"))} if function else task


@cache
def function_of(type_: str) -> Any:
    """Return the one of Django's tasks that is of a type, or None where it can't be known here."""
    with suppress(Exception):
        return terms.django_task(type_)
    return None


@contextmanager
def opened(name: str) -> Iterator[IO[bytes]]:
    """
    Open a file, or standard input for "-".

    Raise CommandError when it can't be read.
    """
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        source = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"Can't read '{name}': {error.strerror}.") from error
    with source:
        yield source


def check_choice(options: CommandOptions) -> None:
    """Raise CommandError unless the options say one thing."""
    if options["file"]:
        if any(options.get(name) is not None for name in ARGUMENTS):
            raise CommandError(
                "With --file, the file has the tasks: give no KEY, TYPE or options of a task."
            )
        if options["on_conflict"] == "replace":
            raise CommandError("--on-conflict replace is for one task, not for --file.")
        return
    if options["type"] is None:
        raise CommandError(
            f"What is to be submitted? Give KEY TYPE JSON, such as: {EXAMPLE}, or --file."
        )
    if options["atomic"]:
        raise CommandError("--atomic is for --file.")


def arguments(options: CommandOptions) -> CommandOptions:
    """
    Return the arguments of Queue.submit().

    Raise InvalidTaskError when one can't be read.
    """
    task = {name: options[name] for name in ARGUMENTS if options.get(name) is not None}
    try:
        if "data" in task:
            task["data"] = parsed(task["data"])
    except InvalidTaskError as error:
        raise InvalidTaskError(f"{error} Quote it for the shell: {EXAMPLE}.") from error
    return called(task)
