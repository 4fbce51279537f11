"""
Runs parts of benchmarks, each in a process of its own, and leaves nothing running.

That process is ``python -m benchmarks.runner MODULE:NAME JOB RESULT``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import probe, processes
from benchmarks.cleanup import RUN, end_all, start_cleanup
from benchmarks.servers import Site

PATIENCE = 900.0
IN_MEMORY = Path("/dev/shm")


class Runner:
    """Used as a context manager: what was started in the block has ended after it."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.run = uuid.uuid4().hex

    def __enter__(self) -> Runner:
        self.folder = Path(tempfile.mkdtemp(prefix="pq-benchmark-", dir=in_memory()))
        self.cleanup = start_cleanup(self.run, self.folder)
        return self

    def __exit__(self, *exception: object) -> None:
        end_all(f"{RUN}={self.run}")
        self.cleanup.communicate()

    def run_on(self, site: Site, part: str, job: dict[str, Any]) -> dict[str, Any]:
        """Call ``MODULE:NAME`` with the job on a fresh database, and return the result."""
        with site.fresh() as target, self.room() as folder:
            environment = {**site.environment(), **target.environment()}
            return self.run_in(folder, part, job, environment)

    def run_in(
        self,
        folder: Path,
        part: str,
        job: dict[str, Any],
        environment: Mapping[str, str],
        *,
        grace: float = 0.0,
    ) -> dict[str, Any]:
        """
        Run it with its files in this folder, and return the result.

        Where it has to be ended before its time it is asked to, and has so many seconds.
        """
        result, log = folder / "result.json", folder / "sample.log"
        given = {**environment, RUN: self.run, probe.VARIABLE: str(folder / "probe")}
        command = [sys.executable, "-m", "benchmarks.runner", part, json.dumps(job), result]
        process = processes.start(command, given, log)
        try:
            process.wait(self.patience)
        except subprocess.TimeoutExpired:
            return {"error": f"It took longer than {self.patience:g} s."}
        finally:
            if grace:
                end_in_order(process, grace)
            end_all(f"{RUN}={self.run}")
            process.wait()
        if not result.exists():
            return {"error": f"It ended by itself.\n{log.read_text(errors='replace')[-2000:]}"}
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    @contextlib.contextmanager
    def room(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)


def end_in_order(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and give it some time to tidy up."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def in_memory() -> str:
    """Return the folder for the probes: in memory where there is one."""
    if IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK):
        return str(IN_MEMORY)
    return tempfile.gettempdir()


def leave(signum: int, _frame: object) -> NoReturn:
    sys.exit(128 + signum)


def main() -> None:
    """Write what a job and the folder for its files come to; an error is a result, too."""
    signal.signal(signal.SIGTERM, leave)
    part, job, result = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    try:
        found = pkgutil.resolve_name(part)(job, result.parent)
    except Exception as error:
        kind = type(error).__name__
        found = {"error": f"{kind}: {error}", "traceback": traceback.format_exc()}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
