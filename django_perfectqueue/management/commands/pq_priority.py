from __future__ import annotations

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import TaskHandle

from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    summary = gettext_lazy(
        "Gives tasks that have yet to end another priority. One that is running goes on; the"
        " priority holds if it is tried again."
    )

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "priority", type=int, metavar="N", help=_("Larger goes first among its user's.")
        )

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        words = {"key": task.key, "priority": self.options["priority"]}
        task.set_priority(words["priority"])
        return _("Task '%(key)s' has the priority %(priority)s.") % words, "reprioritized"
