"""How work comes in: customers sign up, and upload files."""

from __future__ import annotations

from django.core.files.base import File
from django.db import transaction

from django_perfectqueue.models import FairShare
from django_perfectqueue.queue import Batch, Queue

from .models import Customer, Upload

WEIGHTS = {Customer.Plan.GOLD: 3.0, Customer.Plan.STANDARD: 1.0}


def sign_up(slug: str, *, name: str, plan: str) -> Customer:
    """Return the customer, who may be known already and then keeps the share it has."""
    customer, _new = Customer.objects.get_or_create(
        slug=slug, defaults={"name": name, "plan": plan}
    )
    entitle(customer)
    return customer


def entitle(customer: Customer) -> None:
    """Give a customer the share of its plan, unless it has one already."""
    weight = WEIGHTS[Customer.Plan(customer.plan)]
    FairShare.objects.get_or_create(user=customer.slug, queue="", defaults={"weight": weight})


def receive(customer: Customer, file: File, *, name: str, batch: Batch | None = None) -> Upload:
    """
    Record an upload and submit its first task: both are stored, or neither is.

    With a batch the task belongs to it.
    """
    with transaction.atomic():
        upload = Upload.objects.create(customer=customer, name=name, file=file)
        (batch or Queue()).submit(
            upload.summarise_key,
            "reports.summarise",
            {"upload": upload.pk, "file": str(upload)},
            user=customer.slug,
        )
    return upload
