import io
import time
from operator import itemgetter
from unittest import mock

from django.core.management.base import OutputWrapper
from django.test import SimpleTestCase

from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.management.terminal import (
    Column,
    ProgressLine,
    columns_of,
    cut,
    lines,
    terminal_width,
)

from .running import Terminal


class WordsTests(SimpleTestCase):
    def test_a_span_is_written_as_it_may_be_typed(self):
        for seconds, text in {
            0: "0ms",
            0.0421: "42ms",
            1: "1s",
            5.25: "5.2s",
            59.7: "1m",
            330: "5m30s",
            3600: "1h",
            3661: "1h1m",
            90_061: "1d1h",
            86_399.9: "1d",
        }.items():
            self.assertEqual(short_duration(seconds), text)

    def test_what_steers_a_terminal_is_spelt_out(self):
        self.assertEqual(printable("a\x1b[0m\n\x9b"), r"a\x1b[0m\n\x9b")
        self.assertEqual(printable("März 日本"), "März 日本")

    def test_wide_characters_take_two_columns(self):
        self.assertEqual(columns_of("日本"), 4)
        self.assertEqual(cut("日本語", 5), "日本…")


class TableTests(SimpleTestCase):
    columns = (
        Column("key", shown=itemgetter(0), elastic=True),
        Column("status", shown=itemgetter(1)),
        Column("n", shown=itemgetter(2), right=True),
    )

    def test_columns_are_aligned(self):
        rows = [["a", "waiting", "1"], ["longer", "run", "10"]]

        table = list(lines(self.columns, rows, width=None))

        self.assertEqual(
            table, ["key     status    n", "a       waiting   1", "longer  run      10"]
        )

    def test_the_elastic_ones_give_way_to_the_terminal(self):
        rows = [["k" * 50, "waiting", "1"]]

        _header, row = lines(self.columns, rows, width=30)

        self.assertEqual(len(row), 30)
        self.assertRegex(row, r"^k+…  waiting  1$")

    def test_a_spare_column_is_left_out_before_a_key_is_cut(self):
        columns = (
            Column("key", shown=itemgetter(0), elastic=True),
            Column("created", shown=itemgetter(1), spare=True),
            Column("n", shown=itemgetter(2)),
        )
        rows = [["k" * 20, "5m30s ago", "1"]]
        for width, shown in ((34, 3), (33, 2)):
            with self.subTest(width):
                _header, row = lines(columns, rows, width=width)
                self.assertEqual(row.split("  ")[0], "k" * 20)
                self.assertEqual(len(row.split("  ")), shown)

    def test_elsewhere_nothing_is_cut(self):
        """
        A program that reads the output is given the whole key.
        """
        self.assertIsNone(terminal_width(io.StringIO()))
        rows = [["a", "b", "c"]] * 200 + [["k" * 500, "b", "c"]]

        *_head, last = lines(self.columns, rows, width=None)

        self.assertTrue(last.startswith("k" * 500))

    def test_rows_are_printed_before_the_last_is_known(self):
        def endless():
            while True:
                yield ["a", "b", "c"]

        table = lines(self.columns, endless(), width=80)

        self.assertEqual([next(table) for _turn in range(300)][-1], "a    b       c")

    def test_the_width_is_the_terminals(self):
        with mock.patch.dict("os.environ", {"COLUMNS": "33"}):
            self.assertEqual(terminal_width(Terminal()), 33)


class ProgressTests(SimpleTestCase):
    def progress(self, stream):
        return ProgressLine(OutputWrapper(stream), "%s tasks")

    def test_a_terminal_sees_a_line_that_leaves_no_trace(self):
        stream = Terminal()
        progress = self.progress(stream)
        progress.drawn = time.monotonic() - 1

        progress.show(1234)
        shown = stream.getvalue()
        progress.clear()

        self.assertRegex(shown, r"^\r1,234 tasks, [\d,]+ a second$")
        self.assertTrue(stream.getvalue().endswith(" \r"))

    def test_a_log_sees_none(self):
        stream = io.StringIO()
        progress = self.progress(stream)
        progress.drawn = time.monotonic() - 1

        progress.show(1_000_000)
        progress.clear()

        self.assertEqual(stream.getvalue(), "")
