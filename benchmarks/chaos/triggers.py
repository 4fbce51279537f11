"""
The database records, too: its triggers write down each task that comes and goes, every change
of a ticket's hands and every end of a task, in the transaction that makes it and by the server's
own clock. An outcome that is empty is that of a task that was put back; a task without a queue
is one that was deleted.
"""

from __future__ import annotations

from benchmarks.database import Link

TICKETS = """
CREATE TABLE chaos_ticket (
    id {serial}, at {real}, task bigint, was smallint, state smallint, attempt int,
    holder bigint, alarm {real}
)
"""
CLOSES = """
CREATE TABLE chaos_close (
    id {serial}, at {real}, task bigint, outcome varchar(9), attempt int
)
"""
TASKS = """
CREATE TABLE chaos_task (
    id {serial}, at {real}, task bigint, queue varchar(100), name varchar(255), kind varchar(255),
    owner varchar(255), limits varchar(1000), payload text
)
"""
EFFECTS = "CREATE TABLE chaos_effect (child varchar(255))"
TYPES = {
    "postgresql": {"serial": "bigserial PRIMARY KEY", "real": "double precision"},
    "mariadb": {"serial": "bigint AUTO_INCREMENT PRIMARY KEY", "real": "double"},
    "sqlite": {"serial": "integer PRIMARY KEY", "real": "double precision"},
}

