"""What must be so for tasks to be run, read from the database."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import Error, connections

from django_perfectqueue.conf import options
from django_perfectqueue.inspection.family import held_up
from django_perfectqueue.inspection.schedules import problems_of
from django_perfectqueue.inspection.why_waiting import workers_serving
from django_perfectqueue.lib.durations import long_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import FairShare, Limit, Task, Worker
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.store.arithmetic.rate_limit import key_of, named, split
from django_perfectqueue.store.claims.backlog_age import oldest_due, overdue
from django_perfectqueue.store.database.transaction import unmigrated
from django_perfectqueue.store.limits.meters import known_limits
from django_perfectqueue.store.records.counts import LATEST, names

from .queues import DRAINED, named_queues, parked_types
from .tables import lacks_tables

OVERDUE = 60.0
LATELY = 3600.0
UNKNOWN = 60.0
NAMED = 5

# Databases that were found to have their tables; these don't go away.
migrated: set[str] = set()


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The result of one check: its name, whether it passed, and a sentence.

    Not for everyone are ``detail``, a sentence with what the database said or the keys of
    tasks, and ``keys``, those for programs.
    """

    name: str
    ok: bool
    sentence: str
    known: Mapping[str, object] = field(default_factory=dict)
    detail: str = ""
    keys: dict[str, str | None] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        """Return what programs of anyone may know."""
        return {"name": self.name, "ok": self.ok, "sentence": self.sentence, **self.known}


def database_findings(using: str) -> Iterator[Finding]:
    """Yield whether the database can be used, up to the first thing that is wrong."""
    try:
        connections[using].ensure_connection()
        lacking = using not in migrated and lacks_tables(using)
    except Error as error:
        sentence = f"The database '{using}' can't be reached."
        yield Finding("database", False, sentence, detail=" ".join(str(error).split()))
        return
    yield Finding("database", True, f"The database '{using}' answers.")
    if lacking:
        yield Finding("tables", False, unmigrated(using))
        return
    migrated.add(using)
    yield Finding("tables", True, "Its tables are there.")


def findings(queues: Sequence[str], *, using: str, oldest: float | None) -> Iterator[Finding]:
    """
    Yield whether the tasks of these queues are being run.

    Where no queue is given these are all that the settings name and all in which a task is
    due; the former need a worker even while they are empty.
    ``oldest`` is for how many seconds a task may have been due; of None that is only
    named. Each look is into an index, and reads a bounded number of rows.
    """
    found = list(database_findings(using))
    yield from found
    if not all(finding.ok for finding in found):
        return
    try:
        yield from queue_findings(queues, using, oldest)
    except Error as error:
        sentence = f"The database '{using}' refused."
        yield Finding("database", False, sentence, detail=" ".join(str(error).split()))


def queue_findings(queues: Sequence[str], using: str, oldest: float | None) -> Iterator[Finding]:
    staying = workers_serving(using=using, drained=True)
    workers = [worker for worker in staying if not worker.draining]
    asked = queues or named_queues(using)
    others = [] if queues else [name for name in names(using=using).queues if name not in asked]
    for queue, wait in oldest_due([*asked, *others], using=using).items():
        if queue in asked or wait is not None:
            yield check_workers(queue, staying)
            yield check_oldest(queue, wait, oldest)
            yield from check_headroom(queue, wait, oldest, workers)
    yield check_handlers(queues, using)
    yield check_clock(overdue(using=using))
    yield check_counters(using)
    yield from check_schedules(using)
    yield check_blocked(using)
    yield check_limits(using)
    yield check_pauses(using)
    yield check_upkeep(workers)


def check_workers(queue: str, staying: Sequence[Worker]) -> Finding:
    here = [worker for worker in staying if queue in worker.queues]
    count = sum(not worker.draining for worker in here)
    known = {"queue": queue, "workers": count}
    if not count:
        sentence = DRAINED % queue if here else f"No worker serves queue '{queue}'."
        return Finding("workers", False, sentence, known)
    serve = "worker serves" if count == 1 else "workers serve"
    return Finding("workers", True, f"{count} {serve} queue '{queue}'.", known)


def check_oldest(queue: str, wait: float | None, most: float | None) -> Finding:
    known = {"queue": queue, "seconds": wait, "most": most}
    if wait is None:
        sentence = f"Nothing that may start waits in queue '{queue}'."
        return Finding("oldest", True, sentence, known)
    sentence = f"The oldest due task of queue '{queue}' has waited for {long_duration(wait)}"
    if most is None or wait <= most:
        return Finding("oldest", True, f"{sentence}.", known)
    return Finding("oldest", False, f"{sentence}, over {long_duration(most)}.", known)


def check_headroom(
    queue: str, wait: float | None, most: float | None, workers: Sequence[Worker]
) -> Iterator[Finding]:
    """
    Yield whether long tasks wait while processors that are kept for short ones are idle, where
    some are kept. That is a failure where it is said how long a task may wait.
    """
    kept = [state for worker in workers if queue in worker.queues for state in worker.kept]
    idle = sum(not state["tasks"] for state in kept)
    longest = options().LATE_AFTER if most is None else most
    known = {"queue": queue, "kept": len(kept), "idle": idle, "seconds": wait, "most": longest}
    if idle and wait is not None and longest is not None and wait > longest:
        sentence = (
            f"Long tasks of queue '{queue}' have waited for {long_duration(wait)} while processors"
            f" that HEADROOM keeps for short ones are idle: {idle}."
        )
        yield Finding("headroom", most is None, sentence, known)
    elif kept:
        sentence = f"No long task of queue '{queue}' waits long for what HEADROOM keeps."
        yield Finding("headroom", True, sentence, known)


