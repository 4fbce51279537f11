"""Shares and limits as people set them, who changed them, and who received what."""

from django_perfectqueue.models import EVERYONE

from .limits import alimit, aremove_limit, aset_limit, limit, remove_limit, set_limit
from .shares import (
    aqueue_weight,
    areset_queue_weight,
    areset_share,
    aset_queue_weight,
    aset_share,
    ashare,
    queue_weight,
    reset_queue_weight,
    reset_share,
    set_queue_weight,
    set_share,
    share,
)

__all__ = [
    "EVERYONE",
    "alimit",
    "aqueue_weight",
    "aremove_limit",
    "areset_queue_weight",
    "areset_share",
    "aset_limit",
    "aset_queue_weight",
    "aset_share",
    "ashare",
    "limit",
    "queue_weight",
    "remove_limit",
    "reset_queue_weight",
    "reset_share",
    "set_limit",
    "set_queue_weight",
    "set_share",
    "share",
]
