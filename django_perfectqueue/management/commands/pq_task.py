from __future__ import annotations

from ..flags import FILTERS, MANY
from ..listing import list_tasks
from ..show import show_tasks
from ..steering import to_each, to_many
from ..verbs import NounCommand, Verb

STEERED = (*FILTERS, "--all", *MANY, "--rate", "--run-in")
PRIORITY = {
    "type": int,
    "metavar": "N",
    "help": "Larger goes first among the tasks of the same user.",
}


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
        "list": Verb(
            call=list_tasks,
            help="List tasks, the newest first.",
            flags=(*FILTERS, "--after", "--oldest-first", "--data"),
        ),
        "show": Verb(
            call=show_tasks,
            help="Show where tasks stand, their attempts, data, logs and results.",
            names="+",
            flags=("--queue", "--no-data", "--log"),
        ),
        "retry": Verb(
            call=to_many("retry"),
            help="Put failed, cancelled and expired tasks back, and hasten those that wait.",
            names="*",
            flags=(*STEERED, "--to", "--patch", "--with-dependents"),
        ),
        "cancel": Verb(
            call=to_many("cancel"),
            help="Cancel tasks that have yet to run, and ask running ones to stop.",
            names="*",
            flags=(*STEERED, "--with-dependents"),
        ),
        "finish": Verb(
            call=to_each("finish"),
            help="Close tasks as finished, even while they run.",
            names="+",
            flags=("--queue",),
        ),
        "move": Verb(
            call=to_many("move"),
            help="Move tasks that wait or have failed to another queue.",
            names="*",
            flags=STEERED,
            required=("--to",),
        ),
        "edit": Verb(
            call=to_many("edit"),
            help="Change the data of tasks that wait or have failed.",
            names="*",
            flags=STEERED,
            required=("--patch",),
        ),
        "copy": Verb(
            call=to_each("copy"),
            help="Submit copies of tasks, due at once, each with a new key.",
            names="+",
            flags=("--queue",),
        ),
        "priority": Verb(
            call=to_each("priority"),
            help="Give tasks that have not ended another priority.",
            names="+",
            flags=("--queue",),
            values=(("priority", PRIORITY),),
        ),
        "delete": Verb(
            call=to_many("delete"),
            help="Delete tasks that have ended; without --status those that did not finish.",
            names="*",
            flags=STEERED,
        ),
    }
