"""A sample in a process of its own: ``python -m MODULE JOB RESULT``, as the runner starts it."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def leave(signum: int, _frame: object) -> NoReturn:
    sys.exit(128 + signum)


def answer(measure: Callable[[dict[str, Any], Path], dict[str, Any]]) -> None:
    """Write what a job and the folder for its files come to; an error is a result, too."""
    signal.signal(signal.SIGTERM, leave)
    job, result = json.loads(sys.argv[1]), Path(sys.argv[2])
    try:
        found = measure(job, result.parent)
    except Exception as error:
        kind = type(error).__name__
        found = {"error": f"{kind}: {error}", "traceback": traceback.format_exc()}
    result.write_text(json.dumps(found))
