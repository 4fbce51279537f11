"""What an external program prints, as much of it as is kept."""

from __future__ import annotations


class Output:
    """
    The beginning and the end of a stream: of ``limit`` bytes half is kept of each.

    ``size`` is how many bytes there were.
    """

    def __init__(self, limit: int) -> None:
        self.for_tail = limit // 2
        self.for_head = limit - self.for_tail
        self.head = bytearray()
        self.tail = bytearray()
        self.size = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes>"

    def __str__(self) -> str:
        """Return it as text, with a line that says how much is left out in the middle."""
        if self.is_whole:
            return as_text(self.head + self.tail)
        gap = f"\n[... {self.left_out} bytes left out ...]\n"
        return as_text(self.head) + gap + as_text(self.tail)

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        room = self.for_head - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[: max(0, len(self.tail) - self.for_tail)]

    @property
    def left_out(self) -> int:
        """How many bytes are not kept."""
        return self.size - len(self.head) - len(self.tail)

    @property
    def is_whole(self) -> bool:
        return self.left_out == 0

    def last(self, limit: int) -> str:
        """Return the end of it as text, without white space around it."""
        kept = bytes(self.head + self.tail if self.is_whole else self.tail)
        text = as_text(kept[-limit:]).strip()
        return f"... {text}" if self.size > limit and text else text


def as_text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")
