"""What a bulk operation would do, on a terminal."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError

from django.core.management.base import CommandParser

from django_perfectqueue.bulk import Operation, preview
from django_perfectqueue.exceptions import PayloadError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Task
from django_perfectqueue.payload.merge import merged
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.payload.redaction import masked

from ..base import QueueCommand

NOBODY = "-"


def add_change_options(parser: CommandParser) -> None:
    """Add what changes a task before it is put back."""
    add = parser.add_argument
    add("--to", metavar="QUEUE", help="Move them to this queue first.")
    add(
        "--patch",
        type=merge_patch,
        metavar="JSON",
        help="Change their data first, by a JSON merge patch (RFC 7386).",
    )


def add_times(parser: CommandParser) -> None:
    """Add the times between which a task ended, or was submitted and has not ended."""
    text = "Those that ended, or if they have not were submitted, %s: 2h ago, 10:00, ISO 8601."
    parser.add_argument("--since", metavar="TIME", help=text % "at or after this time")
    parser.add_argument("--until", metavar="TIME", help=text % "before this time")


def merge_patch(text: str) -> JSON:
    """Return the value of an option; null is none, since that stands for no patch."""
    try:
        patch: JSON = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON: {error}") from error
    if patch is None:
        raise ArgumentTypeError("must say what to change: null changes nothing")
    return patch


def print_preview(command: QueueCommand, operation: Operation) -> None:
    """Print how many tasks match, by status and user, and a sample; with a patch its effect."""
    found = preview(operation.verb, operation.selection, using=command.queue.using)
    rows = [sample_row(task, operation.patch) for task in found.sample]
    if command.as_json:
        facts: dict[str, object] = {"total": found.total, "is_bounded": found.is_bounded}
        facts |= {"statuses": dict(found.statuses), "users": dict(found.users), "sample": rows}
        command.print_json(facts)
        return
    total = f"{found.total:,}{'+' if found.is_bounded else ''}"
    command.say(f"{total} tasks match: {operation.verb}.")
    for title, counts in (("By status", found.statuses), ("By user", found.users)):
        each = ", ".join(f"{printable(name) or NOBODY} {count:,}" for name, count in counts)
        command.say(f"{title}: {each or NOBODY}")
    for row in rows:
        command.say("  " + printable("  ".join(map(str, row.values()))))


def sample_row(task: Task, patch: JSON) -> dict[str, object]:
    row: dict[str, object] = {"key": task.key, "status": task.status, "user": task.user}
    if patch is not None:
        row |= before_and_after(task, patch)
    return row


def before_and_after(task: Task, patch: JSON) -> dict[str, object]:
    """Return its data before and after, without what is sensitive."""
    try:
        values = task.data, merged(task.data, patch)
    except PayloadError as error:
        return {"problem": str(error)}
    return {name: dump(value) for name, value in zip(("before", "after"), values, strict=True)}


def dump(value: JSON) -> str:
    return json.dumps(masked(value), ensure_ascii=False, default=str)
