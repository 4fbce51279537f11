"""Which processor there is for which PROCESSOR_TYPE."""

from __future__ import annotations

from .asyncio_loop import Loop
from .processor import Processor
from .serial import Solo
from .threads import Threads

TYPES: dict[str, type[Processor]] = {"process": Solo, "thread": Threads, "async": Loop}


def processor_of(type_: str) -> type[Processor]:
    return TYPES[type_]
