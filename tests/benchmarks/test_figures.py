"""The table of figures: what is counted, and what counts as a rise."""

import tempfile
import textwrap
import unittest
from pathlib import Path

from django.test import SimpleTestCase

ROOT = Path(__file__).resolve().parent.parent.parent


def setUpModule():
    if not (ROOT / "benchmarks").is_dir():
        raise unittest.SkipTest("The benchmarks are not beside the tests.")


class FolderTestCase(SimpleTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, text=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


class SizeTests(FolderTestCase):
    def count(self):
        from benchmarks.figures import size

        return size.count(self.folder)

    def test_comments_docstrings_and_blank_lines_are_no_code(self):
        self.write(
            "one.py",
            '''
            """A docstring
            of two lines."""

            # a comment
            def f(a,
                  b):
                """Another."""

                return """text
                that counts"""
            ''',
        )
        self.assertEqual(self.count()["code_lines"], {"root": 4})

    def test_lines_are_summed_by_folder_of_the_root(self):
        self.write("store/tasks/submit.py", "a = 1\nb = 2\n")
        self.write("store/__init__.py", "c = 3\n")
        self.write("conf.py", "d = 4\n")
        self.write("migrations/0001_initial.py", "e = 5\n")

        found = self.count()

        self.assertEqual(found["code_lines"], {"root": 1, "store": 3})
        self.assertEqual(found["size"]["code_lines"], 4)

    def test_the_fullest_folder_below_the_root_counts(self):
        for number in range(5):
            self.write(f"file_{number}.py")
            self.write(f"management/commands/command_{number}.py")
        for name in ("__init__", "a", "b", "c"):
            self.write(f"store/{name}.py")

        size = self.count()["size"]

        self.assertEqual((size["largest_room"], size["root_entries"]), (3, 7))

    def test_lines_with_any_are_counted_and_not_those_with_another_word(self):
        self.write("one.py", "from typing import Any\n\n\nAnyone = 1\nx: Any\n")
        self.assertEqual(self.count()["size"]["lines_with_any"], 2)


class TableTests(FolderTestCase):
    def test_what_is_written_is_read(self):
        from benchmarks.figures import table

        figures = {"calls-sqlite": {"submit": 294, "drain": 104.25}, "size": {"files": 287}}
        table.write({"python": "3.13"}, figures, self.folder / "figures.toml")

        self.assertEqual(table.read(self.folder / "figures.toml"), ({"python": "3.13"}, figures))

    def test_a_rise_of_more_than_two_percent_and_a_new_figure_are_reported(self):
        from benchmarks.figures import table

        before = {"size": {"files": 100, "lines": 100, "any": 100}}
        now = {"size": {"files": 102, "lines": 103, "any": 90, "rooms": 1}}

        self.assertEqual(
            table.risen(before, now),
            ["size.lines: 100 in the table, 103 now", "size.rooms: 0 in the table, 1 now"],
        )
        self.assertEqual(table.fallen(before, now), ["size.any: 100 in the table, 90 now"])

    def test_the_calls_of_a_drain_may_be_five_percent_more(self):
        from benchmarks.figures import table

        before = {"calls": {"drain_handler": 100, "drain_django_task": 100, "submit": 100}}
        now = {"calls": {"drain_handler": 105, "drain_django_task": 106, "submit": 103}}

        self.assertEqual(
            table.risen(before, now),
            [
                "calls.drain_django_task: 100 in the table, 106 now",
                "calls.submit: 100 in the table, 103 now",
            ],
        )


class TransactionsTests(SimpleTestCase):
    def test_a_statement_alone_is_a_transaction_and_frames_are_no_statements(self):
        from benchmarks.figures.database import sent

        counts = sent(
            ["SELECT 1", "BEGIN IMMEDIATE", "SAVEPOINT a", "INSERT", "UPDATE", "COMMIT", "NOTIFY x"]
        )

        self.assertEqual((counts["statements"], counts["transactions"]), (4, 3))
