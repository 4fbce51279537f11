"""What a supervisor gives a processor."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..process.wakeup import Wakeup
from ..shared.queue_order import QueueAccounts
from ..shared.slot import ProcessorStatus
from ..shared.wakeups import Wakeups


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorResources:
    """The resources that a supervisor gives a processor, and keeps when it dies."""

    holder: int
    status: ProcessorStatus
    wakeup: Wakeup
    heartbeat_w: int
    parent_alive: int
    wakeups: Wakeups = field(default_factory=Wakeups)
    accounts: QueueAccounts | None = None
