"""Handlers that note in a file what they do, so that it outlives every process."""

import os
import time

from django_perfectqueue.application import Application, Dispatch


def note(word, task):
    with open(os.environ["CHAOS_LOG"], "a") as log:
        log.write(f"{word} {task.key} {os.getpid()}\n")


class Steady(Application):
    """Runs for a moment, and tells when it began and when it was through."""

    def perform(self):
        note("began", self.task)
        time.sleep(self.task.data.get("seconds", 0.01))
        note("through", self.task)


class ChaosDispatch(Dispatch):
    routes = {"steady": Steady}
