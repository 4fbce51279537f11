"""The backend under test, with what Django's tests look at beside the contract."""

from django_perfectqueue.backend import PerfectQueueBackend
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue

from ..backend.inline import run_due


class Inspected(PerfectQueueBackend):
    """In the place of the Dummy backend, which keeps its results in a list."""

    @property
    def results(self):
        keys = Task.objects.using(self.using).order_by("id").values_list("key", flat=True)
        return [self.get_result(key) for key in list(keys)]

    def clear(self):
        for name in distinct(Task.objects.using(self.using), "queue", limit=None):
            Queue(name, using=self.using).clear()


class Inline(PerfectQueueBackend):
    """In the place of the Immediate backend: a worker runs each task at once."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        run_due(queue=task.queue_name, using=self.using)
        result.refresh()
        return result
