"""What a project writes: handlers, the routes to them, and what to decide when they fail."""

from .decider import Decider
from .dispatch import Dispatch
from .handler import Application
from .registry import Registry, autodiscover, handler
from .retry import next_wait

__all__ = [
    "Application",
    "Decider",
    "Dispatch",
    "Registry",
    "autodiscover",
    "handler",
    "next_wait",
]
