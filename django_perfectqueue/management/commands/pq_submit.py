from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, Literal

from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import Error, transaction

from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError
from django_perfectqueue.health.queues import named_queues
from django_perfectqueue.inspection.why_waiting import may_know, workers_serving
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.payload.inputs import OnConflict
from django_perfectqueue.queue import ARGUMENTS, Queue
from django_perfectqueue.schedules.terms import dispatch_here, known_types

from ..base import INTERRUPTED, TAKEN, CommandOptions, QueueCommand, diagnosis
from ..flags import add_flags
from ..tasks_file import TasksFile, parsed
from ..terminal import ProgressLine, are, point, seconds

FLAGS = {"--time": "run_at", "--expect": "expected_at", "--expires": "expires_at"}
SENTENCES = {
    "submitted": "Task '%s' is submitted.",
    "ignored": "Task '%s' was there already, and this one is ignored.",
    "replaced": "Task '%s' is submitted, in the place of another.",
}
EXAMPLE = """pq_submit k1 user_task '{"uid": 1}'"""


class Command(QueueCommand):
    summary = (
        "Submits a task, or with --file those of a file with one JSON object a line: pq_submit k1"
        """ mail.send '{"to": "ann"}'. Exits with 0"""
        " when it is stored, with --run when it has finished, with 3 when its key is taken already,"
        " and with 1 on any other error."
    )

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("key", metavar="KEY", nargs="?", help="Its name in the queue.")
        add("type", metavar="TYPE", nargs="?", help="What handles it.")
        add("data", metavar="JSON", nargs="?", help="Its data, as JSON.")
        add_flags(parser, f"{' '.join(FLAGS)} --queue --user --priority --limit --tag --in")
        add_flags(parser, "--time-limit --on-conflict --file --atomic --run")

    def act(self, options: CommandOptions) -> None:
        check_choice(options)
        if options["file"]:
            self.submit_file(options)
        else:
            self.submit_one(options)
        if options["run"]:
            self.run(options["key"])

    def submit_one(self, options: CommandOptions) -> None:
        word = self.submitted(arguments(options), options["on_conflict"])
        if self.as_json:
            self.print_json({"queue": self.queue.name, "key": options["key"], "done": word})
        else:
            self.say(SENTENCES[word] % options["key"])
            self.doubt(options["type"])

    def doubt(self, type_: str) -> None:
        """Warn that no worker of the queue knows a type; without workers, that no handler does."""
        workers = workers_serving(using=self.queue.using)
        here = [worker for worker in workers if self.queue.name in worker.queues]
        if not here:
            self.doubt_without_workers(type_)
            return
        if any(may_know(worker.routes_text, type_) for worker in here):
            return
        known = [name for worker in here if worker.routes for name in worker.routes["types"]]
        text = f"No worker that serves its queue knows the type '{type_}'."
        self.complain(text + nearest(type_, known))

    def doubt_without_workers(self, type_: str) -> None:
        """Warn that no setting names the queue, and no handler here knows the type."""
        if self.queue.name not in named_queues(self.queue.using):
            text = "No worker serves queue '%s', and no setting names it."
            self.complain(text % self.queue.name)
        try:
            known = list(known_types(using=self.queue.using))
            is_known = not known or type_ in known or dispatch_here().knows(type_)
        except Exception:
            # It is submitted; a worker says what is wrong with the handlers.
            return
        if not is_known:
            self.complain(f"No handler here knows the type '{type_}'." + nearest(type_, known))

    def submitted(self, task: CommandOptions, on_conflict: OnConflict) -> str:
        """Submit a task, and return what became of it."""
        try:
            self.queue.submit(**task)
        except AlreadyExistsError:
            if on_conflict == "raise":
                raise
            if on_conflict == "ignore":
                return "ignored"
            self.queue.submit(**task, on_conflict="replace")
            return "replaced"
        return "submitted"

    def run(self, key: str) -> None:
        """Run what is due, and print how this task ended; raise CommandError unless it finished."""
        run_burst(self, verbosity=0 if self.as_json else self.verbosity)
        task = self.queue[key].metadata()
        if task.status != "finished":
            raise CommandError(f"Task '{key}' is {task.status}.")
        result = json.dumps(task.result, ensure_ascii=False)
        facts = {"queue": self.queue.name, "key": key, "result": task.result}
        self.answer(facts, on_one_line(f"Task '{key}' returned {result}."))

    def submit_file(self, options: CommandOptions) -> None:
        with opened(options["file"]) as source:
            tasks = TasksFile(source)
            progress = ProgressLine(self.stderr, "%s tasks", total=tasks.size)
            on_conflict, atomic = options["on_conflict"], options["atomic"]
            bulk = Bulk(self.queue, tasks, on_conflict, atomic, progress)
            bulk.submit()
        facts = {"queue": self.queue.name, "submitted": bulk.stored, "ignored": bulk.ignored}
        self.answer(facts, describe_counts(bulk.stored, bulk.ignored))


