"""Replacing a processor in which a handler has left much memory behind."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from django_perfectqueue.lib.checks import number
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.lib.processes import resident

from ..recycle import replace_processor

if TYPE_CHECKING:
    from ..handler import Application
    from .chain import APerform, Perform

MIB = 1_048_576

logger = logging.getLogger("django_perfectqueue.processor")


class MemoryLimit:
    """
    Replaces the processor when it holds more than a number of MiB after a task.

    It is read after each task of these handlers, whether or not that has failed; so use it
    for those that are known to leak, and MAX_MEMORY_PER_CHILD for all.
    """

    def __init__(self, mib: float) -> None:
        self.mib = number(0, above=True, of="MiB").require("The limit", mib, ValueError)

    def around_perform(self, handler: Application, perform: Perform) -> object:
        try:
            return perform()
        finally:
            self.look(handler)

    async def aaround_perform(self, handler: Application, perform: APerform) -> object:
        try:
            return await perform()
        finally:
            self.look(handler)

    def look(self, handler: Application) -> None:
        if (size := resident()) >= self.mib * MIB:
            logger.warning(
                "A processor has grown large by a task; it is replaced. pid=%s mib=%.0f type=%s",
                os.getpid(),
                size / MIB,
                printable(handler.task.type),
            )
            replace_processor()
