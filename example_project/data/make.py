#!/usr/bin/env python3
"""Make the customers' files again. They are invented, and come out the same each time."""

from __future__ import annotations

import random
from calendar import monthrange
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
WEEKEND = 5

# customer: items with their price and usual number a day, branches, months, weekend factor
CUSTOMERS: dict[str, tuple[dict[str, tuple[float, int]], list[str], int, float]] = {
    "cobalt": (
        {"letter": (1.2, 300), "parcel": (5.9, 80)},
        ["depot-1", "depot-2", "depot-3", "depot-4", "depot-5", "depot-6", "depot-7"],
        8,
        0.3,
    ),
    "aurora": (
        {"city": (189, 6), "coast": (420, 4), "mountain": (365, 3), "polar": (1290, 1)},
        ["harbour", "station"],
        12,
        1.6,
    ),
    "birch": (
        {
            "cake": (18, 9),
            "coffee": (2.8, 90),
            "pie": (4.5, 25),
            "roll": (0.6, 160),
            "rye": (3, 40),
        },
        ["shop"],
        8,
        1.4,
    ),
    "dune": (
        {"atlas": (49, 2), "novel": (14, 18), "used": (5, 25)},
        ["shop"],
        10,
        1.2,
    ),
}
DEFECT = ("birch", "shop-2025-05.csv", 57)


def main() -> None:
    for customer, (items, branches, months, weekend) in CUSTOMERS.items():
        folder = HERE / customer
        folder.mkdir(exist_ok=True)
        for branch in branches:
            for month in range(1, months + 1):
                file = folder / f"{branch}-2025-{month:02}.csv"
                chance = random.Random(f"{customer} {file.name}")
                lines = ["date,item,quantity,price", *sales(items, month, weekend, chance)]
                if (customer, file.name) == DEFECT[:2]:
                    spoil(lines, DEFECT[2])
                file.write_text("\n".join(lines) + "\n")


def sales(
    items: dict[str, tuple[float, int]], month: int, weekend: float, chance: random.Random
) -> Iterator[str]:
    growth = chance.uniform(-0.3, 0.5)
    first, days = monthrange(2025, month)
    for day in range(1, days + 1):
        busy = weekend if (first + day - 1) % 7 >= WEEKEND else 1.0
        busy *= 1 + growth * day / days
        for item, (price, usual) in items.items():
            quantity = round(max(0, chance.gauss(usual, usual * 0.25)) * busy)
            yield f"2025-{month:02}-{day:02},{item},{quantity},{price:.2f}"


def spoil(lines: list[str], number: int) -> None:
    day, item, _quantity, price = lines[number - 1].split(",")
    lines[number - 1] = f"{day},{item},n/a,{price}"


if __name__ == "__main__":
    main()