POSTGRESQL = """
CREATE FUNCTION chaos_see_ticket() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
        VALUES (extract(epoch FROM clock_timestamp()), OLD.task_id, OLD.state, -1, OLD.attempt,
            OLD.holder, NULL);
    ELSIF (NEW.state, NEW.attempt, NEW.holder, NEW.timer_at)
        IS DISTINCT FROM (OLD.state, OLD.attempt, OLD.holder, OLD.timer_at) THEN
        INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
        VALUES (extract(epoch FROM clock_timestamp()), NEW.task_id, OLD.state, NEW.state,
            NEW.attempt, NEW.holder, extract(epoch FROM NEW.timer_at));
    END IF;
    RETURN NULL;
END $$
---
CREATE TRIGGER chaos_ticket AFTER UPDATE OR DELETE ON perfectqueue_ticket
FOR EACH ROW EXECUTE FUNCTION chaos_see_ticket()
---
CREATE FUNCTION chaos_see_close() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.outcome <> OLD.outcome OR NEW.outcome <> ''
        AND (NEW.attempt, NEW.ended_at) IS DISTINCT FROM (OLD.attempt, OLD.ended_at) THEN
        INSERT INTO chaos_close (at, task, outcome, attempt)
        VALUES (extract(epoch FROM clock_timestamp()), NEW.id, NEW.outcome, NEW.attempt);
    END IF;
    RETURN NULL;
END $$
---
CREATE TRIGGER chaos_close AFTER UPDATE ON perfectqueue_task
FOR EACH ROW EXECUTE FUNCTION chaos_see_close()
---
CREATE FUNCTION chaos_see_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos_task (at, task) VALUES (extract(epoch FROM clock_timestamp()), OLD.id);
    ELSE
        INSERT INTO chaos_task (at, task, queue, name, kind, owner, limits, payload)
        VALUES (extract(epoch FROM clock_timestamp()), NEW.id, NEW.queue, NEW.key, NEW.type,
            NEW.user, NEW.limits, NEW.data);
    END IF;
    RETURN NULL;
END $$
---
CREATE TRIGGER chaos_task AFTER INSERT OR DELETE ON perfectqueue_task
FOR EACH ROW EXECUTE FUNCTION chaos_see_task()
"""
MARIADB = """
CREATE TRIGGER chaos_update AFTER UPDATE ON perfectqueue_ticket FOR EACH ROW
IF NOT (NEW.state <=> OLD.state AND NEW.attempt <=> OLD.attempt
    AND NEW.holder <=> OLD.holder AND NEW.timer_at <=> OLD.timer_at) THEN
    INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
    VALUES (UNIX_TIMESTAMP(SYSDATE(6)), NEW.task_id, OLD.state, NEW.state, NEW.attempt,
        NEW.holder, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', NEW.timer_at) / 1e6);
END IF
---
CREATE TRIGGER chaos_delete AFTER DELETE ON perfectqueue_ticket FOR EACH ROW
INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
VALUES (UNIX_TIMESTAMP(SYSDATE(6)), OLD.task_id, OLD.state, -1, OLD.attempt, OLD.holder, NULL)
---
CREATE TRIGGER chaos_close AFTER UPDATE ON perfectqueue_task FOR EACH ROW
IF NEW.outcome <> OLD.outcome OR NEW.outcome <> ''
    AND NOT (NEW.attempt <=> OLD.attempt AND NEW.ended_at <=> OLD.ended_at) THEN
    INSERT INTO chaos_close (at, task, outcome, attempt)
    VALUES (UNIX_TIMESTAMP(SYSDATE(6)), NEW.id, NEW.outcome, NEW.attempt);
END IF
---
CREATE TRIGGER chaos_born AFTER INSERT ON perfectqueue_task FOR EACH ROW
INSERT INTO chaos_task (at, task, queue, name, kind, owner, limits, payload)
VALUES (UNIX_TIMESTAMP(SYSDATE(6)), NEW.id, NEW.queue, NEW.key, NEW.type, NEW.user, NEW.limits,
    NEW.data)
---
CREATE TRIGGER chaos_gone AFTER DELETE ON perfectqueue_task FOR EACH ROW
INSERT INTO chaos_task (at, task) VALUES (UNIX_TIMESTAMP(SYSDATE(6)), OLD.id)
"""
SQLITE = """
CREATE TRIGGER chaos_update AFTER UPDATE ON perfectqueue_ticket
WHEN NOT (NEW.state IS OLD.state AND NEW.attempt IS OLD.attempt
    AND NEW.holder IS OLD.holder AND NEW.timer_at IS OLD.timer_at)
BEGIN
    INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
    VALUES ((julianday('now') - 2440587.5) * 86400.0, NEW.task_id, OLD.state, NEW.state,
        NEW.attempt, NEW.holder, (julianday(NEW.timer_at) - 2440587.5) * 86400.0);
END
---
CREATE TRIGGER chaos_delete AFTER DELETE ON perfectqueue_ticket
BEGIN
    INSERT INTO chaos_ticket (at, task, was, state, attempt, holder, alarm)
    VALUES ((julianday('now') - 2440587.5) * 86400.0, OLD.task_id, OLD.state, -1, OLD.attempt,
        OLD.holder, NULL);
END
---
CREATE TRIGGER chaos_close AFTER UPDATE ON perfectqueue_task
WHEN NEW.outcome <> OLD.outcome OR NEW.outcome <> ''
    AND NOT (NEW.attempt IS OLD.attempt AND NEW.ended_at IS OLD.ended_at)
BEGIN
    INSERT INTO chaos_close (at, task, outcome, attempt)
    VALUES ((julianday('now') - 2440587.5) * 86400.0, NEW.id, NEW.outcome, NEW.attempt);
END
---
CREATE TRIGGER chaos_born AFTER INSERT ON perfectqueue_task
BEGIN
    INSERT INTO chaos_task (at, task, queue, name, kind, owner, limits, payload)
    VALUES ((julianday('now') - 2440587.5) * 86400.0, NEW.id, NEW.queue, NEW.key, NEW.type,
        NEW.user, NEW.limits, NEW.data);
END
---
CREATE TRIGGER chaos_gone AFTER DELETE ON perfectqueue_task
BEGIN
    INSERT INTO chaos_task (at, task)
    VALUES ((julianday('now') - 2440587.5) * 86400.0, OLD.id);
END
"""
TRIGGERS = {"postgresql": POSTGRESQL, "mariadb": MARIADB, "sqlite": SQLITE}
CLOCKS = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mariadb": "SELECT UNIX_TIMESTAMP(SYSDATE(6))",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}


def install(link: Link) -> None:
    """Make the tables and the triggers; no task may have been submitted yet."""
    for table in (TICKETS, CLOSES, TASKS):
        link.run(table.format(**TYPES[link.kind]))
    link.run(EFFECTS)
    for statement in TRIGGERS[link.kind].split("---"):
        link.run(statement)


def clock(link: Link) -> float:
    """Return the server's time, in seconds since 1970."""
    return float(link.value(CLOCKS[link.kind]))
