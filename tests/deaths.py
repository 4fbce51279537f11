"""A process that is killed in the middle of something."""

import os
import signal
import traceback
from unittest import mock

from django_perfectqueue.worker.database.link import prepare_for_fork


def run_and_die(act, where, name, *, before=False):
    """Act in a forked process, which is killed right after it has called something, or before."""
    real = getattr(where, name)

    def last(*args, **kwargs):
        if not before:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    prepare_for_fork()
    if not (child := os.fork()):
        try:
            with mock.patch.object(where, name, last):
                act()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # Else it would go on with the tests.
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == -signal.SIGKILL, f"It did not die there: {code}"
