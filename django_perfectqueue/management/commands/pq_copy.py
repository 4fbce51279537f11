from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import TaskHandle

from ..queues.rule_command import person
from ..tasks.single import SteeringCommand


class Command(SteeringCommand):
    summary = gettext_lazy(
        "Submits copies of tasks, due at once, each with a new key: the same type, data, user,"
        " priority, limits and time limit."
    )
    signs = False

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        copy = task.copy(by=person())
        text = _("Task '%(copy)s' is a copy of '%(key)s'.") % {"copy": copy.key, "key": task.key}
        return text, copy.key
