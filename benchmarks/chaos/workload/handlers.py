"""What the tasks of a run do. Each records when it begins and ends, and what interrupted it."""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.bulk.handler import BulkHandler
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    BatchEndedError,
    CancelRequestedError,
    PreemptedError,
    ProcessStopError,
)

from .. import scenario
from ..calls import Undone, noted
from ..faults.clock import spread
from ..recorder import recorder
from ..scenario import BULK
from ..terms import HOST, this_folder

INTERRUPTIONS = (PreemptedError, CancelRequestedError, ProcessStopError)
STEP = 0.02
EFFECT = "INSERT INTO chaos_effect (child) VALUES (%s)"


class Watched(Application):
    """Its lock and its lines hold for as long as ``perform()`` runs, and no longer."""

    retry_wait = 0.1

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.closed = False

    def run(self) -> Any:
        how = "returned"
        try:
            recorder().begin(self.task.lease, self.task.data.get("edit"))
            super().run()
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self.close(how)
        return {"attempt": self.task.lease.attempt}

    def close(self, how: str) -> None:
        """Say that it has ended; an interruption has to wait until that is said."""
        interruption: BaseException | None = None
        while not self.closed:
            try:
                recorder().end(self.task.lease, how)
                self.closed = True
            except INTERRUPTIONS as reason:
                interruption = reason
        if interruption is not None:
            raise interruption

    def kill(self, reason: BaseException) -> None:
        recorder().record("reported", self.task.lease, reason=type(reason).__name__)
        super().kill(reason)

    def verb(self, word: str, act: Callable[[], Any]) -> None:
        """Do something to the task, and say what the store answered."""
        lease = self.task.lease
        with noted(word, leases=[(lease.task_id, lease.attempt, lease.holder)]):
            act()

    def note(self, what: str, name: str, value: Any) -> Any:
        recorder().record("note", self.task.lease, what=what, name=name, value=value)
        return value

    def sleep(self) -> None:
        time.sleep(self.task.data.get("seconds", 0.0))


class Steady(Watched):
    """Takes its time and returns."""

    def perform(self) -> None:
        self.sleep()


class Flaky(Watched):
    """Ends in an error so many times before it returns."""

    def perform(self) -> None:
        self.sleep()
        if self.task.lease.errors < self.task.data["errors"]:
            raise RuntimeError("as it should")


class Hopeless(Watched):
    """Ends in an error every time, and is given up after the second."""

    max_attempts = 2

    def perform(self) -> None:
        self.sleep()
        raise RuntimeError("as it should")


class Stubborn(Watched):
    """Takes its time whatever interrupts it."""

    def perform(self) -> None:
        until = time.monotonic() + self.task.data["seconds"]
        while (left := until - time.monotonic()) > 0:
            try:
                time.sleep(left)
            except INTERRUPTIONS:
                continue


class Attentive(Watched):
    """Has its own flag to look at, and looks at it now and then."""

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.reason: BaseException | None = None

    def kill(self, reason: BaseException) -> None:
        recorder().record("reported", self.task.lease, reason=type(reason).__name__)
        self.reason = reason

    def perform(self) -> None:
        until = time.monotonic() + self.task.data["seconds"]
        while time.monotonic() < until:
            time.sleep(STEP)
            if self.reason is not None:
                raise self.reason


class Settler(Watched):
    """Keeps its lease and settles its task by itself, once it has released or retried it."""

    def perform(self) -> None:
        task, data = self.task, self.task.data
        self.sleep()
        self.verb("heartbeat", task.heartbeat)
        first = data["first"]
        if first and not data.get("again"):
            self.verb("revise", lambda: task.update_data({"again": True}))
            self.close("settles")
            again = task.retry if first == "retry" else task.release
            self.verb(first, lambda: again(0.1))
        else:
            self.close("settles")
            self.verb("finish", task.finish)


class Parent(Watched):
    """
    Submits another task in a transaction of its own, together with a row of its own.

    The first time it may be that the transaction is rolled back.
    """

    def perform(self) -> None:
        child = f"{self.task.key}/child"
        using = self.task.queue.using
        try:
            how = {"how": "transaction", "keys": [child]}
            with noted("submit", **how), transaction.atomic(using=using):
                self.queue.submit(child, "steady", {"seconds": 0.01}, user=self.task.user)
                with connections[using].cursor() as cursor:
                    cursor.execute(EFFECT, [child])
                if self.task.data["rolls_back"] and not self.task.lease.errors:
                    raise Undone("as it should")
        except AlreadyExistsError:
            return


