"""Set the stage: a migrated database, someone who may log in, customers and their files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.contrib.auth import get_user_model
from django.core.files import File
from django.core.files.base import ContentFile
from django.core.management import call_command
from django.db import connection
from reports.intake import receive, sign_up
from reports.models import LARGE, Customer, Report, Upload
from reports.standings import Standing, standings, upload_of

from django_perfectqueue.models import FairShare
from django_perfectqueue.queue import Batch as QueueBatch
from django_perfectqueue.queue import Queue

from .terminal import say

DATA = Path(__file__).resolve().parent.parent / "data"
NAME = PASSWORD = "demo"
LARGE_FILE = "all-shops-2025.csv"
TYPES = ("reports.summarise", "reports.tasks.draw_chart")


def database() -> None:
    say(f"Database   {where()}")
    call_command("migrate", verbosity=0, interactive=False)


def where() -> str:
    name, host = connection.settings_dict["NAME"], connection.settings_dict["HOST"]
    at = f" at {host}" if host else ""
    return f"{connection.display_name}, {name}{at}"


def forget() -> None:
    """Delete Chartroom's own: its tasks, customers, shares and files."""
    Queue().clear()
    FairShare.objects.filter(user__in=Customer.objects.values("slug")).delete()
    for report in Report.objects.exclude(chart=""):
        report.chart.delete(save=False)
    for upload in Upload.objects.all():
        upload.file.delete(save=False)
    Customer.objects.all().delete()


def administrator() -> None:
    users = get_user_model().objects
    if not users.filter(username=NAME).exists():
        users.create_superuser(NAME, password=PASSWORD)


@dataclass(frozen=True)
class Batch:
    """What the worker is given: uploads whose tasks have not ended, and since when."""

    uploads: list[Upload]
    since: datetime
    closing_key: str

    def standings(self) -> list[Standing]:
        return standings(self.uploads, self.since)


def batch() -> Batch:
    """Upload each customer's files, one customer after the other."""
    left, new, name = left_over(), [], f"demo-{uuid.uuid4().hex[:8]}"
    with Queue().batch(name, user="chartroom") as tasks:
        for customer, file in files():
            new.append(upload(customer, file, tasks))
        new.append(receive(customer, large_file(file.parent), name=LARGE_FILE, batch=tasks))
        tasks.then(f"{name}-close", "reports.close")
    since = Queue()[new[0].summarise_key].metadata().created_at
    return Batch([*new, *left], since=since, closing_key=f"{name}-close")


def files() -> Iterator[tuple[Customer, Path]]:
    """Return each customer with each of its files."""
    for about in json.loads((DATA / "customers.json").read_text()):
        customer = sign_up(**about)
        own = sorted((DATA / about["slug"]).glob("*.csv"))
        say(f"Uploading  {len(own):3} files of {customer.name}")
        yield from ((customer, file) for file in own)


def large_file(folder: Path) -> File:
    """Return a file that needs an approval: the sales of a folder, as of many such shops."""
    files = [file.read_text().partition("\n") for file in sorted(folder.glob("*.csv"))]
    sales = "".join(lines for _head, _newline, lines in files)
    say(f"Uploading    1 file of more than {LARGE / 1e6:g} MB")
    return ContentFile(f"{files[0][0]}\n{sales * (1 + LARGE // len(sales))}", name=LARGE_FILE)


def left_over() -> list[Upload]:
    """Return the uploads whose tasks an earlier run has left."""
    ids = {upload_of(task) for task in Queue().list().live() if task.type in TYPES}
    if ids:
        say(f"Left over  {len(ids):3} files of an earlier run")
    return list(Upload.objects.filter(pk__in=ids).select_related("customer"))


def upload(customer: Customer, file: Path, batch: QueueBatch) -> Upload:
    with file.open("rb") as content:
        return receive(customer, File(content, name=file.name), name=file.name, batch=batch)
