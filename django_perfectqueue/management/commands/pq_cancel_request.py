from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from django_perfectqueue import store
from django_perfectqueue.models import TaskQuerySet

from ..tasks.bulk import PAGE
from ..tasks.together import TogetherCommand


class Command(TogetherCommand):
    fitting = Q(ticket__isnull=False)
    summary = "Cancels tasks that have yet to run, and asks running ones to stop."
    outcomes = ("cancelled", "requested")
    verb = "cancel"
    choices = ("all", "type", "user", "tag", "since", "until")
    all_help = "Every task that has not ended, or only those with --status."

    def keys_of(self, tasks: TaskQuerySet) -> Iterable[str]:
        names, using = dict(tasks.values_list("pk", "key")), self.queue.using
        for start in range(0, len(names), PAGE):
            some = list(names)[start : start + PAGE]
            awaited = store.choose(some, using=using, among=names.keys().__and__).awaited
            yield from (names[id_] for id_ in some if id_ not in awaited)

    def summary_of(self, done: dict[str, int], *, dry: bool = False) -> str:
        count = sum(done.values())
        if dry:
            text = "%s task would be cancelled." if count == 1 else "%s tasks would be cancelled."
            return text % count
        asked = done.get("requested", 0)
        cancelled = count - asked
        text = "%s task is cancelled." if cancelled == 1 else "%s tasks are cancelled."
        sentence = text % cancelled
        if asked:
            text = (
                "%s is held by a processor, and is asked to stop."
                if asked == 1
                else "%s are held by processors, and are asked to stop."
            )
            sentence += " " + text % asked
        return sentence
