from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial

from django.core.management.base import CommandError
from django.utils.text import capfirst

from django_perfectqueue import models
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness import limits, shares, wording
from django_perfectqueue.fairness.wording import paused_terms
from django_perfectqueue.health.queues import Overview, QueueFigures, named_queues, overview
from django_perfectqueue.lib.durations import LONGEST
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import Queue
from django_perfectqueue.queue.retention import PurgeRule, purge
from django_perfectqueue.store.records.counts import COUNTED

from ..base import CommandOptions, QueueCommand
from ..flags import MANY, PAUSE
from ..listing import no_tasks
from ..terminal import Column, Facts, ProgressLine, bounded, duration, or_more, picked, plural
from ..verbs import PAUSED, NounCommand, RuleCommand, Subcommand


def print_queues(command: QueueCommand, found: Overview) -> None:
    """Print the table of all queues."""
    paused = found.pauses(using=command.queue.using)
    if not command.as_json:
        command.print_table(queue_columns(paused), found.queues)
        return
    for queue in found.queues:
        known = {"drained_in": queue.drained_in, "is_well": queue.is_well}
        pause = picked(paused.get(queue.name, models.Limit()), *PAUSED)
        facts = {**asdict(queue), **pause, **known}
        command.print_json({"at": found.now.isoformat(), **facts})


def marks(queue: QueueFigures, paused: Mapping[str, models.Limit]) -> str:
    """Return what is wrong with a queue, or that it is paused."""
    found = [f"no handler for {type_}" for type_ in queue.unknown_types]
    found += ["drained" if queue.is_drained else "no worker"] if queue.is_unserved else []
    found += ["late"] if queue.is_late else []
    found += [paused_terms(paused[queue.name])] if queue.name in paused else []
    return ", ".join(found)


def queue_columns(paused: Mapping[str, models.Limit]) -> list[Column[QueueFigures]]:
    def moving(name: str, *, spare: bool = False) -> Column[QueueFigures]:
        def shown(one: QueueFigures) -> str:
            return or_more(getattr(one, name), more=one.is_bounded)

        return Column(name, name, shown=shown, right=True, spare=spare)

    def span(title: str, name: str) -> Column[QueueFigures]:
        return Column(title, shown=lambda one: duration(getattr(one, name) or None), right=True)

    return [
        Column("queue", "name", elastic=True),
        Column("waiting", shown=lambda one: bounded(one.waiting, COUNTED), right=True),
        span("oldest", "oldest"),
        moving("running"),
        moving("retrying", spare=True),
        moving("scheduled", spare=True),
        moving("blocked"),
        Column("failed/h", "failed_last_hour", right=True),
        Column("finished/min", shown=lambda one: f"{one.finished_a_minute:,.1f}", right=True),
        Column("growth/min", shown=growth, right=True),
        span("drained in", "drained_in"),
        Column("workers", "workers", right=True),
        Column("", shown=lambda one: marks(one, paused), elastic=True),
    ]


def growth(queue: QueueFigures) -> str:
    found = queue.growth_a_minute
    return "-" if found is None else f"{found:+,.0f}"


def queues_of(command: NounCommand, options: CommandOptions) -> list[Queue]:
    names = dict.fromkeys([*options["names"], *(options.get("queues") or ())])
    return [Queue(name, using=command.queue.using) for name in names]


def list_queues(command: NounCommand, options: CommandOptions) -> None:
    """List all queues with their figures."""
    print_queues(command, overview(using=command.queue.using))


def show(command: Command, options: CommandOptions) -> None:
    """Show the weights and the pauses of queues, and who changed their weights."""
    for owner in command.owners():
        facts, sentence = command.held(owner)
        share = models.QueueShare(queue=owner["queue"])
        command.print_rule(share, facts, partial(command.print, [printable(sentence)]))


def change(command: Command, options: CommandOptions) -> None:
    """Set the weights of queues that share a worker."""
    command.do(partial(shares.set_queue_weight, **command.changed("--weight")))


def reset(command: Command, options: CommandOptions) -> None:
    """Have queues share a worker with the weight 1 again."""
    command.do(shares.reset_queue_weight)


def pause(command: Command, options: CommandOptions) -> None:
    """Pause them until a time, or until they are unpaused; what runs goes on."""
    terms = command.pause_terms
    command.do(lambda queue, using, by: Queue(queue, using=using).pause(**terms, by=by))


def unpause(command: Command, options: CommandOptions) -> None:
    """End the pause."""
    command.do(lambda queue, using, by: Queue(queue, using=using).unpause(by=by))


