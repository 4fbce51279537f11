from __future__ import annotations

from django.core.files.storage import FileSystemStorage
from django.core.validators import FileExtensionValidator
from django.db import models


class Customer(models.Model):
    """Who uploads files. The ``slug`` is the user of the customer's tasks."""

    class Plan(models.TextChoices):
        STANDARD = "standard", "standard"
        GOLD = "gold", "gold"

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    plan = models.CharField(max_length=8, choices=Plan.choices, default=Plan.STANDARD)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


def folder_of_uploads(upload: Upload, name: str) -> str:
    return f"uploads/{upload.customer.slug}/{name}"


def folder_of_charts(report: Report, name: str) -> str:
    return f"charts/{report.upload.customer.slug}/{name}"


def overwriting() -> FileSystemStorage:
    """Store a chart that is drawn again in the place of the first."""
    return FileSystemStorage(allow_overwrite=True)


# A file of more bytes is read once someone has approved of it.
LARGE = 1_000_000


class Upload(models.Model):
    """A file of sales, as the customer sent it."""

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="uploads")
    name = models.CharField(max_length=100)
    file = models.FileField(
        upload_to=folder_of_uploads, validators=[FileExtensionValidator(["csv"])]
    )
    uploaded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.customer.slug}/{self.name}"

    @property
    def is_large(self) -> bool:
        return self.file.size > LARGE

    @property
    def summarise_key(self) -> str:
        return f"summarise-{self.pk}"

    @property
    def draw_key(self) -> str:
        return f"draw-{self.pk}"


class Report(models.Model):
    """
    What one upload says.

    The first task writes the figures, the second one the chart. ``low`` and ``high``
    bound the mean of a day's sales with 95 % confidence.
    """

    upload = models.OneToOneField(Upload, models.CASCADE, related_name="report")
    rows = models.PositiveIntegerField()
    total = models.DecimalField(max_digits=20, decimal_places=2)
    low = models.FloatField()
    high = models.FloatField()
    figures = models.JSONField()
    chart = models.FileField(upload_to=folder_of_charts, storage=overwriting, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return str(self.upload)
