"""
A part of a benchmark in a process of its own, as the runner starts it:
``python -m benchmarks.child MODULE:NAME JOB RESULT``.
"""

from __future__ import annotations

import json
import pkgutil
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn


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
