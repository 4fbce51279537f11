from __future__ import annotations

from typing import Literal

from django_perfectqueue import models, store
from django_perfectqueue.bulk import Operation
from django_perfectqueue.bulk.selection import ANY, SAMPLE, seen
from django_perfectqueue.inspection import family
from django_perfectqueue.queue import Batch

from .. import facts
from ..base import CommandOptions
from ..flags import MANY, person
from ..listing import batch_named
from ..terminal import Column, bar, picked, unseen
from ..verbs import NounCommand, Subcommand
from . import pq_task

# In the histories of so many tasks it is written who steered their batch.
SIGNED = 500
COLUMNS: list[Column[models.Batch]] = [
    Column("batch", "name", elastic=True),
    Column("queue", "queue", elastic=True, spare=True),
    Column("user", "user", elastic=True, spare=True),
    Column(
        "status", "status", family.state_of, lambda row: family.BATCH_STATES[family.state_of(row)]
    ),
    Column("tasks", "total", right=True),
    Column("finished", "finished", right=True),
    Column("dead", "dead", right=True),
    Column("created", "created_at", spare=True),
    *unseen("id", "ended_at", "stopped"),
]


def list_batches(command: NounCommand, options: CommandOptions) -> None:
    """List them, the newest first."""
    rows = family.summed(models.Batch.objects.using(command.queue.using)).order_by("-pk")
    if options["queue"]:
        rows = rows.filter(queue=command.queue.name)
    command.print_listing(rows, COLUMNS, none="There are no batches.", prepare=family.exact)


def show(command: NounCommand, options: CommandOptions) -> None:
    """Show their progress, callbacks, and tasks that have not finished."""
    using = command.queue.using
    for batch in named(command):
        [row] = family.exact(family.summed(models.Batch.objects.using(using).filter(pk=batch.id)))
        called = family.callbacks(batch.id, using=using)
        within = store.dependencies.batches_within(batch.id, using=using)
        tasks = family.members(within, using=using)
        statuses, inner = family.counts(tasks), batch.inner()
        if command.as_json:
            found = facts.batch_facts(batch) | picked(row, "created_at", "ended_at", "stopped")
            found |= {"statuses": statuses, "batches": [facts.batch_facts(one) for one in inner]}
            command.print_json(found | {"callbacks": facts.relative_facts(called)})
            continue
        command.print_title(f"Batch '{batch.name}' in queue '{batch.queue.name}'")
        command.print_fields(
            [
                ("status", family.BATCH_STATES[family.state_of(row)]),
                ("progress", f"{bar(batch.progress().part)}, {facts.counted(batch)}"),
                ("statuses", in_words(statuses)),
                ("user", batch.user),
                ("created", row.created_at),
                ("ended", row.ended_at),
                *(("has batch", f"{one.name}: {facts.counted(one)}") for one in inner),
                *(("callback", facts.listed([pair], more=False)) for pair in called),
            ]
        )
        unfinished = tasks.exclude(outcome="finished").order_by("pk")[:SAMPLE]
        pq_task.print_sample(command, map(pq_task.sample_row, unfinished))


def named(command: NounCommand) -> list[Batch]:
    return [batch_named(command.queue, name) for name in command.options["names"]]


def cancel(command: NounCommand, options: CommandOptions) -> None:
    """Take no more tasks, cancel those that wait, ask the others to stop."""
    steer("cancel", command)


def retry(command: NounCommand, options: CommandOptions) -> None:
    """Put their failed, cancelled and expired tasks back."""
    steer("retry", command)


def steer(verb: Literal["cancel", "retry"], command: NounCommand) -> None:
    using = command.queue.using
    for batch in named(command):
        ids = store.dependencies.batches_within(batch.id, using=using)
        tasks = family.members(ids, using=using).filter(ANY[verb]).order_by("pk")
        found = seen(tasks)
        if command.options["dry_run"]:
            pq_task.print_preview(command, Operation(verb=verb), found)
            continue
        command.confirm(f"Batch '{batch.name}': {pq_task.counted(f'would {verb}', found.total)}")
        names = list(tasks.values_list("queue", "key")[:SIGNED])
        count, asked = batch.cancel_request() if verb == "cancel" else (batch.retry(), 0)
        store.records.sign(names, pq_task.DONE[verb][-1], by=person(), using=using)
        word = pq_task.DONE[verb][0]
        done = {"name": batch.name, "done": word, "tasks": count}
        text = pq_task.counted(word, count)
        if asked:
            text += f" {pq_task.counted('requested', asked)}"
        command.answer(done | ({"asked": asked} if verb == "cancel" else {}), text)


def in_words(statuses: dict[str, int]) -> str:
    """Return counts by status in a line; of more than COUNTED tasks they are at least so many."""
    words = ", ".join(f"{count} {status}" for status, count in statuses.items())
    bounded = sum(statuses.values()) >= family.COUNTED
    return f"{words}, among the first {family.COUNTED}" if bounded else words


class Command(NounCommand):
    help = "Shows batches of tasks, cancels them and retries their failed tasks."
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
