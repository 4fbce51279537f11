"""Sample handlers, found as those of any installed app are. What they do, they write in a diary."""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from django.db import connection, transaction

from django_perfectqueue.application import Application, Decider, Dispatch, handler
from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError, ProcessStopError

logger = logging.getLogger("tests.tasks")


def note(task, word):
    """Add a line to the task's diary, in one write, so that processes don't mix theirs."""
    diary = task.data.get("diary")
    if diary:
        with open(diary, "a") as file:
            file.write(f"{word} {task.key} {os.getpid()}\n")


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)


@handler("echo")
def echo(task):
    """Return the data."""
    return task.data


@handler("report")
def report(task):
    """Do nothing, as quickly as can be."""


@handler("tell")
def tell(task):
    """Log what there is to log, and fail."""
    task.progress(1, "counting", of=2)
    logger.warning("Nearly there, %s.", task.data["password"])
    raise ValueError(f"no {task.data['password']}")


@handler("decide", signals={"seen": "Seen", "approval": {"yes": "Approve", "no": "Refuse"}})
def decide(task):
    """Wait for an answer, and then two days."""
    task.step("draft", lambda: {"total": 7, "password": "hunter22"})
    answer = task.wait_for("approval", timeout="7d")
    task.sleep("cooling-off", "2d")
    return answer


@handler("note")
def write_note(task):
    note(task, "ran")


@handler("spend")
def spend(task):
    """Hold the processor for so many seconds."""
    time.sleep(task.data["seconds"])


@handler("wait")
class Wait(Application):
    """Run until a file is there; record when that is broken off."""

    retry_wait = 0

    def perform(self):
        note(self.task, "start")
        try:
            wait_for(self.task.data["until"])
        except (CancelRequestedError, PreemptedError, ProcessStopError) as reason:
            note(self.task, type(reason).__name__)
            raise
        note(self.task, "end")


@handler("wait-atomic")
class WaitAtomic(Wait):
    """Do so in the transaction in which it is finished."""

    atomic = True


@handler("wait-in-a-loop", retry_wait=0)
async def wait_in_a_loop(task):
    """Run until a file is there, as a coroutine."""
    note(task, "start")
    while not Path(task.data["until"]).exists():
        await asyncio.sleep(0.02)
    note(task, "end")


def pace(task, number):
    """A step that takes its time."""
    time.sleep(0.05)
    note(task, f"step-{number}")


def paces(task):
    """Yield the number of each step, until a file is there."""
    for number in itertools.count():
        if Path(task.data["until"]).exists():
            break
        yield number
    note(task, "end")


@handler("march")
def march(task):
    """Take one step after the other."""
    note(task, "start")
    for number in paces(task):
        with contextlib.suppress(Exception):
            task.step(f"step {number}", pace, task, number)


@handler("approve")
def approve(task):
    """Wait for a signal, then for a while."""
    task.step("draft", note, task, "draft")
    answer = task.wait_for("approved", "1d")
    task.step("charge", note, task, f"charge-{answer}")
    task.sleep("cooling-off", 0.3)
    note(task, "end")


@handler("go-far", retry_wait=0.05)
def go_far(task):
    """Return what each of five steps and four waits has given; a step never gives the same."""
    said = []
    for number, wait in enumerate(
        (
            lambda: task.wait_for("a"),
            lambda: task.sleep("nap", 0.5),
            lambda: task.wait_for("b", "1h"),
            lambda: task.wait_for("never", 0.3),
            lambda: None,
        )
    ):
        said += [task.step(f"step {number}", lambda: uuid.uuid4().hex), wait()]
    return said


@handler("approve-in-a-loop")
async def approve_in_a_loop(task):
    """Do the same as a coroutine."""
    await task.astep("draft", note, task, "draft")
    answer = await task.await_for("approved", "1d")
    await task.astep("charge", note, task, f"charge-{answer}")
    await task.asleep("cooling-off", 0.3)
    note(task, "end")


@handler("march-in-a-loop")
async def march_in_a_loop(task):
    """Do the same as a coroutine."""
    note(task, "start")
    for number in paces(task):
        await task.astep(f"step {number}", pace, task, number)


@handler("march-by-hand")
def march_by_hand(task):
    """Do the same without steps: what it has done is in its data."""
    note(task, "start")
    for _ in paces(task):
        number = task.data.get("done", 0)
        pace(task, number)
        task.update_data({"done": number + 1})
        task.yield_()


@handler("steps")
def steps(task):
    """Note each of two steps, and wait between them."""
    task.step("first", note, task, "first")
    note(task, "between")
    wait_for(task.data["until"])
    task.step("second", note, task, "second")
    return os.getpid()


def part_of(task, number):
    """Return the terms of a child; each second one waits for the gate."""
    return f"part {number}", ("note", "wait")[number % 2], task.data


@handler("family", retry_wait=0)
def family(task):
    """Run two children, join them when there is a file, and run one more."""
    parts = [task.run(*part_of(task, number)) for number in range(2)]
    note(task, "between")
    if task.data.get("stop"):
        wait_for(task.data["stop"])
    task.join(*parts)
    last = task.run(*part_of(task, 2))
    task.join(last)
    return [part.key for part in [*parts, last]]


