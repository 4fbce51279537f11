from __future__ import annotations

from typing import Literal

from django_perfectqueue import models, store
from django_perfectqueue.bulk import Operation, Preview
from django_perfectqueue.bulk.selection import ANY, SAMPLE
from django_perfectqueue.inspection import steering
from django_perfectqueue.inspection.family import (
    BATCH_STATES,
    COUNTED,
    callbacks,
    counts,
    exact,
    members,
    state_of,
)
from django_perfectqueue.lib.printable import on_one_line
from django_perfectqueue.models import Task, TaskQuerySet
from django_perfectqueue.queue import Batch

from ..base import CommandOptions
from ..facts import Facts, batch_facts, counted, link_facts, listed, picked
from ..flags import MANY, person
from ..listing import batch_of
from ..steering import DONE, print_preview
from ..steering import counted as told
from ..terminal import Column, bar, local
from ..verbs import NounCommand, Subcommand, first_rows

# In the histories of so many tasks it is written who steered their batch.
SIGNED = 500


def list_batches(command: NounCommand, options: CommandOptions) -> None:
    """List them, the newest first."""
    rows = models.Batch.objects.using(command.queue.using).order_by("-pk")
    if options["queue"]:
        rows = rows.filter(queue=command.queue.name)
    found, more = first_rows(rows, options["first"])
    found = exact(found, using=command.queue.using)
    none = "There are no batches."
    command.print_listing(found, for_programs, columns(), more=more, none=none)


def show(command: NounCommand, options: CommandOptions) -> None:
    """Show their progress, callbacks, and tasks that have not finished."""
    for name in options["names"]:
        show_one(command, batch_of(command.queue, name))


def show_one(command: NounCommand, batch: Batch) -> None:
    rows = models.Batch.objects.using(batch.using).filter(pk=batch.id)
    [row] = exact(rows, using=batch.using)
    ids = store.dependencies.batches_within(batch.id, using=batch.using)
    called = callbacks(batch.id, using=batch.using)
    statuses = counts(members(ids, using=batch.using))
    inner = batch.inner()
    if command.as_json:
        command.print_json(
            {
                **batch_facts(batch),
                **picked(row, "created_at", "ended_at", "stopped"),
                "statuses": statuses,
                "batches": [batch_facts(one) for one in inner],
                "callbacks": [{**one.facts(), **link_facts(link)} for one, link in called],
            }
        )
        return
    command.print_title(f"Batch '{batch.name}' in queue '{batch.queue.name}'")
    command.print_field("status", str(BATCH_STATES[state_of(row)]))
    command.print_field("progress", f"{bar(batch.progress().part)}, {counted(batch)}")
    if statuses:
        command.print_field("statuses", in_words(statuses))
    if batch.user:
        command.print_field("user", on_one_line(batch.user))
    command.print_field("created", local(row.created_at))
    if row.ended_at:
        command.print_field("ended", local(row.ended_at))
    for one in inner:
        command.print_field("has batch", on_one_line(f"{one.name}: {counted(one)}"))
    for pair in called:
        command.print_field("callback", on_one_line(listed([pair], more=False)))
    print_sample(command, members(ids, using=batch.using).exclude(outcome="finished"))


def cancel(command: NounCommand, options: CommandOptions) -> None:
    """Take no more tasks, cancel those that wait, ask the others to stop."""
    steer("cancel", command, options)


def retry(command: NounCommand, options: CommandOptions) -> None:
    """Put their failed, cancelled and expired tasks back."""
    steer("retry", command, options)


def steer(verb: Literal["cancel", "retry"], command: NounCommand, options: CommandOptions) -> None:
    """Cancel them, or put their dead tasks back."""
    for name in options["names"]:
        steer_one(verb, command, batch_of(command.queue, name))


def steer_one(verb: Literal["cancel", "retry"], command: NounCommand, batch: Batch) -> None:
    ids = store.dependencies.batches_within(batch.id, using=batch.using)
    tasks = members(ids, using=batch.using).filter(ANY[verb])
    statuses = counts(tasks)
    total = sum(statuses.values())
    if command.options["dry_run"]:
        by_status = list(statuses.items())
        sample = list(tasks.order_by("pk")[:SAMPLE])
        found = Preview(total=total, statuses=by_status, users=[], sample=sample, until=0)
        print_preview(command, Operation(verb=verb), found)
        return
    command.confirm(f"Batch '{batch.name}': {told(f'would {verb}', total)}")
    names = list(tasks.order_by("pk").values_list("queue", "key")[:SIGNED])
    facts: Facts = {"name": batch.name, "done": DONE[verb][0]}
    if verb == "cancel":
        count, asked = batch.cancel_request()
        facts |= {"tasks": count, "asked": asked}
    else:
        count, asked = batch.retry(), 0
        facts["tasks"] = count
    steering.sign(names, DONE[verb][-1], by=person(), using=batch.using)
    text = told(DONE[verb][0], count)
    command.answer(facts, f"{text} {told('requested', asked)}" if asked else text)


def print_sample(command: NounCommand, tasks: TaskQuerySet) -> None:
    command.print_table(
        [
            Column[Task]("task", lambda task: task.key, elastic=True),
            Column("status", lambda task: task.status),
            Column("type", lambda task: task.type, elastic=True, spare=True),
            Column("user", lambda task: task.user, elastic=True, spare=True),
        ],
        tasks.order_by("pk")[:SAMPLE],
        indent="  ",
    )


def for_programs(row: models.Batch) -> Facts:
    facts = picked(row, "name", "id", "queue", "user", "total", "finished", "dead")
    times = picked(row, "created_at", "ended_at", "stopped")
    return {**facts, "status": state_of(row), **times}


def columns() -> list[Column[models.Batch]]:
    return [
        Column("batch", lambda row: row.name, elastic=True),
        Column("queue", lambda row: row.queue, elastic=True, spare=True),
        Column("user", lambda row: row.user or "-", elastic=True, spare=True),
        Column("status", lambda row: str(BATCH_STATES[state_of(row)])),
        Column("tasks", lambda row: str(row.total), right=True),
        Column("finished", lambda row: str(row.finished), right=True),
        Column("dead", lambda row: str(row.dead), right=True),
        Column("created", lambda row: local(row.created_at), spare=True),
    ]


def in_words(statuses: dict[str, int]) -> str:
    """Return counts by status in a line; of more than COUNTED tasks they are at least so many."""
    words = ", ".join(f"{count} {status}" for status, count in statuses.items())
    if sum(statuses.values()) < COUNTED:
        return words
    return f"{words}, among the first {COUNTED}"


class Command(NounCommand):
    summary = "Shows batches of tasks, cancels them and retries their failed tasks."
    metavar = "BATCH"
    name_help = "Name of a batch."
    examples = (
        "pq_batch list",
        "pq_batch show nightly",
        "pq_batch cancel nightly --dry-run",
        "pq_batch retry nightly --yes",
    )
    verbs = {
        "list": Subcommand(list_batches, flags="--queue --first"),
        "show": Subcommand(show, "+", "--queue"),
        "cancel": Subcommand(cancel, "+", f"--queue {MANY}"),
        "retry": Subcommand(retry, "+", f"--queue {MANY}"),
    }
