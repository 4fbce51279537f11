"""What is written beside a task and a worker: journal, tags, trail, register."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models.expressions import Combinable

from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError
from django_perfectqueue.models import CHANGES, UNSEEN, Change, Tag, Worker
from django_perfectqueue.models.fields import ServerNow
from django_perfectqueue.payload.inputs import MOST_TAGS

from ..database.dialects.base import in_parts
from ..database.transaction import (
    Session,
    in_transaction,
    is_callers,
    reading,
    retry_transaction,
    timely,
)
from ..values import Ids, Name, Note, Now, Submission, as_text

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
def write_journal(notes: Sequence[Note], *, using: str, now: Now = None) -> None:
    """
    Write what attempts have reported, in place of their earlier reports.

    It is one statement, unless that would be very long. A report on a task that is gone is
    dropped, also where another task has its id. On PostgreSQL the commit is asynchronous: a
    crash of the server may lose the last second of it.
    """
    lasting = is_callers(using)
    with reading(using, now=now) as db:
        ordered = sorted(notes, key=lambda note: (note.task_id, note.attempt))
        for some in in_parts(ordered, [len(note.lines) for note in ordered], CHARACTERS, ROWS):
            write(db, some, lasting=lasting)
        forget_old(db, ordered)


def write(db: Session, notes: Sequence[Note], *, lasting: bool) -> None:
    rows = " UNION ALL ".join(map(row, range(len(notes)), notes))
    more = "" if lasting else db.dialect.asynchronous_commit
    keys = " ".join(f"WHEN {int(note.task_id)} THEN %(key{n})s" for n, note in enumerate(notes))
    clause = db.dialect.upsert("perfectqueue_journal", KEY, dict.fromkeys(COLUMNS, "{new}"))
    values = {}
    for number, note in enumerate(notes):
        values[f"key{number}"] = note.key
        values[f"stage{number}"] = as_text(note.stage, STAGE_LENGTH)
        values[f"lines{number}"] = as_text(note.lines, LONGEST_ESCAPE * len(note.lines))
    db.execute(WRITE + clause, values, rows=rows, keys=keys, asynchronous_commit=more)


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
        db.execute(FORGET, over=over)


# Tags: names by which tasks are found together.


TAGS_AT_ONCE = 300

LOCK = 'SELECT "id" FROM "perfectqueue_task" WHERE "id" = %(task_id)s'
TAGS = 'SELECT "tag", "id" FROM "perfectqueue_tag" WHERE "task_id" = %(task_id)s'


def tag_fresh(submissions: Sequence[Submission], fresh: Ids, *, using: str) -> None:
    """Store the tags of tasks that were stored just now."""
    rows = [
        Tag(task_id=fresh[task.queue, task.key], tag=tag)
        for task in submissions
        if task.tags and (task.queue, task.key) in fresh
        for tag in task.tags
    ]
    Tag.objects.using(using).bulk_create(rows, batch_size=TAGS_AT_ONCE)


@retry_transaction
def tag_task(task_id: int, tags: Collection[str], *, using: str) -> None:
    """
    Give a task more tags; those that it has stay as they are.

    Raise NotFoundError where it is gone, InvalidTaskError where it would have too many.
    """
    with in_transaction(using) as db:
        known = locked(db, task_id)
        new = [tag for tag in tags if tag not in known]
        if len(known) + len(new) > MOST_TAGS:
            raise InvalidTaskError(f"A task may have at most {MOST_TAGS} tags.")
        Tag.objects.using(using).bulk_create([Tag(task_id=task_id, tag=tag) for tag in new])


@retry_transaction
def untag_task(task_id: int, tags: Collection[str], *, using: str) -> None:
    """Take tags off a task; raise NotFoundError where it is gone."""
    with in_transaction(using) as db:
        known = locked(db, task_id)
        db.dialect.delete(
            db.cursor, "perfectqueue_tag", [known[tag] for tag in tags if tag in known]
        )


def locked(db: Session, task_id: int) -> dict[str, int]:
    """Return the rows of a task's tags; nobody changes these, or purges it, until the commit."""
    values = {"task_id": task_id}
    if not db.execute(LOCK + db.dialect.lock_clause, values).fetchone():
        raise NotFoundError(f"There is no task with the id {task_id}.")
    return dict(db.rows(TAGS + db.dialect.current_clause(db.cursor), values))


