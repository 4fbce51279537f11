"""Delete lanes, holds and meters that nobody needs any more, a bounded batch at a time."""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import NamedTuple

from django.db.models import Exists, OuterRef, Q

from django_perfectqueue.models import Account, Hold, Lane, Meter, Policy
from django_perfectqueue.models.fields import ServerNow

from ..arithmetic.fair_order import is_gated
from ..database.transaction import Session, in_transaction, reading, retry_transaction
from ..lanes.accounts import LAST
from ..lanes.shares import correct_shares
from ..lanes.wake import floor
from ..limits.meters import locked
from ..values import Now

BATCH = 500
# In seconds. Who takes tasks reads a lane first and counts them in it last, without a lock
# in between: so a lane goes only when no one can have seen it open for longer than that takes.
IDLE = 600.0
FIRST_ID = -(2**63)

IS_IDLE = """
    "row"."id" IN ({ids}) AND "row"."has_waiting" = FALSE AND "row"."since" <= {idle_since}
    AND NOT EXISTS (
        SELECT 1 FROM "perfectqueue_ticket" AS "ticket"
        WHERE "ticket"."state" = 0 AND "ticket"."lane" = "row"."id"
    )
"""
IDLE_ROWS = f"""
SELECT "row"."id", "row"."queue", 0, "row"."virtual_time", "row"."finish_tag", "row"."policy"
FROM "perfectqueue_account" AS "row"
WHERE {IS_IDLE} AND "row"."running" = 0 AND NOT EXISTS (
    SELECT 1 FROM "perfectqueue_lane" AS "other" WHERE "other"."account" = "row"."id"
)
UNION ALL
SELECT "row"."id", "own"."queue", "row"."gate", 0.0, "row"."finish_tag", {Policy.SLOTS}
FROM "perfectqueue_lane" AS "row"
LEFT JOIN "perfectqueue_account" AS "own" ON "own"."id" = "row"."account"
WHERE {IS_IDLE} AND COALESCE("own"."running", 0) = 0
"""
# Of users, and of lanes behind limits: no id is in both.
MODELS = (Account, Lane)


def forget_lanes(
    after: int, *, using: str, limit: int = BATCH, idle: float = IDLE, now: Now = None
) -> int | None:
    """
    Do what forget_idle() does with so many accounts, and lanes behind limits, with greater ids;
    return where the next batch begins, or None at the end.
    """
    rows = [model._base_manager.using(using).filter(pk__gt=after) for model in MODELS]
    pages = [some.order_by("pk").values_list("pk", flat=True)[:limit] for some in rows]
    known = sorted(chain.from_iterable(pages))[:limit]
    forget_idle(known, using=using, idle=idle, now=now)
    return known[-1] if len(known) == limit else None


@retry_transaction
def forget_idle(ids: list[int], *, using: str, idle: float, now: Now = None) -> None:
    """
    Delete those of these accounts, and lanes behind limits, that have been idle for so many
    seconds.

    An account is made anew when its user comes back, at the virtual time of its queue. So while
    others compete, one that is further ahead than that stays, as do those that give the
    time, and those with lanes behind limits.

    Who submits tasks looks after the commit whether their lane is awake, and wakes it, which
    makes the row; what is missed so is found by wake_forgotten_lanes(). One that is woken in
    the very moment in which it is deleted may be made anew with the share of someone who has
    none; so those that carry another share than they should are corrected here, too.
    """
    with reading(using, now=now) as db:
        found = idle_rows(db, ids, idle)
    if found:
        with in_transaction(using, now=now) as db:
            for model in MODELS:
                asleep = model._base_manager.using(using).filter(pk__in=found, has_waiting=False)
                held = asleep.order_by("pk").select_for_update(skip_locked=True)
                # Once more, as they are now that nobody else can change them.
                if still := idle_rows(db, list(held.values_list("pk", flat=True)), idle):
                    model._base_manager.using(using).filter(pk__in=still).delete()
    correct_shares([id_ for id_ in ids if not is_gated(id_)], using=using)


def idle_rows(db: Session, ids: list[int], idle: float) -> list[int]:
    """Return those of these rows that nobody needs."""
    if not ids:
        return []
    rows = db.rows(IDLE_ROWS, after={"idle_since": -idle}, ids=ids)
    places = {place: place_of(db, *place) for place in {(row[1], row[2]) for row in rows}}
    return [
        id_
        for id_, queue, gate, virtual_time, finish_tag, policy in rows
        if places[queue, gate].spares(virtual_time, finish_tag, policy)
    ]


class SweepPosition(NamedTuple):
    """
    What is needed of the accounts of a queue, or of the lanes behind a gate: those with the
    last finish tags, and accounts ahead of the virtual time.
    """

    last_tag: float
    virtual_time: float

    def spares(self, virtual_time: float, finish_tag: float, policy: int) -> bool:
        is_last = 0.0 < finish_tag >= self.last_tag
        is_ahead = policy == Policy.FAIR and virtual_time > self.virtual_time
        return not (is_last or is_ahead)


def place_of(db: Session, queue: str, gate: int) -> SweepPosition:
    """Return what is needed; where nobody competes, nothing is."""
    users = Account.objects.using(db.using).filter(queue=queue)
    held = Hold.objects.using(db.using).filter(queue=queue)
    if not (users.filter(ready=True).exists() or held.exists()):
        return SweepPosition(inf, inf)
    rows = Lane.objects.using(db.using).filter(gate=gate) if gate else users
    tags = rows.filter(finish_tag__gt=0.0).order_by("-finish_tag")
    last = [*tags.values_list("finish_tag", flat=True)[LAST - 1 : LAST], 0.0]
    return SweepPosition(last[0], floor(db, queue).virtual_time)


@retry_transaction
def forget_holds(after: int, *, using: str, limit: int = BATCH) -> int | None:
    """
    Look at so many holds behind an id, and delete those under which no lane is; return where
    the next batch begins, or None at the end.

    Who puts a lane under a hold has locked the limit's meter, so that it does not go meanwhile.
    """
    holds = Hold.objects.using(using)
    with in_transaction(using) as db:
        rows = list(holds.filter(pk__gt=after).order_by("pk").values_list("pk", "key")[:limit])
        if rows:
            locked(db, {key for _id, key in rows})
            lanes = Lane.objects.filter(held_by=OuterRef("pk"))
            holds.filter(~Exists(lanes), pk__in=[id_ for id_, _key in rows]).delete()
    return rows[-1][0] if len(rows) == limit else None


@retry_transaction
def forget_meters(after: str, *, using: str, limit: int = BATCH) -> str | None:
    """
    Delete so many meters behind a key that count nothing; return where the next batch begins,
    or None at the end.

    Who counts a task locks its meters before, and makes those that are missing.
    """
    is_free = Q(next_at=None) | Q(next_at__lte=ServerNow())
    meters = Meter.objects.using(using)
    with in_transaction(using):
        idle = meters.filter(is_free, pk__gt=after, running=0).order_by("pk")
        held = idle.select_for_update(skip_locked=True).values_list("pk", flat=True)
        keys = list(held[:limit])
        meters.filter(pk__in=keys).delete()
    return keys[-1] if len(keys) == limit else None
