"""Shares and limits as people set them, who changed them, and who received what."""

from django_perfectqueue.models import EVERYONE as EVERYONE

from .limits import alimit as alimit
from .limits import aremove_limit as aremove_limit
from .limits import aset_limit as aset_limit
from .limits import limit as limit
from .limits import remove_limit as remove_limit
from .limits import set_limit as set_limit
from .shares import aqueue_weight as aqueue_weight
from .shares import areset_queue_weight as areset_queue_weight
from .shares import areset_share as areset_share
from .shares import aset_queue_weight as aset_queue_weight
from .shares import aset_share as aset_share
from .shares import ashare as ashare
from .shares import queue_weight as queue_weight
from .shares import reset_queue_weight as reset_queue_weight
from .shares import reset_share as reset_share
from .shares import set_queue_weight as set_queue_weight
from .shares import set_share as set_share
from .shares import share as share
