"""A worker in the test's own thread and transaction."""

import logging
from contextlib import closing, contextmanager

from asgiref.sync import AsyncToSync

from django_perfectqueue import store
from django_perfectqueue.application import Dispatch
from django_perfectqueue.backend.routes import with_django_tasks
from django_perfectqueue.queue import Queue
from django_perfectqueue.runtime.bell import Bell
from django_perfectqueue.runtime.database import Link
from django_perfectqueue.runtime.ending import announce
from django_perfectqueue.runtime.guard import Guard
from django_perfectqueue.runtime.runner import Runner


def run_due(*, queue="default", using="default", now=None, only=None):
    """Run what is due, as a processor does; return how each attempt ended."""
    with closing(Bell()) as bell, quiet(), no_loop_above():
        link = Link(using, bell, lambda: float("inf"))
        runner = Runner(with_django_tasks(Dispatch), link=link, guard=Guard())
        with closing(runner.coroutines):
            endings = []
            while len(endings) != only and (task := Queue(queue, using=using).poll(now=now)):
                task.worker = "inline:1"
                endings.append(run(runner, task))
            return endings


@contextmanager
def no_loop_above():
    """Be as in a worker, which no coroutine has called: asgiref would go by that."""
    above = getattr(AsyncToSync.executors, "current", None)
    if above is not None:
        del AsyncToSync.executors.current
    try:
        yield
    finally:
        if above is not None:
            AsyncToSync.executors.current = above


@contextmanager
def quiet():
    """Keep from the screen what no test looks for; assertLogs() gets it all the same."""
    names = ("django_perfectqueue.runner", "django.tasks", "django_tasks")
    loggers, nothing = [logging.getLogger(name) for name in names], logging.NullHandler()
    for logger in loggers:
        logger.addHandler(nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(nothing)


def run(runner, task):
    ending = runner.run(task)
    if ending.completion:
        store.finish([ending.completion], using=task.lease.using, worker=task.worker)
        announce(ending.word, task, ending.handler)
    if ending.stop:
        raise KeyboardInterrupt
    return ending
