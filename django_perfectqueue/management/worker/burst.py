"""A worker inside of another command."""

from __future__ import annotations

from django.core.management import call_command

from ..base import QueueCommand


def run_burst(command: QueueCommand, *, verbosity: int) -> None:
    """Run what is due in the queue of a command, as ``pq_worker --burst`` does."""
    command.stdout.flush()
    call_command(
        "pq_worker",
        queues=[command.queue.name],
        database=command.queue.using,
        burst=True,
        verbosity=verbosity,
        stdout=command.stdout,
        stderr=command.stderr,
    )
