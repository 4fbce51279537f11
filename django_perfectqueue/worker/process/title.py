"""Process titles, as ps shows them."""

from __future__ import annotations

import os

BEFORE_THE_ENVIRONMENT = "SPT_NOENV"


def set_title(role: str) -> None:
    """Name this process by its role, where the package setproctitle is installed."""
    ours = BEFORE_THE_ENVIRONMENT not in os.environ
    # setproctitle would overwrite /proc/PID/environ, which a restart reads.
    os.environ.setdefault(BEFORE_THE_ENVIRONMENT, "1")
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    else:
        setproctitle(f"pq_worker: {role}")
    finally:
        if ours:
            del os.environ[BEFORE_THE_ENVIRONMENT]
