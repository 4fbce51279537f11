from __future__ import annotations

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import TaskHandle

from ..queues.rule_command import person
from ..tasks.bulk import SelectingCommand


class Command(SelectingCommand):
    summary = gettext_lazy(
        "Moves tasks that wait or have failed to another queue, with all that is known of them."
    )
    verb = "move"
    signs = False
    terms = ("to",)

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--to", metavar="QUEUE", required=True, help=_("The other queue."))

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        task.move(self.options["to"], by=person())
        sentence = _("Task '%(key)s' is in queue '%(queue)s'.")
        return sentence % {"key": task.key, "queue": self.options["to"]}, "moved"
