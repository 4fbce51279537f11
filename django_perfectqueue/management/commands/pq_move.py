from __future__ import annotations

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import TaskHandle

from ..base import CommandOptions
from ..queues.rule_command import person
from ..tasks.revising import RevisingCommand


class Command(RevisingCommand):
    summary = gettext_lazy(
        "Moves tasks that wait or have failed to another queue, with all that is known of them."
    )
    verb = "move"
    terms = ("to",)
    to: str

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--group", metavar="ERROR", help=_("Every task that ended for this reason."))
        add("--to", metavar="QUEUE", required=True, help=_("The other queue."))

    def act(self, options: CommandOptions) -> None:
        self.to = options["to"]
        super().act(options)

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        task.move(self.to, by=person())
        sentence = _("Task '%(key)s' is in queue '%(queue)s'.")
        return sentence % {"key": task.key, "queue": self.to}, "moved"
