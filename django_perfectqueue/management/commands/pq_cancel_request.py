from __future__ import annotations

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue import store
from django_perfectqueue.queue import TaskHandle

from ..tasks.together import TogetherCommand


class Command(TogetherCommand):
    fitting = Q(ticket__isnull=False)
    summary = gettext_lazy("Cancels tasks that have yet to run, and asks running ones to stop.")
    outcomes = ("cancelled", "requested")
    verb = "cancel"
    choices = ("all", "type", "user", "tag")
    all_help = gettext_lazy("Every task that has not ended, or only those with --status.")

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        if task.cancel_request():
            return _("Task '%s' is cancelled.") % task.key, "cancelled"
        return _("Task '%s' is running, and is asked to stop.") % task.key, "requested"

    def steer_id(self, task_id: int) -> str:
        cancelled = store.cancel_one(task_id, using=self.queue.using)
        return "cancelled" if cancelled else "requested"

    def summary_of(self, done: dict[str, int], *, dry: bool = False) -> str:
        count = sum(done.values())
        if dry:
            text = ngettext("%s task would be cancelled.", "%s tasks would be cancelled.", count)
            return text % count
        asked = done.get("requested", 0)
        cancelled = count - asked
        text = ngettext("%s task is cancelled.", "%s tasks are cancelled.", cancelled)
        sentence = text % cancelled
        if asked:
            text = ngettext(
                "%s is running, and is asked to stop.",
                "%s are running, and are asked to stop.",
                asked,
            )
            sentence += " " + text % asked
        return sentence
