"""Read a file of sales: ``date,item,quantity,price``, one sale a line."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation

COLUMNS = ["date", "item", "quantity", "price"]
LARGEST = 1_000_000


class DefectError(ValueError):
    """The file is not what it should be; the message names the line."""


@dataclass(frozen=True)
class Sale:
    day: date
    item: str
    amount: Decimal


def read_sales(content: bytes) -> list[Sale]:
    """
    Return the sales in a file.

    Raise DefectError at the first line that is none.
    """
    lines = csv.reader(as_text(content).splitlines())
    if next(lines, None) != COLUMNS:
        raise DefectError(f"line 1: the columns must be {','.join(COLUMNS)}")
    sales = [sale(cells, line) for line, cells in enumerate(lines, start=2) if cells]
    if not sales:
        raise DefectError("line 2: there are no sales")
    return sales


def as_text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DefectError(f"line {line}: this is not UTF-8 text") from error


def sale(cells: list[str], line: int) -> Sale:
    if len(cells) != len(COLUMNS):
        raise DefectError(f"line {line}: {len(COLUMNS)} values are needed, not {len(cells)}")
    day, item, quantity, price = cells
    try:
        return Sale(date.fromisoformat(day), item, number(quantity, line) * number(price, line))
    except ValueError as error:
        if isinstance(error, DefectError):
            raise
        raise DefectError(f"line {line}: {day!r} is not a date such as 2025-03-31") from error


def number(text: str, line: int) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite():
        raise DefectError(f"line {line}: {text!r} is not a number")
    if abs(value) > LARGEST:
        raise DefectError(f"line {line}: {text!r} is more than {LARGEST:,}")
    return value


def per_day(sales: Iterable[Sale]) -> dict[date, Decimal]:
    """Return what was sold on each day, in order."""
    days: dict[date, Decimal] = {}
    for one in sales:
        days[one.day] = days.get(one.day, Decimal(0)) + one.amount
    return dict(sorted(days.items()))


def per_item(sales: Iterable[Sale]) -> dict[str, list[Sale]]:
    items: dict[str, list[Sale]] = {}
    for one in sales:
        items.setdefault(one.item, []).append(one)
    return dict(sorted(items.items()))
