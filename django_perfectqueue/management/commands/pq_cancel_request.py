from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.queue import Task

from ..steering import SteeringCommand


class Command(SteeringCommand):
    summary = gettext_lazy("Cancels tasks that have yet to run, and asks running ones to stop.")

    def steer(self, task: Task) -> tuple[str, str]:
        if task.cancel_request():
            return _("Task '%s' is cancelled.") % task.key, "cancelled"
        return _("Task '%s' is running, and is asked to stop.") % task.key, "requested"