# Record what people have done to tasks.


LONGEST_NAME = 255
BATCH = 500
# In a record: what was done, and the name of a signal that was sent.
DID, SIGNAL = "did", "signal"


def sign(
    tasks: Iterable[Name],
    word: str,
    *,
    by: str,
    using: str,
    more: Mapping[str, object] | None = None,
) -> None:
    """
    Record what a person has done to tasks, given by queue and key; ``more`` are its terms.

    Of tasks the last CHANGES records are kept; those of shares and limits are apart.
    """
    after = {DID: word, **(more or {})}
    row = {"kind": Change.Kind.TASK.value, "by": as_text(by, LONGEST_NAME), "after": after}
    made = [Change(at=ServerNow(), name=key, queue=queue, **row) for queue, key in tasks]
    if not made:
        return
    rows = Change.objects.using(using)
    rows.bulk_create(made, batch_size=BATCH)
    if last := rows.order_by("-pk").values_list("pk", flat=True).first():
        rows.filter(pk__lte=last - CHANGES, kind=Change.Kind.TASK).delete()


# Keep the register of the workers of all hosts.


WORKERS_KEPT_FOR = 3600.0
WORKERS_AT_ONCE = 100
RENEWED = ("states_text", "leaving", "problem", "seen_at", "drifted_at")


@retry_transaction
def register(
    worker: Worker, *, using: str, age: float = 0.0, drifted: float | None = None, now: Now = None
) -> None:
    """
    Enter a worker in the register, or renew its entry, which holds until UNSEEN has passed.

    It started ``age`` seconds ago, and ``drifted`` is how many seconds ago it last corrected a
    counter, or None. A new entry also deletes up to BATCH entries that have not been renewed
    for KEPT seconds, and leaves a record where its release is not the last that came, and no
    other worker of it lives.
    """
    rows, moment = Worker.objects.using(using), now or ServerNow()
    trail = Change.objects.using(using).filter(kind=Change.Kind.RELEASE).order_by("-pk")

    def ago(seconds: float) -> datetime | Combinable:
        return moment - timedelta(seconds=seconds)

    worker.seen_at, worker.started_at = moment, ago(age)
    worker.drifted_at = None if drifted is None else ago(drifted)
    with timely(using):
        if rows.filter(pk=worker.pk).update(**{name: getattr(worker, name) for name in RENEWED}):
            return
        name, by = worker.release, as_text(str(worker), LONGEST_NAME)
        last = trail.values_list("name", flat=True).first() or ""
        if name not in ("", last) and not rows.seen(moment).filter(release=name).exists():
            after = {DID: "began", "queues": worker.queues}
            trail.create(at=ago(age), by=by, kind=Change.Kind.RELEASE, name=name, after=after)
        worker.save(using=using, force_insert=True)
        stale = rows.filter(seen_at__lte=ago(UNSEEN.total_seconds() + WORKERS_KEPT_FOR))
        old = stale.order_by("seen_at").values_list("pk", flat=True)
        sign_off(*old[:WORKERS_AT_ONCE], using=using)


@retry_transaction
def drain(ids: Collection[int], draining: bool, *, using: str) -> None:
    """Have these workers take no more tasks, or take tasks again; each reads it soon."""
    Worker.objects.using(using).filter(pk__in=ids).update(draining=draining)


@retry_transaction
def sign_off(*ids: int, using: str) -> None:
    """Delete the entries of these workers."""
    Worker.objects.using(using).filter(pk__in=ids).delete()
