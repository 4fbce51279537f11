"""
Stands between each host and the database server, and spoils the connection on request:
``python -m benchmarks.chaos.faults.proxy SERVER SOCKET…``.

Orders come as JSON, one a line; it ends with its input. ``cut`` breaks all connections of a
socket. ``mode`` is ``pass``, ``hole``, where nothing that is said arrives and new
connections are accepted all the same, or ``slow``, with a delay and so many bytes a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.databases import die_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CHUNK = 16_384
READY = b"ready\n"


@dataclass
class Way:
    """The way of one host to the server."""

    server: str
    mode: str = "pass"
    delay: float = 0.0
    rate: float = 0.0
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    clear: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, mode: str, *, delay: float = 0.0, rate: float = 0.0) -> None:
        if mode == "cut":
            self.cut()
            return
        self.mode, self.delay, self.rate = mode, delay, rate
        if mode == "hole":
            self.clear.clear()
        else:
            self.clear.set()

    def cut(self) -> None:
        for writer in list(self.open):
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            await self.clear.wait()
            from_server, to_server = await asyncio.open_unix_connection(self.server)
        except OSError:
            writer.transport.abort()
            self.open.discard(writer)
            return
        self.open.add(to_server)
        await asyncio.gather(
            self.carry(reader, to_server, writer), self.carry(from_server, writer, to_server)
        )
        self.open -= {writer, to_server}

    async def carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        """Copy one direction until it ends, and end both then."""
        with contextlib.suppress(OSError):
            while said := await source.read(CHUNK):
                await self.clear.wait()
                if self.mode == "slow":
                    await asyncio.sleep(self.delay + len(said) / self.rate)
                target.write(said)
                await target.drain()
        target.transport.abort()
        other.transport.abort()


async def serve(server: str, sockets: Sequence[str]) -> None:
    ways = {path: Way(server) for path in sockets}
    for path, way in ways.items():
        way.clear.set()
        await asyncio.start_unix_server(way.accept, path)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    os.write(1, READY)
    while line := await orders.readline():
        order = json.loads(line)
        ways[order.pop("socket")].order(**order)


def socket_in(home: Path, database: str) -> Path:
    """Return the socket in a folder as clients of this kind of server look for it."""
    return home / (".s.PGSQL.5432" if database == "postgresql" else "mysql.sock")


class Proxy:
    """The process of the proxy, from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def order(self, socket: Path, mode: str, **how: float) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"socket": str(socket), "mode": mode, **how})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def running(server: Path, sockets: Sequence[Path], log: Any) -> Iterator[Proxy]:
    """Have a proxy for these sockets, and end it on leaving."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.chaos.faults.proxy", server, *sockets],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        preexec_fn=die_with_parent(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != READY:
            raise RuntimeError("The proxy did not start.")
        yield Proxy(process)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
