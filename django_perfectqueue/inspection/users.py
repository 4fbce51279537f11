"""The users of a queue: those who have a line there, and those who have a share."""

from __future__ import annotations

from django_perfectqueue.models import EVERYONE, FairShare, Lane
from django_perfectqueue.store import with_retries

MOST = 100
LINES = 1_000


def known_users(queue: str, *, using: str) -> list[str]:
    """
    Return up to MOST users of a queue: first those who are paused or have a share of their own,
    then those with a line, in the order of service.
    """
    shares = FairShare.objects.using(using).filter(queue__in=[queue, ""]).exclude(user=EVERYONE)
    named = shares.order_by("-paused", "-user").values_list("user", flat=True)[:MOST]
    found = with_retries(lambda: [*named, *users_in_line(queue, using=using)], using=using)
    return list(dict.fromkeys(found))[:MOST]


def users_in_line(queue: str, *, using: str) -> list[str]:
    """Return the users of the first lines of a queue, in the order of service."""
    lines = Lane.objects.using(using).filter(queue=queue, held_by=0).order_by("-ready", "turn")
    return list(lines.values_list("user", flat=True)[:LINES])
