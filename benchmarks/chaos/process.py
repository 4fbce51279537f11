"""The process of a client: ``python -m benchmarks.chaos.process NAME TERMS``."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import django

from .terms import Terms


class Acting(ABC):
    """Draws one act after another; ``PAUSE`` are the seconds between two, on average."""

    PAUSE = 0.005

    def __init__(self, terms: Terms, name: str) -> None:
        self.terms = terms
        self.name = f"{name}.{os.getpid()}"
        self.drawn = random.Random(f"{terms.seed} {name} {os.getpid()}")

    @abstractmethod
    def verbs(self) -> dict[Callable[[], None], int]:
        """Return each verb with how often it comes."""

    def use_verbs(self, is_over: Callable[[], bool]) -> None:
        verbs, weights = zip(*self.verbs().items(), strict=True)
        while not is_over():
            [verb] = self.drawn.choices(verbs, weights)
            verb()
            time.sleep(self.drawn.expovariate(1 / self.PAUSE))


def main() -> None:
    name, given = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _frame: ended.append(signum))
    django.setup()
    from .workload.client import Client
    from .workload.player import Player

    terms = Terms(**json.loads(given))
    client = (Client if terms.storm else Player)(terms, name)
    client.use_verbs(lambda: bool(ended))


if __name__ == "__main__":
    main()