def clear(command: NounCommand, options: CommandOptions) -> None:
    """Delete all tasks of queues, running ones too."""
    for queue in queues_of(command, options):
        text = f"This deletes every task of the queue '{queue.name}', running ones too."
        command.confirm(text)
        count = queue.list().count() if options["dry_run"] else queue.clear()
        if count or command.as_json:
            report(command, count, queue=queue.name)
        else:
            command.say(no_tasks(queue))


def purge_ended(command: NounCommand, options: CommandOptions) -> None:
    """Delete ended tasks whose retention is over, of queues or of all, as workers do."""
    using, dry_run = command.queue.using, options["dry_run"]
    queues: list[Queue | None] = [*queues_of(command, options)]
    for queue in queues or [None]:
        rule = rule_of(queue, options)
        command.confirm("This deletes ended tasks, as the options and the retention say.")
        progress = ProgressLine(command.stderr, "%s tasks looked at")
        found = purge(rule, using=using, dry=dry_run, progress=progress.show)
        progress.clear()
        named = {"queue": queue.name} if queue else {}
        report(command, found.total(), by_status=found if dry_run else {}, **named)


def rule_of(queue: Queue | None, options: CommandOptions) -> PurgeRule:
    """
    Return the rule that was asked for; by default that of the settings.

    Raise CommandError when it would keep everything.
    """
    older_than, status = options["older_than"], options["status"]
    try:
        return PurgeRule.of(
            older_than=None if older_than is None else min(older_than, LONGEST),
            statuses=[status] if status else (),
            only={
                "queue": queue.name if queue else None,
                **{name: options[name] for name in ("type", "user", "group")},
            },
        )
    except ConfigError as error:
        raise CommandError(
            "The settings keep these tasks for ever. Say how long with --older-than."
        ) from error
    except ValueError as error:
        raise CommandError(f"Only tasks that have ended are purged, not '{status}'.") from error


def report(
    command: NounCommand, count: int, *, by_status: Mapping[str, int] | None = None, **named: str
) -> None:
    dry_run = command.options["dry_run"]
    facts = {**named, "would_delete" if dry_run else "deleted": count}
    if by_status:
        facts["by_status"] = by_status
    parts = [f"{number} {status}" for status, number in sorted((by_status or {}).items())]
    where = f" of queue '{named['queue']}'" if named else ""
    listed = f"{': ' if parts else ''}{', '.join(parts)}"
    done = "would be" if dry_run else "is" if count == 1 else "are"
    command.answer(facts, f"{plural(count, 'task')}{where} {done} deleted{listed}.")


class Command(RuleCommand):
    help = "Shows and pauses queues, sets their weights, and deletes their tasks."
    metavar = "QUEUE"
    name_help = "Name of a queue."
    examples = (
        "pq_queue list",
        "pq_queue show reports",
        "pq_queue pause reports mail --unpause-at 18:00 --note 'ticket 812'",
        "pq_queue set mail --weight 3",
        "pq_queue purge --older-than 7d --yes",
        "pq_queue clear reports --dry-run",
    )
    verbs = {
        "list": Subcommand(list_queues),
        "show": Subcommand(show, "+"),
        "pause": Subcommand(pause, "+", flags=PAUSE),
        "unpause": Subcommand(unpause, "+"),
        "set": Subcommand(change, "+", terms="--weight"),
        "reset": Subcommand(reset, "+"),
        "clear": Subcommand(clear, "+", flags=MANY),
        "purge": Subcommand(
            purge_ended, "*", flags=f"--queue+ --older-than --status --type --user --group {MANY}"
        ),
    }

    def owners(self) -> Iterator[CommandOptions]:
        for name in self.options["names"]:
            yield {"queue": name}

    def held(self, owner: CommandOptions) -> tuple[Facts, str]:
        """Return the weight and the pause; warn where neither a task nor a setting names it."""
        name, using = owner["queue"], self.queue.using
        queue, weight = Queue(name, using=using), shares.queue_weight(name, using=using)
        if not queue.list().exists() and name not in named_queues(using):
            self.complain(no_tasks(queue))
        key = f"queue:{name}"
        limit = limits.in_force([key], using=using).get(key, models.Limit())
        terms = ", ".join(filter(None, [wording.weight_of(weight), paused_terms(limit)]))
        facts = {"queue": name, "weight": weight, **picked(limit, *PAUSED)}
        return facts, f"{capfirst(wording.queue_of(name))}, as a whole: {terms}."
