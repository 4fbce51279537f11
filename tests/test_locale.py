"""German is complete: each message that the package shows has its translation."""

from __future__ import annotations

import ast
import gettext
import re
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from django.test import SimpleTestCase
from django.utils.translation.template import templatize

import django_perfectqueue

PACKAGE = Path(django_perfectqueue.__file__).parent
GERMAN = PACKAGE / "locale" / "de" / "LC_MESSAGES"
CALLS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
TEXT = r"""u?('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
IN_TEMPLATE = re.compile(rf"\b(?:_|gettext|ngettext)\({TEXT}")
FIELD = re.compile(r"%\(\w+\)|\{\w*\}")


class GermanTests(SimpleTestCase):
    def test_every_message_is_translated_and_none_is_left_over(self):
        there = {message for message in catalog(GERMAN / "django.mo") if message}
        wanted = {*in_code(), *in_templates()}
        self.assertEqual(wanted - there, set(), "Run makemessages and translate these.")
        self.assertEqual(there - wanted, set(), "Run makemessages: nothing says these any more.")

    def test_commands_and_workers_have_nothing_to_translate(self):
        for room in ("management", "worker", "health"):
            for file in (PACKAGE / room).rglob("*.py"):
                self.assertNotIn("gettext", file.read_text(), str(file))

    def test_a_translation_has_the_fields_of_its_message(self):
        for message, texts in catalog(GERMAN / "django.mo").items():
            for text in texts:
                with self.subTest(message):
                    self.assertEqual(set(FIELD.findall(text)), set(FIELD.findall(message)))

    def test_what_is_compiled_is_what_is_written(self):
        if shutil.which("msgfmt") is None:
            raise unittest.SkipTest("msgfmt is not installed: apt-get install gettext")
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "django.mo"
            command = ["msgfmt", "--check", "-o", str(made), str(GERMAN / "django.po")]
            subprocess.run(command, check=True)
            self.assertEqual(catalog(made), catalog(GERMAN / "django.mo"))


def catalog(file: Path) -> dict[str, list[str]]:
    """Return the translations of each message; a message with a plural has several."""
    with file.open("rb") as opened:
        entries = vars(gettext.GNUTranslations(opened))["_catalog"]
    found: dict[str, list[str]] = {}
    for key, text in entries.items():
        found.setdefault(key[0] if isinstance(key, tuple) else key, []).append(text)
    return found


def in_code() -> Iterator[str]:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                first = node.args[0] if node.args else None
                if node.func.id in CALLS and isinstance(first, ast.Constant):
                    yield str(first.value)


def in_templates() -> Iterator[str]:
    for file in PACKAGE.rglob("*.html"):
        for text in IN_TEMPLATE.findall(templatize(file.read_text())):
            yield ast.literal_eval(text)
