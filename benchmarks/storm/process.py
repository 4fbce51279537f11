"""The process of a client: ``python -m benchmarks.storm.process NUMBER TERMS``."""

from __future__ import annotations

import json
import signal
import sys

import django

from benchmarks.chaos.terms import Terms


def main() -> None:
    number, terms = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _frame: ended.append(signum))
    django.setup()
    from .client import Client

    client = Client(Terms(**json.loads(terms)), number)
    client.use_verbs(lambda: bool(ended))


if __name__ == "__main__":
    main()
