"""What the commands share: what they print, and errors that speak to a person."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from django_perfectqueue.checks.messages import SQLITE_OPTIONS
from django_perfectqueue.exceptions import AlreadyExistsError, NotMigratedError, PerfectQueueError
from django_perfectqueue.health.queues import unserved
from django_perfectqueue.health.tables import lacks_tables
from django_perfectqueue.lib.checks import nearest
from django_perfectqueue.lib.printable import on_one_line, printable
from django_perfectqueue.queue import Queue, database
from django_perfectqueue.store.database.transaction import unmigrated

from .flags import FLAGS, add_flags
from .terminal import Column, in_text, lines, padded, plain, terminal_width

R = TypeVar("R")
TAKEN = 3
INTERRUPTED = 130
UNREAD = 141
WRONG_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
WRONG_FLAG = re.compile(r"unrecognized arguments: (--[\w-]+)")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


# The options of a command as its parser returns them, by name.
CommandOptions = dict[str, Any]


class HintingParser(CommandParser):
    """A parser that names the nearest right word for a wrong one, of a verb among its options."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        found, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        hint = ""
        if found := WRONG_CHOICE.search(message):
            hint = nearest(found[1], [word.strip("' ") for word in found[2].split(",")])
        elif found := WRONG_FLAG.search(message):
            hint = "" if found[1] in FLAGS else nearest(found[1], self._option_string_actions)
        super().error(message + ("." + hint if hint else ""))
        raise AssertionError


class HintingCommand(BaseCommand):
    """A command whose parser names the nearest right word."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        replace_closed_streams()
        super().__init__(*args, **kwargs)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: object) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # Django makes a CommandParser whatever its command wants.
        parser.__class__ = HintingParser
        return parser


class QueueCommand(HintingCommand):
    """
    A command about one queue.

    A subclass acts in ``act``, where ``self.queue`` is the queue that was asked for.
    """

    requires_system_checks = ["perfectqueue"]
    label_width: ClassVar[int] = 12
    queue: Queue
    options: CommandOptions

    def add_arguments(self, parser: CommandParser) -> None:
        add_flags(parser, "--database --json")

    def act(self, options: CommandOptions) -> None:
        raise NotImplementedError

    def handle(self, *args: object, **options: Any) -> None:
        self.verbosity = options["verbosity"]
        self.as_json = options["json"]
        self.options = options
        with cli_errors():
            using = known_alias(options["database"] or database())
            self.queue = Queue(options.get("queue"), using=using)
        with cli_errors(using):
            self.connect()
            self.act(options)
            self.stdout.flush()

    def connect(self) -> None:
        """Reach the database: one that was never reached is not waited for."""
        connections[self.queue.using].ensure_connection()

    def confirm(self, what: str) -> None:
        """
        Ask a person whether to do it.

        Raise CommandError for a no, and where there is nobody to ask and no ``--yes``.
        """
        if self.options["yes"] or self.options["dry_run"]:
            return
        if not (self.stdout.isatty() and sys.stdin.isatty()):
            raise CommandError(f"{what} Add --yes to do it, or --dry-run to see what it would do.")
        self.stdout.write(printable(f"{what} Go on? [y/N] "), ending="")
        self.stdout.flush()
        if input().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")

    def say(self, text: str) -> None:
        if self.verbosity:
            self.stdout.write(printable(text))

    def complain(self, text: str) -> None:
        self.stderr.write(printable(text))

    def warn_unserved(self, queue: str) -> None:
        for sentence in unserved([queue], using=self.queue.using):
            self.complain(sentence)

    def print_json(self, value: object) -> None:
        self.stdout.write(json.dumps(value, default=plain))

    def answer(self, facts: Mapping[str, object], sentence: str) -> None:
        """Say what was done: the facts for programs, or the sentence for people."""
        if self.as_json:
            self.print_json(facts)
        else:
            self.say(sentence)

    def print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.stdout.write(line)

    def print_title(self, title: str) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(printable(title)))

    def print_field(self, name: str, value: str) -> None:
        """Print a value behind its name, in a column as wide as ``label_width``."""
        self.stdout.write(f"  {padded(name, self.label_width - 1)} {printable(value)}".rstrip())

    def print_fields(self, fields: Iterable[tuple[str, object]]) -> None:
        """Print each value that is not empty behind its name, on one line."""
        for name, value in fields:
            if text := in_text(value):
                self.print_field(name, on_one_line(text))

    def table(
        self, columns: Sequence[Column[R]], rows: Iterable[R], indent: str = ""
    ) -> Iterator[str]:
        """Yield the lines of a table, the header in colour; nothing where there are no rows."""
        width = terminal_width(self.stdout)
        heading = self.style.MIGRATE_LABEL if indent else self.style.MIGRATE_HEADING
        table = lines(columns, rows, width=width and width - len(indent))
        for number, line in enumerate(table):
            yield indent + (line if number else heading(line))

    def print_table(
        self, columns: Sequence[Column[R]], rows: Iterable[R], indent: str = ""
    ) -> None:
        self.print(self.table(columns, rows, indent))


@contextmanager
def cli_errors(using: str | None = None) -> Iterator[None]:
    """
    Turn what a user may have to do with into a CommandError without a traceback.

    End where nobody reads on, or where the output can't be written.
    """
    try:
        yield
    except BrokenPipeError as error:
        close_stdout()
        raise SystemExit(UNREAD) from error
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        close_stdout()
        raise CommandError(on_one_line(error)) from error
    except CommandError as error:
        # Each argument is a line.
        error.args = ("\n".join(printable(str(line)) for line in error.args),)
        raise
    except AlreadyExistsError as error:
        raise CommandError(printable(str(error)), returncode=TAKEN) from error
    except (NotMigratedError, Error) as error:
        raise CommandError(diagnosis(using, error)) from error
    except (PerfectQueueError, ImproperlyConfigured) as error:
        raise CommandError(printable(str(error))) from error
    except KeyboardInterrupt as interrupt:
        raise CommandError("Interrupted.", returncode=INTERRUPTED) from interrupt
    except UnicodeEncodeError as error:
        raise CommandError(printable(f"A text can't be written: {error}.")) from error


def replace_closed_streams() -> None:
    """Print to nowhere where the program was started with standard output or error closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def close_stdout() -> None:
    """Send what the interpreter flushes at exit to /dev/null: nobody can read it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def known_alias(alias: str) -> str:
    """
    Return the alias of a database.

    Raise CommandError, with the known names, for any other.
    """
    if alias in connections:
        return alias
    aliases = ", ".join(f"'{name}'" for name in connections)
    raise CommandError(f"There is no database with the alias '{alias}'. There is {aliases}.")


def diagnosis(using: str | None, error: Error) -> str:
    """Return why a statement failed, and what to do."""
    if using is None:
        return on_one_line(error)
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close()
    try:
        lacking = lacks_tables(using)
    except (Error, ImproperlyConfigured) as trouble:
        return f"Can't reach the database '{using}': {on_one_line(trouble)}"
    if lacking:
        return unmigrated(using)
    refused = f"The database '{using}' refused: {on_one_line(error)}"
    if connection.vendor == "sqlite" and "locked" in str(error):
        refused += f". Give DATABASES['{using}'] {SQLITE_OPTIONS}, so that it waits for its lock."
    return refused
