"""An interrupt of a worker while Python still loads."""

from __future__ import annotations

import signal
import sys
import threading

COMMAND = "pq_worker"


def leave_to_system() -> None:
    """
    Have Ctrl-C end a worker that still loads, as TERM does.

    Python would raise KeyboardInterrupt in whatever is being imported: that ends in a
    traceback, or is ignored where it strikes a callback of the import system.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if sys.argv[1:2] != [COMMAND] or not in_main_thread:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
