"""What stops a worker while Python still loads."""

from __future__ import annotations

import signal
import sys
import threading

COMMAND = "pq_worker"
STOPS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def leave_to_system() -> None:
    """
    Make a signal to stop end a worker that still loads.

    Python would raise KeyboardInterrupt in whatever is being imported: that ends in a
    traceback, or is ignored where it strikes a callback of the import system. And a shell
    has what it starts in the background ignore INT and QUIT.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if sys.argv[1:2] != [COMMAND] or not in_main_thread:
        return
    for signum in STOPS:
        if signal.getsignal(signum) in (signal.default_int_handler, signal.SIG_IGN):
            signal.signal(signum, signal.SIG_DFL)
