from __future__ import annotations

from django.core.management.base import CommandParser

from ..tasks.bulk import SelectingCommand


class Command(SelectingCommand):
    summary = (
        "Moves tasks that wait or have failed to another queue, with all that is known of them."
    )
    verb = "move"
    terms = ("to",)

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--to", metavar="QUEUE", required=True, help="The other queue.")
