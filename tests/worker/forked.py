"""Workers forked from the test's own process: as real as any, without the cost of a start."""

import logging
import tempfile
from pathlib import Path
from unittest import mock

from django.core.management.color import no_style
from django.test import TransactionTestCase, override_settings

from django_perfectqueue import conf
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.database.link import prepare_for_fork
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.child import fork
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.supervisor.supervisor import Supervisor

from ..constants import taken_from
from ..databases import die_with_parent
from ..waiting import wait_until
from .workers import QUICK

SLOW_MACHINE = 120
SILENT = Reporter(lambda text: None, no_style(), 0)


def plan_of(dispatch, **more):
    return Plan(
        dispatch=dispatch, queues=("default",), using="default", options=conf.options(), **more
    )


class ForkedWorkerTestCase(TransactionTestCase):
    """Settings that hold in the worker hold in the test, too."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "log"

    def worker(self, dispatch, **settings):
        """Fork a supervisor, which forks the rest."""
        values = {**QUICK, "RETRY_WAIT": 0, **settings}
        constants = mock.patch.multiple(conf.Options, **taken_from(values))
        constants.start()
        self.addCleanup(constants.stop)
        given = override_settings(PERFECTQUEUE=values)
        given.enable()
        self.addCleanup(given.disable)

        end_with_test = die_with_parent()

        def supervise():
            end_with_test()
            logger = logging.getLogger("django_perfectqueue")
            logger.addHandler(logging.FileHandler(self.log))
            logger.propagate = False
            reporter = Reporter(lambda text: None, no_style(), 0)
            return Supervisor(plan_of(dispatch), reporter, None).run()

        prepare_for_fork()
        child = fork(supervise)
        self.addCleanup(self.end, child)
        return child

    def end(self, child):
        child.kill()
        wait_until(lambda: child.reap() is not None, within=SLOW_MACHINE)

    def submit(self, key, type, data=None, **options):
        return Queue().submit(key, type, {"folder": str(self.folder), **(data or {})}, **options)

    def note(self, key):
        """Return what a handler has written of a task, once it has."""
        path = self.folder / key
        wait_until(path.exists, within=SLOW_MACHINE)
        return path.read_text()

    def wait_for_status(self, key, status):
        def reached():
            return self.row(key).status == status

        wait_until(reached, within=SLOW_MACHINE)
        return self.row(key)

    def row(self, key):
        return Queue()[key].metadata()
