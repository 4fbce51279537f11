"""Commands with verbs, ``NOUN VERB NAME… [--filters]``, each a row of a table."""

from __future__ import annotations

import inspect
import textwrap
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from django.core.management import base
from django.core.management.base import CommandError, CommandParser
from django.db.models import Model, QuerySet

from django_perfectqueue.fairness.audit import Rule, changes_of
from django_perfectqueue.fairness.wording import difference
from django_perfectqueue.models import Change

from .base import CommandOptions, HintingParser, QueueCommand
from .flags import FLAGS, add_flags, person
from .terminal import Column, Facts, for_programs, unseen

M = TypeVar("M", bound=Model)
SHOWN = 10
# Of what may be paused: whether, until when, by whom and why.
PAUSED = ("paused", "paused_until", "paused_by", "note")
LISTED = 100
WIDTH = 78
CHANGES = [
    Column[Change]("changed", "at"),
    Column[Change]("by", "by", elastic=True),
    Column("what", shown=difference),
    *unseen("before", "after"),
]


@dataclass(frozen=True)
class Subcommand:
    """
    What a command can do: ``call`` is given the command and its options, and says what it does.

    ``names`` is how many names it takes, as argparse writes it, or ``1``; ``flags`` are as
    add_flags() takes them. Of ``terms`` only those that are given are among the options.
    ``submits`` says that its tasks take the language
    along: all else is in English.
    """

    call: Callable[[Any, CommandOptions], None]
    names: str = ""
    flags: str = ""
    terms: str = ""
    submits: bool = False

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.call.__doc__ or "").partition("\n")[0]


class HelpFormatter(RawDescriptionHelpFormatter, base.DjangoHelpFormatter):
    """Leaves the lines of examples as they are, and puts Django's own options last."""


class NounCommand(QueueCommand):
    """
    A command whose first word says what to do: the ``verbs`` are its table.

    Without a word it does ``default``, or says what it can do, with ``examples``.
    """

    verbs: ClassVar[Mapping[str, Subcommand]]
    metavar: ClassVar[str] = "NAME"
    name_help: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    default: ClassVar[str] = ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: object) -> CommandParser:
        parser = super().create_parser(
            prog_name,
            subcommand,
            formatter_class=HelpFormatter,
            epilog="Examples:\n" + "".join(f"  manage.py {line}\n" for line in self.examples),
            **kwargs,
        )
        parser.description = textwrap.fill(self.help, WIDTH)
        self.parser = parser
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        shared = [action for action in parser._actions if action.dest != "help"]
        verbs = parser.add_subparsers(
            dest="verb", metavar="VERB", title="verbs", parser_class=HintingParser
        )
        parser.set_defaults(verb=self.default)
        for word, verb in self.verbs.items():
            own: ArgumentParser = verbs.add_parser(
                word,
                help=verb.summary,
                description=verb.summary,
                formatter_class=base.DjangoHelpFormatter,
            )
            if verb.names:
                nargs = None if verb.names == "1" else verb.names
                own.add_argument("names", metavar=self.metavar, help=self.name_help, nargs=nargs)
            add_flags(own, verb.flags)
            add_flags(own, verb.terms, given_only=True)
            # They may also stand after the word; what is given before it counts unless they do.
            for action in shared:
                again = copy(action)
                again.default = SUPPRESS
                if action.option_strings[-1] not in FLAGS:
                    again.help = SUPPRESS  # Django's own: the command's help has them.
                own._add_action(again)

    def act(self, options: CommandOptions) -> None:
        if not options["verb"]:
            self.stdout.write(self.parser.format_help())
            return
        verb = self.verbs[options["verb"]]
        call = verb.call if verb.submits else base.no_translations(verb.call)
        call(self, options)

    def connect(self) -> None:
        if self.options["verb"]:
            super().connect()

    @property
    def first(self) -> int:
        """How many are to be listed; 0: all."""
        given: int | None = self.options["first"]
        return LISTED if given is None else given

    def changed(self, flags: str) -> CommandOptions:
        """Return what is given of these options; raise CommandError where it is nothing."""
        names = [flag[2:].replace("-", "_") for flag in flags.split()]
        given = {name: self.options[name] for name in names if name in self.options}
        if not given:
            raise CommandError(f"Say what to change: {', '.join(flags.split())}.")
        return given

    def print_listing(
        self,
        rows: QuerySet[M],
        columns: Sequence[Column[M]],
        *,
        none: str,
        prepare: Callable[[list[M]], list[M]] = list,
    ) -> None:
        """
        Print the first rows, by default LISTED, as ``prepare`` returns them, and whether there are
        more; or ``none`` for people where there are none.
        """
        size = self.first
        found = list(rows[: size + 1] if size else rows)
        first = prepare(found[:size] if size else found)
        if self.as_json:
            for row in first:
                self.print_json(for_programs(columns, row))
            return
        if not first:
            self.say(none)
        self.print_table(columns, first)
        if len(found) > len(first):
            self.say("There are more: --first 0 lists all.")

    def print_rule(self, rule: Rule, facts: Facts, draw: Callable[[], None]) -> None:
        """Print what a rule says, and its last changes."""
        changes = list(changes_of(rule, using=self.queue.using)[:SHOWN])
        if self.as_json:
            log = [for_programs(CHANGES, one) for one in changes]
            self.print_json({**facts, "changes": log})
            return
        draw()
        if changes:
            self.stdout.write("")
            self.print_table(CHANGES, changes)


class RuleCommand(NounCommand):
    """
    A command about what is set for names: shares, limits, weights of queues.

    A subclass has for whom in ``owners``, as the functions of ``fairness`` take it, and in
    ``held`` what is set then, for programs and in a sentence.
    """

    def owners(self) -> Iterable[CommandOptions]:
        raise NotImplementedError

    def held(self, owner: CommandOptions) -> tuple[Facts, str]:
        raise NotImplementedError

    @property
    def pause_terms(self) -> CommandOptions:
        """Until when there is to be a pause, and why, as the API takes it."""
        return {"until": self.options["unpause_at"], "note": self.options["note"]}

    def do(self, act: Callable[..., object]) -> None:
        """Change each row that is named, and say what is set then."""
        for owner in self.owners():
            act(**owner, using=self.queue.using, by=person())
            self.answer(*self.held(owner))
