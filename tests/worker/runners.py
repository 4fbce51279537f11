"""The runner of a worker, in the thread of a test."""

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.attempt.event_loop import EventLoop
from django_perfectqueue.worker.attempt.interrupts import MainThreadInterrupter
from django_perfectqueue.worker.attempt.runner import Runner
from django_perfectqueue.worker.database.link import Link
from django_perfectqueue.worker.process.signals import Wakeup

from ..factories import submit


def runner_for(perform):
    """Return a runner whose only handler is this function, or this class."""

    class OneDispatch(Dispatch):
        routes = {"report": perform}

    wakeup = Wakeup()
    runner = Runner(
        OneDispatch,
        link=Link("default", wakeup, lambda: float("inf")),
        interrupter=MainThreadInterrupter(),
        event_loop=EventLoop(),
    )
    runner.wakeup = wakeup
    return runner


class RunnerMixin:
    def run_due(self, perform):
        """Run the task that is due, and write what is to be written; keep both."""
        self.task = Queue().poll()
        runner = runner_for(perform)
        self.addCleanup(runner.wakeup.close)
        self.addCleanup(runner.event_loop.close)
        self.ending = runner.run(self.task)
        if self.ending.completion is not None:
            store.finish([self.ending.completion], using="default")

    def run_with(self, perform, data=None, *, expect=None):
        """Submit a task and run it; return its row."""
        submit("task", data=data, now=None)
        self.run_due(perform)
        if expect is not None:
            self.assertEqual(self.ending.word, expect)
        return Queue()["task"].metadata()
