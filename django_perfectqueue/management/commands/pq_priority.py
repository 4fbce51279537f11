from __future__ import annotations

from django.core.management.base import CommandParser

from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    verb = "priority"
    summary = (
        "Gives tasks that have yet to end another priority. One that is running goes on; the"
        " priority holds if it is tried again."
    )

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "priority", type=int, metavar="N", help="Larger goes first among its user's."
        )
