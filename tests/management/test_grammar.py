"""One grammar for all commands: NOUN VERB NAME… [filters], and one meaning for each flag."""

import argparse
import io
import shlex
from collections import defaultdict
from contextlib import redirect_stderr

from django.core.management import get_commands, load_command_class
from django.test import TestCase

from .running import refused, run

COMMANDS = sorted(name for name in get_commands() if name.startswith("pq_"))
NOUNS = ("pq_task", "pq_queue", "pq_user", "pq_limit", "pq_schedule", "pq_batch")


def parsers():
    """Yield the parser of each command, and those of its verbs, by their names."""
    for name in COMMANDS:
        command = load_command_class(get_commands()[name], name)
        parser = command.create_parser("manage.py", name)
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {verb}", own) for verb, own in action.choices.items())


def texts_of(action):
    """Return what a flag says of itself, whether or not it may be repeated there."""
    words = (action.help or "").removesuffix(" May be repeated.")
    return str(action.metavar), words, tuple(action.option_strings)


class GrammarTests(TestCase):
    def test_there_are_nine_commands_and_the_one_that_imports(self):
        self.assertEqual(
            COMMANDS,
            sorted([*NOUNS, "pq_worker", "pq_submit", "pq_status", "pq_import"]),
        )

    def test_a_flag_has_one_meaning(self):
        """One metavar, one help, and the same short form wherever it stands."""
        meanings = defaultdict(lambda: defaultdict(list))
        for name, parser in parsers():
            for action in parser._actions:
                # Verbs take Django's options without a word.
                shown = action.help != argparse.SUPPRESS
                for flag in action.option_strings if shown else ():
                    meanings[flag][texts_of(action)].append(name)
        for flag, found in meanings.items():
            with self.subTest(flag):
                self.assertEqual(len(found), 1, dict(found))

    def test_the_help_of_a_flag_that_many_have_is_short(self):
        for name, parser in parsers():
            for flag in ("--queue", "--first"):
                if action := parser._option_string_actions.get(flag):
                    self.assertLessEqual(len(action.help), 80, f"{name} {flag}")

    def test_all_that_changes_many_can_say_first_what_it_would_do(self):
        flags = {name: set(parser._option_string_actions) for name, parser in parsers()}
        for name in (
            *(f"pq_task {verb}" for verb in ("retry", "cancel", "move", "edit", "delete")),
            *("pq_queue clear", "pq_queue purge", "pq_batch cancel", "pq_batch retry"),
            "pq_schedule backfill",
        ):
            with self.subTest(name):
                self.assertLessEqual({"--dry-run", "--yes"}, flags[name])
        for name in flags:
            if name != "pq_worker":
                self.assertIn("--json", flags[name], name)

    def test_a_command_alone_says_what_it_can_do_with_examples(self):
        for name in NOUNS:
            with self.subTest(name):
                out = run(name)
                self.assertIn(f"Examples:\n  manage.py {name} ", out)
                self.assertRegex(out, r"\n +(list|show) +\w+ ")
        self.assertIn("running", run("pq_status"))

    def test_an_example_can_be_parsed(self):
        for name in (*NOUNS, "pq_status"):
            command = load_command_class(get_commands()[name], name)
            parser = command.create_parser("manage.py", name)
            parser.called_from_command_line = False
            for example in command.examples:
                with self.subTest(example):
                    self.assertTrue(parser.parse_args(shlex.split(example)[1:]))

    def test_the_nearest_verb_or_flag_is_said(self):
        for arguments, hint in (
            (("pq_task", "retyr"), "'retry'"),
            (("pq_task", "delte"), "'delete'"),
            (("pq_status", "wokers"), "'workers'"),
            (("pq_task", "list", "--sinec", "2h"), "'--since'"),
            (("pq_task", "list", "--status", "fialed"), "'failed'"),
            (("pq_worker", "--brust"), "'--burst'"),
            (("pq_batch", "list", "--frist", "2"), "'--first'"),
        ):
            with self.subTest(arguments):
                self.assertIn(f"Did you mean {hint}?", refused(self, *arguments))
        self.assertNotIn("mean", refused(self, "pq_limit", "list", "--tag", "x"))

    def test_a_flag_that_a_verb_has_not_gets_those_that_it_has(self):
        command = load_command_class(get_commands()["pq_user"], "pq_user")
        command._called_from_command_line = True
        parser, said = command.create_parser("manage.py", "pq_user"), io.StringIO()
        with redirect_stderr(said), self.assertRaises(SystemExit):
            parser.parse_args(["pause", "acme", "--until", "1h"])

        self.assertIn("manage.py pq_user pause", said.getvalue())
        self.assertIn("--unpause-at", said.getvalue())
        self.assertIn("unrecognized arguments: --until 1h", said.getvalue())
