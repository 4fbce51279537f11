"""
The database records, too: its triggers write down each task that comes and goes, every change
of a ticket's hands, every end of a task and each step that is kept, in the transaction that
makes it and by the server's own clock. An outcome that is empty is that of a task that was put
back; a task without a queue is one that was deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.database import Link

TABLES = """
CREATE TABLE chaos_ticket (
    id {serial}, at {real}, task bigint, was smallint, state smallint, attempt int,
    holder bigint, alarm {real}
);
CREATE TABLE chaos_close (
    id {serial}, at {real}, task bigint, outcome varchar(9), attempt int
);
CREATE TABLE chaos_task (
    id {serial}, at {real}, task bigint, queue varchar(100), name varchar(255), kind varchar(255),
    owner varchar(255), limits varchar(1000), payload text
);
CREATE TABLE chaos_step (
    id {serial}, at {real}, task bigint, name varchar(100), value text
);
CREATE TABLE chaos_effect (child varchar(255))
"""


@dataclass(frozen=True)
class Dialect:
    """
    ``same`` compares what may be NULL; ``epoch`` makes seconds of a time, and ``now`` is that of
    the server's clock; ``trigger`` are the statements that make one.
    """

    serial: str
    same: str
    now: str
    epoch: str
    trigger: str
    real: str = "double precision"
    quote: str = '"'


DIALECTS = {
    "postgresql": Dialect(
        serial="bigserial PRIMARY KEY",
        same="IS NOT DISTINCT FROM",
        now="extract(epoch FROM clock_timestamp())",
        epoch="extract(epoch FROM {})",
        trigger="""
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {insert};
    RETURN NULL;
END $$
---
CREATE TRIGGER {name} AFTER {event} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()
""",
    ),
    "mariadb": Dialect(
        serial="bigint AUTO_INCREMENT PRIMARY KEY",
        same="<=>",
        now="UNIX_TIMESTAMP(SYSDATE(6))",
        epoch="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) / 1e6",
        trigger="CREATE TRIGGER {name} AFTER {event} FOR EACH ROW"
        " IF {condition} THEN {insert}; END IF",
        real="double",
        quote="`",
    ),
    "sqlite": Dialect(
        serial="integer PRIMARY KEY",
        same="IS",
        now="(julianday('now') - 2440587.5) * 86400.0",
        epoch="(julianday({}) - 2440587.5) * 86400.0",
        trigger="CREATE TRIGGER {name} AFTER {event} WHEN {condition} BEGIN {insert}; END",
    ),
}

TICKET, TASK, STEP = "perfectqueue_ticket", "perfectqueue_task", "perfectqueue_step"
CHANGED = " OR ".join(
    f"NOT (NEW.{name} {{same}} OLD.{name})" for name in ("state", "attempt", "holder", "timer_at")
)
CLOSED = (
    "NEW.outcome <> OLD.outcome OR NEW.outcome <> '' AND NOT (NEW.attempt {same} OLD.attempt"
    " AND NEW.ended_at {same} OLD.ended_at)"
)
# What happens, on which condition, and what is written of it.
TRIGGERS = {
    f"UPDATE ON {TICKET}": (
        CHANGED,
        "chaos_ticket (at, task, was, state, attempt, holder, alarm)"
        " VALUES ({now}, NEW.task_id, OLD.state, NEW.state, NEW.attempt, NEW.holder, {alarm})",
    ),
    f"DELETE ON {TICKET}": (
        "1 = 1",
        "chaos_ticket (at, task, was, state, attempt, holder)"
        " VALUES ({now}, OLD.task_id, OLD.state, -1, OLD.attempt, OLD.holder)",
    ),
    f"UPDATE ON {TASK}": (
        CLOSED,
        "chaos_close (at, task, outcome, attempt) VALUES ({now}, NEW.id, NEW.outcome, NEW.attempt)",
    ),
    f"INSERT ON {TASK}": (
        "1 = 1",
        "chaos_task (at, task, queue, name, kind, owner, limits, payload)"
        " VALUES ({now}, NEW.id, NEW.queue, NEW.{quote}key{quote}, NEW.type,"
        " NEW.{quote}user{quote}, NEW.limits, NEW.data)",
    ),
    f"INSERT ON {STEP}": (
        "NEW.kind = 0",
        "chaos_step (at, task, name, value) VALUES ({now}, NEW.task_id, NEW.name, NEW.result)",
    ),
    f"DELETE ON {TASK}": ("1 = 1", "chaos_task (at, task) VALUES ({now}, OLD.id)"),
}


def install(link: Link) -> None:
    """Make the tables and the triggers; no task may have been submitted yet."""
    dialect = DIALECTS[link.kind]
    words = {**vars(dialect), "alarm": dialect.epoch.format("NEW.timer_at")}
    for table in TABLES.format(**words).split(";"):
        link.run(table)
    for number, (event, (condition, values)) in enumerate(TRIGGERS.items()):
        made = dialect.trigger.format(
            name=f"chaos_{number}",
            event=event,
            condition=condition.format(**words),
            insert=f"INSERT INTO {values.format(**words)}",
        )
        for statement in made.split("---"):
            link.run(statement)


def clock(link: Link) -> float:
    """Return the server's time, in seconds since 1970."""
    return float(link.value(f"SELECT {DIALECTS[link.kind].now}"))
