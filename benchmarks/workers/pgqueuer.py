from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

from benchmarks.database import this_target
from benchmarks.probe import note


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    connection = await asyncpg.connect(this_target().dsn)
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        note(int(job.payload or b"0"))

    try:
        yield queuer
    finally:
        await connection.close()