@dataclass
class Bulk:
    """The submission of a file: what has been stored, and up to which line."""

    queue: Queue
    tasks: TasksFile
    on_conflict: Literal["raise", "ignore"]
    atomic: bool
    progress: ProgressLine
    read: int = 0
    stored: int = 0
    stored_line: int = 0

    @property
    def ignored(self) -> int:
        return self.read - self.stored

    def submit(self) -> None:
        try:
            with self.whole():
                self.submit_chunks()
        except InvalidTaskError as error:
            raise self.broken_off(f"Line {self.tasks.line}: {error}") from error
        except AlreadyExistsError as error:
            lines = f"Lines {self.stored_line + 1} to {self.tasks.line}"
            raise self.broken_off(f"{lines}: {error}", TAKEN) from error
        except Error as error:
            raise self.broken_off(diagnosis(self.queue.using, error)) from error
        except KeyboardInterrupt as error:
            raise self.broken_off("Interrupted.", INTERRUPTED) from error
        finally:
            self.progress.clear()

    def broken_off(self, why: str, code: int = 1) -> CommandError:
        return CommandError(f"{why} {self.outcome()}", returncode=code)

    def whole(self) -> AbstractContextManager[None]:
        return transaction.atomic(using=self.queue.using) if self.atomic else nullcontext()

    def submit_chunks(self) -> None:
        while not self.tasks.ended:
            self.stored += self.queue.submit_many(self.chunk(), on_conflict=self.on_conflict)
            self.stored_line = self.tasks.line
            self.progress.show(self.read, self.tasks.bytes)

    def chunk(self) -> Iterator[dict[str, object]]:
        for task in self.tasks.chunk():
            self.read += 1
            yield task

    def outcome(self) -> str:
        if self.atomic or not self.stored_line:
            return "Nothing was stored."
        tasks = "task was" if self.stored == 1 else "tasks were"
        return (
            f"{self.stored} {tasks} stored, from the lines up to {self.stored_line}; to go on,"
            " submit the file again with --on-conflict ignore."
        )


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
        if any(options.get(name) is not None for name in (*ARGUMENTS, "span")):
            raise CommandError("With --file, what a task is stands in the file.")
        if options["on_conflict"] == "replace":
            raise CommandError("--on-conflict replace is for one task, not for --file.")
        if options["run"]:
            raise CommandError("--run is for one task, not for --file.")
        return
    if options["data"] is None:
        raise CommandError(
            f"What is to be submitted? Give KEY TYPE JSON, such as: {EXAMPLE}, or --file."
        )
    if options["atomic"]:
        raise CommandError("--atomic is for --file.")
    if options["run_at"] is not None and options["span"] is not None:
        raise CommandError("Give --time or --in, but not both.")


def arguments(options: CommandOptions) -> CommandOptions:
    """
    Return the arguments of Queue.submit().

    Raise InvalidTaskError when one can't be read.
    """
    task = {name: options[name] for name in ARGUMENTS if options.get(name) is not None}
    task["data"] = payload(options["data"])
    for flag, name in FLAGS.items():
        if name in task:
            task[name] = point(flag, task[name])
    if options["span"] is not None:
        task["run_at"] = seconds("--in", options["span"])
    return task


def payload(text: str) -> object:
    try:
        return parsed(text)
    except InvalidTaskError as error:
        raise InvalidTaskError(f"{error} Quote it for the shell: {EXAMPLE}.") from error


def describe_counts(stored: int, ignored: int) -> str:
    text = f"{are(stored, 'task')} submitted."
    if ignored:
        text += f" {ignored:,} {'was' if ignored == 1 else 'were'} there already."
    return text


def run_burst(command: QueueCommand, *, verbosity: int) -> None:
    """Run what is due in the queue of a command, as ``pq_worker --burst`` does."""
    command.stdout.flush()
    call_command(
        "pq_worker",
        queues=[command.queue.name],
        database=command.queue.using,
        burst=True,
        verbosity=verbosity,
        stdout=command.stdout,
        stderr=command.stderr,
    )