@handler("family-in-a-loop")
async def family_in_a_loop(task):
    parts = [await task.arun(*part_of(task, number)) for number in range(2)]
    note(task, "between")
    await task.ajoin(*parts)
    last = await task.arun(*part_of(task, 2))
    await task.ajoin(last)
    return [part.key for part in [*parts, last]]


@handler("steps-in-a-loop")
async def steps_in_a_loop(task):
    await task.astep("first", note, task, "first")
    note(task, "between")
    while not Path(task.data["until"]).exists():
        await asyncio.sleep(0.02)
    await task.astep("second", note, task, "second")


@handler("fail", max_attempts=2, retry_wait=0)
def fail(task):
    raise ValueError("as it should")


@handler("fail-once", retry_wait=0)
def fail_once(task):
    if task.attempt == 1:
        raise ValueError("as it should")


@handler("die")
def die(task):
    """Take the whole processor along."""
    note(task, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@handler("die-once")
def die_once(task):
    note(task, "start")
    if task.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note(task, "end")


@handler("shout")
def shout(task):
    """Print and log more than anyone reads."""
    for number in range(task.data["lines"]):
        sys.stdout.write(f"{number} {'!' * 1000}\n")
        logger.warning("%s %s", number, "!" * 1000)


@handler("stand-still")
def stand_still(task):
    """Stop the whole processor, as a frozen machine would."""
    os.kill(os.getpid(), signal.SIGSTOP)


@handler("exit-once")
def exit_once(task):
    """End the process as one that has nothing left to do would."""
    note(task, "start")
    if task.attempt == 1:
        os._exit(task.data["code"])
    note(task, "end")


@handler("fork")
def fork(task):
    """Return in two processes."""
    if pid := os.fork():
        os.waitpid(pid, 0)
    note(task, "ran")


@handler("leave")
def leave(task):
    sys.exit("as it should")


@handler("offspring")
def offspring(task):
    """Start a process and wait for it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(task.data["pid"]).write_text(str(child.pid))
    note(task, "start")
    child.wait()


@handler("deaf")
def ignore_everything(task):
    """Ignore all signals that can be, with a child and a child of that, in groups of their own."""
    code = """if 1:
        import os, signal, sys, time
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_IGN)
        os.setsid()
        with open(sys.argv[1], "a") as file:
            print(os.getpid(), file=file)
        if os.fork() == 0:
            os.setsid()
            with open(sys.argv[1], "a") as file:
                print(os.getpid(), file=file)
        time.sleep(600)
    """
    path = Path(task.data["pid"])
    subprocess.Popen([sys.executable, "-c", code, str(path)], start_new_session=False)
    while not path.exists() or path.read_text().count("\n") < 2:
        time.sleep(0.01)
    note(task, "start")
    while True:
        try:
            time.sleep(600)
        except BaseException:
            note(task, "deaf")


@handler("spoil")
def spoil(task):
    """Leave a transaction open."""
    transaction.atomic().__enter__()
    connection.cursor().execute("DELETE FROM perfectqueue_fairshare")


@handler(re.compile(r"^import\."))
def import_anything(task):
    return task.type


class Unsettled(Application):
    auto_finish = False

    def perform(self):
        return None


class Hesitant(Application):
    def before_perform(self):
        return False

    def perform(self):
        raise AssertionError("not to be performed")

    after_perform = perform


class Stubborn(Decider):
    def unexpected_error_raised(self, error):
        raise RuntimeError("the decider has an error too")


class Undecided(Application):
    decider = Stubborn

    def perform(self):
        raise ValueError("as it should")


class Skipping(Decider):
    def unexpected_error_raised(self, error):
        self.task.finish({"skipped": str(error)})


class Lenient(Application):
    decider = Skipping

    def perform(self):
        raise ValueError("as it should")


class SampleDispatch(Dispatch):
    routes = {
        "echo": echo,
        "wait": "tests.tasks.Wait",
        re.compile(r"^import\."): import_anything,
        "import.never": fail,
        re.compile("late"): report,
    }


class Limited(Application):
    limits = {"declared:{data[name]}": {"max_running": 1, "rate": 100}}

    def perform(self):
        return self.task.data


class LimitedDispatch(Dispatch):
    routes = {"limited": Limited}


class Hooked(Application):
    """Records in a file when its processes begin and end."""

    @classmethod
    def tell(cls, word):
        with open(os.environ["PERFECTQUEUE_TEST_SETTINGS"] + ".hooks", "a") as file:
            file.write(f"{word} {os.getpid()}\n")

    @classmethod
    def before_fork(cls):
        cls.tell("before_fork")

    @classmethod
    def after_fork(cls):
        cls.tell("after_fork")

    @classmethod
    def after_child_end(cls):
        cls.tell("after_child_end")

    def perform(self):
        return os.getpid()


class HookedDispatch(Dispatch):
    routes = {"report": Hooked, "again": Hooked}


class WrongDispatch(Dispatch):
    routes = {"report": "tests.tasks.Nowhere"}