def check_handlers(queues: Sequence[str], using: str) -> Finding:
    """Report types for which tasks have waited a minute, as no worker that came knew them."""
    known = [
        {"type": type_, "queue": queue}
        for (queue, type_), waited in parked_types(using).items()
        if waited > UNKNOWN and (queue in queues or not queues)
    ]
    if not known:
        sentence = "No task has waited for a minute for a worker that knows its type."
        return Finding("handlers", True, sentence)
    text = " ".join(
        f"No worker that serves queue '{one['queue']}' knows the type '{one['type']}'."
        for one in known[:NAMED]
    )
    if len(known) > NAMED:
        text += " There are more such types."
    return Finding("handlers", False, text, {"unknown": known})


def check_clock(wait: float | None) -> Finding:
    known = {"seconds": wait}
    if wait is None or wait <= OVERDUE:
        return Finding("clock", True, "No lapsed lease or due task is left unprocessed.", known)
    sentence = f"Lapsed leases or due tasks have not been processed for {long_duration(wait)}."
    return Finding("clock", False, sentence, known)


def check_counters(using: str) -> Finding:
    """Report how long ago a worker last had to correct a counter of what runs."""
    drifted = Worker.objects.using(using).filter(drifted_at__isnull=False)
    row = drifted.order_by("-drifted_at").values_list(ServerNow(), "drifted_at").first()
    ago = None if row is None else float((row[0] - row[1]).total_seconds())
    known = {"seconds": ago}
    if ago is None or ago > LATELY:
        return Finding("counters", True, "The counters agree with what runs.", known)
    sentence = (
        "Counters did not agree with what runs and were corrected, the last one"
        f" {long_duration(ago)} ago; the log of the workers names them."
    )
    return Finding("counters", False, sentence, known)


def check_upkeep(workers: Sequence[Worker]) -> Finding:
    """Report what the workers' upkeep has failed to do lately, for what is in some row."""
    problems = list(dict.fromkeys(worker.problem for worker in workers if worker.problem))
    if problems:
        sentence = "The workers can't do all of their upkeep."
        return Finding("upkeep", False, sentence, detail=" ".join(problems[:NAMED]))
    return Finding("upkeep", True, "The workers do all of their upkeep.")


def check_schedules(using: str) -> Iterator[Finding]:
    """Yield each schedule that is broken or late, or else that none is."""
    found = list(problems_of(using=using))
    for row, sentence in found:
        known = {"schedule": row.name, "problem": row.problem or None}
        yield Finding("schedules", False, sentence, known)
    if not found:
        yield Finding("schedules", True, "No schedule is broken or late.")


def check_blocked(using: str) -> Finding:
    """Report the tasks held up by others that failed; that is for a person, and no failure."""
    count, pair = held_up(using=using)
    keys = {"parent": None, "batch": None, "child": None, **pair}
    sentence, detail = "No task waits for one that has failed.", ""
    if count:
        wait = "task waits for one that has" if count == 1 else "tasks wait for tasks that have"
        sentence = f"{count} {wait} failed."
        what = f"'{keys['parent']}'"
        if "batch" in pair:
            what = f"batch '{keys['batch']}', which ended with tasks that have failed"
        detail = (
            f"'{keys['child']}' waits for {what}: retry what has failed, or cancel the other. In a"
            " sequence delete what has failed, as the next one waits for a cancelled one, too."
        )
    return Finding("blocked", True, sentence, {"count": count}, detail, keys)


def check_limits(using: str) -> Finding:
    """
    Report names that the newest tasks list and no limit holds for; that may be intended, and
    is no failure.
    """
    newest = Task.objects.using(using).order_by("-pk").values_list("limits", flat=True)[:LATEST]
    listed = {name for limits in set(newest) for name in split(limits)}
    held = known_limits(named(listed), using=using) if listed else set()
    unknown = sorted(name for name in listed if key_of("name", name) not in held)
    if not unknown:
        return Finding("limits", True, "Every limit that the newest tasks list exists.")
    sentence = f"The newest tasks list limits that do not exist, and limit nothing: {len(unknown)}."
    quoted = ", ".join(f"'{name}'" for name in unknown[:NAMED])
    detail = f"Set them by pq_limit set name:NAME, or a family: {quoted}."
    return Finding("limits", True, sentence, {"count": len(unknown)}, detail)


def check_pauses(using: str) -> Finding:
    """Report what people have paused: a pause may be forgotten. That is no failure."""
    users = FairShare.objects.using(using).filter(paused=True).values_list("user", flat=True)
    limits = Limit.objects.using(using).filter(paused=True)
    paused = [f"user '{printable(user)}'" for user in users[:LATEST]]
    paused += [printable(limit.key) for limit in limits[:LATEST]]
    sentence = f"What is paused: {len(paused)}." if paused else "Nothing is paused."
    known = {"count": len(paused)}
    return Finding("pauses", True, sentence, known, ", ".join(paused[:NAMED]))


def seconds(text: str) -> float:
    """
    Return a number of seconds.

    Raise ValueError for anything else.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"must be a number of seconds, not {text!r}")
    return number
