from __future__ import annotations

from collections.abc import Iterable

from django_perfectqueue import store
from django_perfectqueue.models import TaskQuerySet

from ..tasks.bulk import PAGE
from ..tasks.together import TogetherCommand


class Command(TogetherCommand):
    summary = "Cancels tasks that have yet to run, and asks running ones to stop."
    verb = "cancel"
    choices = ("all", "type", "user", "tag", "since", "until")
    all_help = "Every task that has not ended, or only those with --status."

    def keys_of(self, tasks: TaskQuerySet) -> Iterable[str]:
        names, using = dict(tasks.values_list("pk", "key")), self.queue.using
        for start in range(0, len(names), PAGE):
            some = list(names)[start : start + PAGE]
            awaited = store.choose(some, using=using, among=names.keys().__and__).awaited
            yield from (names[id_] for id_ in some if id_ not in awaited)
