"""Ends what a benchmark has started, when its process is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import ROOT, signal_all
from tests.databases.lifetime import folder_for_sockets, processes_with, remove_abandoned

RUN = "BENCHMARK_RUN"
WORKERS = "BENCHMARK_WORKERS"


def end_all(setting: str, patience: float = 10.0) -> None:
    """Kill the processes that were started with ``NAME=value`` in their environment."""
    deadline = time.monotonic() + patience
    while left := [pid for pid in processes_with(setting) if pid != os.getpid()]:
        signal_all(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def start_cleanup(run: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that waits for this one's end."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cleanup", run, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def main() -> None:
    run, folder = sys.argv[1:]
    sys.stdin.buffer.read()
    end_all(f"{RUN}={run}")
    shutil.rmtree(folder, ignore_errors=True)
    remove_abandoned(folder_for_sockets())


if __name__ == "__main__":
    main()
