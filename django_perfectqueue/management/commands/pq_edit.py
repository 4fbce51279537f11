from __future__ import annotations

from django.core.management.base import CommandParser

from django_perfectqueue.queue import TaskHandle

from ..queues.rule_command import person
from ..tasks.bulk import SelectingCommand
from ..tasks.bulk_preview import merge_patch


class Command(SelectingCommand):
    summary = "Changes the data of tasks that wait or have failed."
    verb = "edit"
    signs = False
    terms = ("patch",)

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        help_text = "A JSON merge patch (RFC 7386): null takes a member away."
        add("--patch", type=merge_patch, metavar="JSON", required=True, help=help_text)

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        task.edit_data(self.options["patch"], by=person())
        return f"The data of task '{task.key}' are changed.", "edited"
