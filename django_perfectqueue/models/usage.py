"""What users received, by time."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField, ReadableDateTimeField

WAIT_BUCKETS = 28


class Bucket(models.IntegerChoices):
    """The lengths of time that usage is summed over, in seconds."""

    SLICE = 10, _("ten seconds")
    MINUTE = 60, _("minute")
    HOUR = 3_600, _("hour")


class Usage(models.Model):
    """
    What the tasks of one user got in one queue within a span of time, and what they were
    entitled to.

    ``seconds`` is processor time, ``ended`` how many attempts ended. ``eager`` counts the
    slices in which tasks waited that might have started, ``paused``, ``capped`` and
    ``limited`` those in which they waited for that reason. ``entitled`` is known once the
    span has been summed up; for a slice it is computed when it is asked for. The columns
    ``wait_0`` to ``wait_27`` are a histogram of how long they waited, see
    ``store.entitlement``, and ``longest`` is the longest of these waits in seconds.

    Of very many users those with little time have one row together, with ``others``.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    span = models.SmallIntegerField(_("span"), choices=Bucket.choices)
    start = ReadableDateTimeField(_("start"))
    others = models.BooleanField(_("others"), default=False)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    ended = models.IntegerField(_("ended"), default=0)
    seconds = models.FloatField(_("seconds"), default=0.0)
    entitled = models.FloatField(_("entitled"), default=0.0)
    eager = models.IntegerField(_("eager"), default=0)
    paused = models.IntegerField(_("paused"), default=0)
    capped = models.IntegerField(_("capped"), default=0)
    limited = models.IntegerField(_("limited"), default=0)
    longest = models.FloatField(_("longest wait"), default=0.0)

    class Meta:
        verbose_name = _("share received")
        verbose_name_plural = _("shares received")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "span", "start", "others", "user"],
                name="perfectqueue_usage_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue}/{self.user}"


for _bucket in range(WAIT_BUCKETS):
    Usage.add_to_class(f"wait_{_bucket}", models.IntegerField(_("waits"), default=0))
