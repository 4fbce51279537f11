"""The processor classes by PROCESSOR_TYPE."""

from __future__ import annotations

from .asyncio_loop import AsyncioProcessor
from .processor import Processor
from .serial import SerialProcessor
from .threads import ThreadProcessor

PROCESSOR_TYPES: dict[str, type[Processor]] = {
    "process": SerialProcessor,
    "thread": ThreadProcessor,
    "async": AsyncioProcessor,
}
