"""What a list of processes calls those of a worker."""

from __future__ import annotations

import os

BEFORE_THE_ENVIRONMENT = "SPT_NOENV"


def set_title(role: str) -> None:
    """Name this process by its role, where the package setproctitle is installed."""
    ours = BEFORE_THE_ENVIRONMENT not in os.environ
    # It would else overwrite the environment that others see, which a restart reads anew.
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