class Strand(Watched):
    """May add a task to its batch; then it fails at once, until it was put back so often."""

    fail_on = (RuntimeError,)

    def perform(self) -> None:
        task, data = self.task, self.task.data
        self.sleep()
        if data.get("adds"):
            key = f"{task.key}+{task.lease.attempt}"
            with contextlib.suppress(BatchEndedError), noted("submit", keys=[key], key=key):
                task.batch.submit(key, "strand", {"seconds": 0.01})
        if task.lease.attempt <= data.get("deaths", 0):
            raise RuntimeError("as it should")


class Drawn(Watched):
    """Takes a time that is drawn by its lease; where it is shaky it may end in an error."""

    def perform(self) -> None:
        drawn = random.Random(f"{self.task.lease.task_id} {self.task.lease.attempt}")
        time.sleep(drawn.uniform(0.0, 0.05) if drawn.random() < 0.9 else 0.5)
        if self.task.type == scenario.SHAKY and drawn.random() < 0.5:
            raise RuntimeError("as it should")


class Workflow(Watched):
    """
    Keeps five steps, waits for two signals, sleeps, and joins three children of its own.

    It may end in an error between them, and then goes on from there.
    """

    def run(self) -> Any:
        found = super().run()
        return {**found, "value": self.values}

    def perform(self) -> None:
        task, data = self.task, self.task.data
        self.values: dict[str, Any] = {}
        self.step("0")
        self.given("a", task.wait_for("a"))
        self.step("1")
        self.given("version", task.version("change"))
        children = [self.child(number) for number in range(scenario.CHILDREN)]
        self.fail(1)
        self.step("2")
        self.given("join", task.join(*children))
        task.sleep("nap", data["seconds"])
        self.given("nap", None)
        self.step("3")
        self.fail(2)
        self.given("b", task.wait_for("b", data["timeout"]))
        self.step("4")

    def step(self, name: str) -> None:
        def act() -> str:
            return self.note("runs", name, uuid.uuid4().hex)

        self.given(name, self.task.step(name, act))

    def given(self, name: str, value: Any) -> None:
        self.values[name] = self.note("given", name, value)

    def fail(self, errors: int) -> None:
        if self.task.lease.errors < min(errors, self.task.data["errors"]):
            raise RuntimeError("as it should")

    def child(self, number: int) -> Any:
        """Return a child whose key is new each time, were it stored each time."""
        life = f"{self.task.key}/{number}"
        data = {"life": life, "family": self.task.data["family"], "seconds": 0.05 * number}
        with noted("submit", keys=[life]):
            return self.task.run(f"child {number}", scenario.CHILD, data)


class Child(Steady):
    """Belongs to a family of limits by its data."""

    limits = ("each:{data[family]}",)


class Merged(Watched):
    """Says with which data it runs."""

    def perform(self) -> None:
        self.note("runs", "data", self.task.data["life"])


class Bulk(Watched, BulkHandler):
    """Bulk work as it is, but that it is seen; it may have settled its task before it returns."""

    def run(self) -> Any:
        found = super().run()
        return found if self.task.data["cursor"] >= self.task.data["until"] else None

    def close(self, how: str) -> None:
        is_over = self.task.data["cursor"] >= self.task.data["until"]
        super().close("settled" if how == "returned" and not is_over else how)


class ChaosDispatch(Dispatch):
    routes = {
        "strand": Strand,
        "steady": Steady,
        "long": Steady,
        "cancelled": Steady,
        "flaky": Flaky,
        "hopeless": Hopeless,
        "stubborn": Stubborn,
        "attentive": Attentive,
        "settler": Settler,
        "parent": Parent,
        scenario.WORKFLOW: Workflow,
        scenario.CHILD: Child,
        scenario.MERGED: Merged,
        scenario.ONCE: Steady,
        **dict.fromkeys((scenario.QUICK, scenario.SHAKY, scenario.COUNTED), Drawn),
    }

    @classmethod
    def look_up(cls, type_: str) -> type[Application]:
        return Bulk if type_ == BULK else super().look_up(type_)

    @classmethod
    def after_fork(cls) -> None:
        """Record which process this processor is."""
        spread()
        home = this_folder().home(os.environ[HOST])
        with (home / "processors").open("a") as file:
            file.write(f"{os.getpid()}\n")
