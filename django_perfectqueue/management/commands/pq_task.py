from __future__ import annotations

from ..base import CommandOptions
from ..flags import FILTERS, MANY
from ..listing import list_tasks
from ..show import show_tasks
from ..steering import steer, steer_each
from ..verbs import NounCommand, Subcommand

STEERED = f"{FILTERS} --all {MANY} --rate --run-in"
PRIORITY = {
    "type": int,
    "metavar": "N",
    "help": "Larger goes first among the tasks of the same user.",
}


def retry(command: NounCommand, options: CommandOptions) -> None:
    """Put failed, cancelled and expired tasks back, and hasten those that wait."""
    steer("retry", command, options)


def cancel(command: NounCommand, options: CommandOptions) -> None:
    """Cancel tasks that have yet to run, and ask running ones to stop."""
    steer("cancel", command, options)


def finish(command: NounCommand, options: CommandOptions) -> None:
    """Close tasks as finished, even while they run."""
    steer_each("finish", command, options)


def move(command: NounCommand, options: CommandOptions) -> None:
    """Move tasks that wait or have failed to another queue."""
    steer("move", command, options)


def edit(command: NounCommand, options: CommandOptions) -> None:
    """Change the data of tasks that wait or have failed."""
    steer("edit", command, options)


def copy(command: NounCommand, options: CommandOptions) -> None:
    """Submit copies of tasks, due at once, each with a new key."""
    steer_each("copy", command, options)


def priority(command: NounCommand, options: CommandOptions) -> None:
    """Give tasks that have not ended another priority."""
    steer_each("priority", command, options)


def delete(command: NounCommand, options: CommandOptions) -> None:
    """Delete tasks that have ended; without --status those that did not finish."""
    steer("delete", command, options)


class Command(NounCommand):
    summary = "Lists, shows and changes the tasks of a queue."
    metavar = "KEY"
    name_help = "Key of a task; show takes an id, too."
    label_width = 22
    examples = (
        "pq_task list --status failed --since 2h",
        "pq_task show order-42",
        "pq_task retry order-42 order-43",
        "pq_task retry --type report.draw --since 10:00 --rate 50/s --dry-run",
        "pq_task cancel --user acme --yes",
        "pq_task delete --status finished --until 30d --yes",
    )
    verbs = {
        "list": Subcommand(list_tasks, flags=f"{FILTERS} --after --oldest-first --data"),
        "show": Subcommand(show_tasks, "+", "--queue --no-data --log"),
        "retry": Subcommand(retry, "*", f"{STEERED} --to --patch --with-dependents"),
        "cancel": Subcommand(cancel, "*", f"{STEERED} --with-dependents"),
        "finish": Subcommand(finish, "+", "--queue"),
        "move": Subcommand(move, "*", f"{STEERED} --to!"),
        "edit": Subcommand(edit, "*", f"{STEERED} --patch!"),
        "copy": Subcommand(copy, "+", "--queue"),
        "priority": Subcommand(priority, "+", "--queue", values=(("priority", PRIORITY),)),
        "delete": Subcommand(delete, "*", STEERED),
    }
