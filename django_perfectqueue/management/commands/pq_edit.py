from __future__ import annotations

from django.core.management.base import CommandParser

from ..tasks.bulk import SelectingCommand
from ..tasks.bulk_preview import merge_patch


class Command(SelectingCommand):
    summary = "Changes the data of tasks that wait or have failed."
    verb = "edit"
    terms = ("patch",)

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        help_text = "A JSON merge patch (RFC 7386): null takes a member away."
        add("--patch", type=merge_patch, metavar="JSON", required=True, help=help_text)
