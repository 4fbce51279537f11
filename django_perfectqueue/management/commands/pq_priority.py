from __future__ import annotations

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import TaskHandle

from ..base import CommandOptions
from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    summary = gettext_lazy(
        "Gives tasks that have yet to end another priority. One that is running goes on; the"
        " priority holds if it is tried again."
    )
    priority: int

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "priority", type=int, metavar="N", help=_("Larger goes first among its user's.")
        )

    def act(self, options: CommandOptions) -> None:
        self.priority = options["priority"]
        super().act(options)

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        task.set_priority(self.priority)
        sentence = _("Task '%(key)s' has the priority %(priority)s.")
        return sentence % {"key": task.key, "priority": self.priority}, "reprioritized"
