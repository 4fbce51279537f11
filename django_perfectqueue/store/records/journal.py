"""Write the journal: the progress and the log lines that handlers report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db import connections

from ..database.session import Session
from ..database.transaction import is_callers, reading, retry_transaction
from ..values import Note, as_text

ROWS, CHARACTERS = 100, 500_000
LONGEST_ESCAPE = 10
KEPT = 20
STAGE_LENGTH = 255
KEY = ("task_id", "number")
COLUMNS = ("progress", "stage", "lines", "updated_at")

WRITE = """
INSERT INTO "perfectqueue_journal"
    ("task_id", "number", "progress", "stage", "lines", "updated_at")
SELECT "given"."task_id", "given"."number", "given"."progress", "given"."stage",
    "given"."lines", {now}
FROM ({rows}) AS "given"
WHERE EXISTS (
    SELECT 1 FROM "perfectqueue_task" AS "task"
    WHERE "task"."id" = "given"."task_id" AND "task"."key" = CASE "task"."id" {keys} END
) AND ("given"."task_id"{asynchronous_commit}) IS NOT NULL
"""
FORGET = 'DELETE FROM "perfectqueue_journal" WHERE {over}'


@retry_transaction
def write_journal(notes: Sequence[Note], *, using: str, now: datetime | None = None) -> None:
    """
    Write what attempts have reported, in place of their earlier reports.

    It is one statement, unless that would be very long. A report on a task that is gone is
    dropped, also where another task has its id. On PostgreSQL the commit is asynchronous: a
    crash of the server may lose the last second of it.
    """
    lasting = is_callers(connections[using])
    with reading(using) as db:
        ordered = sorted(notes, key=lambda note: (note.task_id, note.attempt))
        for some in in_statements(ordered):
            write(db, some, lasting=lasting, now=now)
        forget_old(db, ordered)


def in_statements(notes: Sequence[Note]) -> Iterator[list[Note]]:
    """Yield the notes in lists, each short enough for one statement."""
    some: list[Note] = []
    room = CHARACTERS
    for note in notes:
        if some and (len(some) == ROWS or len(note.lines) > room):
            yield some
            some, room = [], CHARACTERS
        some.append(note)
        room -= len(note.lines)
    if some:
        yield some


def write(db: Session, notes: Sequence[Note], *, lasting: bool, now: datetime | None) -> None:
    statement = WRITE.replace("{rows}", " UNION ALL ".join(map(row, range(len(notes)), notes)))
    more = "" if lasting else db.dialect.asynchronous_commit
    statement = statement.replace("{asynchronous_commit}", more)
    keys = " ".join(f"WHEN {int(note.task_id)} THEN %(key{n})s" for n, note in enumerate(notes))
    statement = statement.replace("{keys}", keys)
    clause = db.dialect.upsert("perfectqueue_journal", KEY, dict.fromkeys(COLUMNS, "{new}"))
    values = {}
    for number, note in enumerate(notes):
        values[f"key{number}"] = note.key
        values[f"stage{number}"] = as_text(note.stage, STAGE_LENGTH)
        values[f"lines{number}"] = as_text(note.lines, LONGEST_ESCAPE * len(note.lines))
    db.execute(statement + clause, values, now=now)


def row(number: int, note: Note) -> str:
    # A number in any case, which gives the column its type.
    part = "NULLIF(0.0, 0.0)" if note.progress is None else repr(float(note.progress))
    return (
        f'SELECT {int(note.task_id)} AS "task_id", {int(note.attempt)} AS "number",'
        f' {part} AS "progress", %(stage{number})s AS "stage", %(lines{number})s AS "lines"'
    )


def forget_old(db: Session, notes: Sequence[Note]) -> None:
    """Delete all but the journals of the last KEPT attempts of a task."""
    over = " OR ".join(
        f'("task_id" = {int(note.task_id)} AND "number" <= {int(note.attempt) - KEPT})'
        for note in notes
        if note.is_first and note.attempt > KEPT
    )
    if over:
        db.execute(FORGET.replace("{over}", over))
