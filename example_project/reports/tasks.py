"""
What the worker runs. A task may be run again, and then writes the same once more.

The first two are tasks of Django's. A handler of the queue's own decides what becomes of an
upload, and another is the callback of a batch.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction
from django.utils import timezone

from django_perfectqueue.application import Application, Decider, handler
from django_perfectqueue.backend import task
from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.queue import AcquiredTask
from django_perfectqueue.schedules import every, scheduled

from .drawing import draw
from .models import Report, Upload
from .sales import DefectError, read_sales
from .statistics import summarise


@task(max_attempts=5)
def draw_chart(*, upload: int) -> dict[str, Any]:
    """Draw the chart of an upload's figures."""
    report = Report.objects.select_related("upload__customer").get(upload=upload)
    chart = draw(f"{report.upload.customer}, {report.upload.name}", report.figures)
    file = f"{Path(report.upload.name).stem}.{report.upload.pk}.svg"
    report.chart.save(file, ContentFile(chart), save=False)
    report.finished_at = timezone.now()
    report.save()
    return {"chart": report.chart.name}


@scheduled(every("15s"), user="chartroom")
@task
def count() -> dict[str, int]:
    """Count the finished reports at each tick."""
    return {"reports": Report.objects.filter(finished_at__isnull=False).count()}


class SummaryDecider(Decider):
    """
    What becomes of an upload.

    A defect will be in the file the next time too, so it is not tried again. For any
    other error the decision is Decider's own: to try again, later and later.
    """

    def defect_found(self, defect: DefectError) -> None:
        self.task.fail("DefectError", str(defect))

    def not_approved(self, answer: Any) -> None:
        why = f"{answer.get('by')} refused" if answer else "Nobody approved within a day"
        self.task.fail("NotApproved", f"{why}: the file is large.")

    def figures_found(self, upload: Upload, figures: dict[str, Any]) -> None:
        """Store the figures and submit the next task: both, or neither."""
        with transaction.atomic():
            store(upload, figures)
            drawing = draw_chart.using(
                key=upload.draw_key,
                user=self.task.user,
                priority=1,
                batch=self.task.batch,
            )
            # A second attempt finds the task of the first.
            with contextlib.suppress(AlreadyExistsError):
                drawing.enqueue(upload=upload.pk)


@handler("reports.summarise", signals={"approval": {"approved": "Approve", "refused": "Refuse"}})
class Summarise(Application):
    """
    Read an upload, store its figures, and have its chart drawn.

    A large one waits until someone approves of it in the admin, and holds no worker meanwhile.
    """

    decider = SummaryDecider

    def perform(self) -> Any:
        upload = Upload.objects.select_related("customer").get(pk=self.task.data["upload"])
        if upload.is_large:
            answer: Any = self.task.wait_for("approval", timeout="1d")
            if not answer or answer.get("answer") != "approved":
                return self.decide("not_approved", answer=answer)
        with upload.file.open() as file:
            content = file.read()
        try:
            sales = read_sales(content)
        except DefectError as defect:
            return self.decide("defect_found", defect=defect)
        self.task.progress(1, "file read", of=2)
        figures = summarise(sales, resamples=settings.CHARTROOM_RESAMPLES)
        self.decide("figures_found", upload=upload, figures=figures)
        return {"rows": figures["rows"], "total": figures["total"]}


@handler("reports.close")
def close(task: AcquiredTask) -> dict[str, int]:
    """Count the charts of a batch; it runs once, when all of its tasks have ended."""
    results = task.closes.results() if task.closes else []
    return {"charts": sum("chart" in result for _key, result in results)}


def store(upload: Upload, figures: dict[str, Any]) -> None:
    columns = {name: figures[name] for name in ("rows", "total", "low", "high")}
    Report.objects.update_or_create(upload=upload, defaults={**columns, "figures": figures})
