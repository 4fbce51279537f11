"""What users received, and how the tasks of each type ended, by time."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField, ReadableDateTimeField, in_order, readable

WAIT_BUCKETS = 28


class Bucket(models.IntegerChoices):
    """The lengths of time that usage is summed over, in seconds."""

    MINUTE = 60, _("minute")
    HOUR = 3_600, _("hour")
    TOTAL = 0, _("all time")


ALL_TYPES = "*"


@readable()
class Usage(models.Model):
    """
    What the tasks of one user, or of one type, got in one queue within a span of time.

    A row with a ``type`` is of that type and all users; with ``others``, too, it is of all
    types together. A row without is of the ``user``.

    ``seconds`` is processor time, ``ended`` how many attempts ended, ``finished`` to ``lost``
    how many of them in which way. ``lasted`` and ``squares`` are the sum of the seconds that
    these attempts took and of their squares, ``run_0`` to ``run_27`` a histogram of them;
    ``waited``, ``wait_squares`` and ``wait_0`` to ``wait_27`` the same of how long they waited,
    see ``store.entitlement``, and ``longest`` is the longest of these waits in seconds.
    ``entitled`` is what a user was entitled to, of ``seconds``; of a minute it is computed
    when it is asked for. ``eager`` counts the minutes in which tasks waited that might have
    started, ``paused``, ``capped`` and ``limited`` those in which they waited for that reason.

    ``submitted`` is how many tasks were stored in the queue, in the row of all types; see
    ``store.count_submitted()``.

    Of very many users those with little time have one row together, with ``others``.
    """

    id = models.BigAutoField(primary_key=True)
    queue = ExactCharField(_("queue"), max_length=100)
    span = models.IntegerField(_("span"), choices=Bucket.choices)
    type = ExactCharField(_("type"), max_length=255, blank=True, default="")
    start = ReadableDateTimeField(_("start"))
    others = models.BooleanField(_("others"), default=False)
    user = ExactCharField(_("user"), max_length=255, blank=True, default="")
    ended = models.BigIntegerField(_("ended"), default=0)
    finished = models.BigIntegerField(_("finished"), default=0)
    retried = models.BigIntegerField(_("retried"), default=0)
    failed = models.BigIntegerField(_("failed"), default=0)
    cancelled = models.BigIntegerField(_("cancelled"), default=0)
    lost = models.BigIntegerField(_("lost"), default=0)
    submitted = models.BigIntegerField(_("submitted"), default=0)
    lasted = models.FloatField(_("run time"), default=0.0)
    squares = models.FloatField(_("squares of run times"), default=0.0)
    waited = models.FloatField(_("waited"), default=0.0)
    wait_squares = models.FloatField(_("squares of waits"), default=0.0)
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
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "span", "type", "start", "others", "user"],
                name="perfectqueue_usage_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue}/{self.user}"


for _bucket in range(WAIT_BUCKETS):
    Usage.add_to_class(f"wait_{_bucket}", models.BigIntegerField(_("waits"), default=0))
    Usage.add_to_class(f"run_{_bucket}", models.BigIntegerField(_("runs"), default=0))


class Overview(Usage):
    """The page of all queues, for the admin and its permission."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = in_order(9, _("Overview"))
        default_permissions = ("view",)
