from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from django_perfectqueue.models import FairShare, Status, Task

from .forms import UploadForm
from .intake import receive
from .models import Customer, Report, Upload
from .standings import tasks_of

NEWEST = 200
SHOWN = 4


@dataclass(frozen=True)
class Entry:
    """An upload as the page shows it: with its chart, or with what became of its task."""

    upload: Upload
    report: Report | None = None
    status: str = Status.FINISHED
    task: Task | None = None


def overview(request: HttpRequest) -> HttpResponse:
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        file = form.cleaned_data["file"]
        upload = receive(form.cleaned_data["customer"], file, name=file.name)
        messages.success(request, f"{upload} is in the queue.")
        return redirect("reports:customer", slug=upload.customer.slug)
    shelves = [shelf(one, shown=SHOWN) for one in Customer.objects.all()]
    return render(request, "reports/overview.html", {"form": form, "shelves": shelves})


def customer(request: HttpRequest, slug: str) -> HttpResponse:
    chosen = get_object_or_404(Customer, slug=slug)
    return render(request, "reports/customer.html", {"shelf": shelf(chosen)})


def shelf(customer: Customer, shown: int | None = None) -> dict[str, object]:
    entries = entries_of(customer)
    charts = [entry for entry in entries if entry.report]
    return {
        "customer": customer,
        "weight": weight_of(customer),
        "failed": [entry for entry in entries if entry.status == Status.FAILED],
        "coming": [e for e in entries if not e.report and e.status != Status.FAILED],
        "charts": charts[:shown],
        "count": len(charts),
    }


def weight_of(customer: Customer) -> float:
    share = FairShare.objects.filter(user=customer.slug, queue="").first()
    return share.weight if share else 1.0


def entries_of(customer: Customer) -> list[Entry]:
    uploads = list(customer.uploads.select_related("report")[:NEWEST])
    for upload in uploads:
        upload.customer = customer
    unfinished = [upload for upload in uploads if not finished(upload)]
    tasks = {task.key: task for task in tasks_of(unfinished)}
    return [entry(upload, tasks) for upload in uploads]


def finished(upload: Upload) -> bool:
    return hasattr(upload, "report") and upload.report.finished_at is not None


def entry(upload: Upload, tasks: dict[str, Task]) -> Entry:
    if finished(upload):
        return Entry(upload, report=upload.report)
    task = tasks.get(upload.draw_key) or tasks.get(upload.summarise_key)
    if task is None:
        return Entry(upload, status="unknown")
    return Entry(upload, status=task.status, task=task)
