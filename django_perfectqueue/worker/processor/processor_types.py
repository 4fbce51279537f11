"""Which processor there is for which PROCESSOR_TYPE."""

from __future__ import annotations

from .asyncio_loop import AsyncioProcessor
from .processor import Processor
from .serial import SerialProcessor
from .threads import ThreadProcessor

TYPES: dict[str, type[Processor]] = {
    "process": SerialProcessor,
    "thread": ThreadProcessor,
    "async": AsyncioProcessor,
}


def processor_of(type_: str) -> type[Processor]:
    return TYPES[type_]
