from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

from django.test import SimpleTestCase

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "example_project"
sys.path.append(str(EXAMPLE))

from reports.drawing import draw, round_up  # noqa: E402
from reports.sales import DefectError, read_sales  # noqa: E402
from reports.statistics import rolling_mean, summarise  # noqa: E402

HEAD = "date,item,quantity,price\n"
GOOD = HEAD + "2025-01-02,tea,1,3.50\n2025-01-01,tea,2,3.50\n2025-01-01,cake,1,4.00\n"


class SalesTests(SimpleTestCase):
    def test_a_defect_is_reported_with_its_line(self):
        """The reason is what the admin shows of a failed task."""
        for content, reason in (
            ("", "line 1: the columns must be date,item,quantity,price"),
            (HEAD, "line 2: there are no sales"),
            (HEAD + "2025-01-01,tea,1\n", "line 2: 4 values are needed, not 3"),
            (HEAD + "2025-01-01,tea,n/a,1\n", "line 2: 'n/a' is not a number"),
            (HEAD + "2025-01-01,tea,NaN,1\n", "line 2: 'NaN' is not a number"),
            (HEAD + "2025-01-01,tea,1,9e99\n", "line 2: '9e99' is more than 1,000,000"),
            (HEAD + "yesterday,tea,1,1\n", "line 2: 'yesterday' is not a date"),
        ):
            with self.subTest(reason), self.assertRaises(DefectError) as raised:
                read_sales(content.encode())
            self.assertIn(reason, str(raised.exception))

    def test_what_is_no_text_is_a_defect(self):
        with self.assertRaises(DefectError) as raised:
            read_sales(HEAD.encode() + b"\xff\xfe")
        self.assertEqual(str(raised.exception), "line 2: this is not UTF-8 text")


class FiguresTests(SimpleTestCase):
    def test_figures_are_by_day_in_order(self):
        figures = summarise(read_sales(GOOD.encode()), resamples=40)
        self.assertEqual(figures["days"], ["2025-01-01", "2025-01-02"])
        self.assertEqual(figures["amounts"], [11.0, 3.5])
        self.assertEqual(figures["total"], "14.50")

    def test_figures_are_the_same_when_a_task_runs_again(self):
        sales = read_sales(GOOD.encode())
        self.assertEqual(summarise(sales, resamples=40), summarise(sales, resamples=40))

    def test_the_rolling_mean_looks_back_a_week(self):
        self.assertEqual(rolling_mean([7.0] + [0.0] * 7)[-2:], [1.0, 0.0])


class DrawingTests(SimpleTestCase):
    def test_a_chart_is_well_formed_whatever_its_title(self):
        figures = summarise(read_sales(GOOD.encode()), resamples=40)
        chart = ElementTree.fromstring(draw("<b> & co", figures))
        bars = [part for part in chart.iter() if part.get("class") == "bar"]
        self.assertEqual(len(bars), 2)

    def test_an_axis_ends_at_a_round_number(self):
        self.assertEqual([round_up(n) for n in (0, 1, 3, 70, 101)], [1, 1, 4, 80, 200])
