"""One run on one cluster, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.chaos.audit.recovery import MEASURES as RECOVERIES
from benchmarks.chaos.faults.kinds import FAULTS
from benchmarks.chaos.run import Run
from benchmarks.chaos.terms import Terms

from .galera import Galera
from .patroni import Patroni
from .primary import FAULT, MEASURES, PRIMARY

CLUSTERS = {"postgresql": Patroni, "mariadb": Galera}


def measured(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    FAULTS[PRIMARY], RECOVERIES[PRIMARY] = FAULT, MEASURES
    terms = Terms(**job)
    with CLUSTERS[terms.database](terms.nodes) as cluster:
        return Run(terms, cluster, folder).run()
