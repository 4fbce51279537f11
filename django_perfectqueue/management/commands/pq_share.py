from __future__ import annotations

from typing import TypedDict

from django.core.management.base import CommandError, CommandParser, no_translations
from django.db.models import QuerySet
from django.utils.text import capfirst

from django_perfectqueue.fairness.audit import changes_of
from django_perfectqueue.fairness.shares import (
    queue_weight,
    reset_queue_weight,
    reset_share,
    set_queue_weight,
    set_share,
    share,
)
from django_perfectqueue.fairness.wording import queue_of, share_terms, user_of, weight_of
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Change, FairShare, QueueShare

from ..base import CommandOptions, number, or_dash
from ..queues.rule_command import RuleCommand, changes_for_programs, edits, first_rows, person
from ..tasks.facts import Facts, picked
from ..terminal.table import Column


class ShareScope(TypedDict):
    """Where a share is: an empty queue is every queue."""

    queue: str
    using: str


class Command(RuleCommand):
    summary = (
        "Shows or changes a user's fair share: its weight, how many of its tasks may run at once,"
        " and whether they are paused. Only what is given is changed, for tasks that wait already,"
        " too. Without a user it lists all shares."
    )
    queue_help = "The share in this queue (default: in every queue)."

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "user",
            metavar="USER",
            nargs="?",
            help="For whom the tasks run; '*': for all who have no share of their own.",
        )
        add("--no-user", action="store_true", help="The tasks without a user.")
        add(
            "--weight",
            type=number,
            metavar="W",
            help="Twice the weight gets twice the processor time while users compete.",
        )
        add(
            "--of-queue",
            metavar="QUEUE",
            help="The weight of a whole queue, beside the others that a worker serves.",
        )
        self.add_cap(parser)
        self.add_pause(parser)
        add("--reset", action="store_true", help="Take the user's own share away.")
        self.add_listing(parser)

    @no_translations
    def act(self, options: CommandOptions) -> None:
        changes = edits(options, "weight")
        user = "" if options["no_user"] else options["user"]
        if options["of_queue"] is not None:
            check_queue_choice(options, changes)
            self.act_on_queue(options["of_queue"], changes, options["reset"])
            return
        check_choice(options, changes, user)
        scope: ShareScope = {"queue": options["queue"] or "", "using": self.queue.using}
        if user is None:
            self.list_shares(options["queue"], options["limit"])
        elif options["reset"]:
            self.reset(user, scope)
        elif changes:
            set_share(user, **changes, **scope, by=person())
            self.print_share(user, scope)
        else:
            self.show(user, scope)

    def reset(self, user: str, scope: ShareScope) -> None:
        if not reset_share(user, **scope, by=person()) and not self.as_json:
            self.say("There was no share of its own.")
        self.print_share(user, scope)

    def print_share(self, user: str, scope: ShareScope) -> None:
        """Say what holds now."""
        held = share(user, **scope)
        queue = scope["queue"]
        self.answer(for_programs(held, user, queue), describe_share(held, user, queue))

    def show(self, user: str, scope: ShareScope) -> None:
        held = share(user, **scope)
        own = FairShare(user=user, queue=scope["queue"])
        changes = changes_of(own, using=scope["using"])
        if self.as_json:
            found = for_programs(held, user, scope["queue"])
            self.print_json({**found, "changes": list(changes_for_programs(changes))})
            return
        self.stdout.write(printable(describe_share(held, user, scope["queue"])))
        if source := source_of(held, own):
            self.stdout.write(printable(source))
        self.print_changes(changes)

    def act_on_queue(self, queue: str, changes: CommandOptions, reset: bool) -> None:
        using = self.queue.using
        if reset:
            reset_queue_weight(queue, by=person(), using=using)
        elif changes:
            set_queue_weight(queue, changes["weight"], by=person(), using=using)
        row = QueueShare(queue=queue, weight=queue_weight(queue, using=using))
        if reset or changes:
            self.print_queue(row)
        else:
            self.print_queue(row, changes_of(row, using=using))

    def print_queue(self, row: QueueShare, changes: QuerySet[Change] | None = None) -> None:
        if self.as_json:
            more = {} if changes is None else {"changes": list(changes_for_programs(changes))}
            self.print_json({"of_queue": row.queue, "weight": row.weight, **more})
            return
        owner = capfirst(queue_of(row.queue))
        self.stdout.write(printable(f"{owner}, as a whole: {weight_of(row.weight)}."))
        if changes is not None:
            self.print_changes(changes)

    def list_shares(self, queue: str | None, limit: int) -> None:
        rows = FairShare.objects.using(self.queue.using).order_by("user", "queue")
        if queue is not None:
            rows = rows.filter(queue=queue)
        shares, more = first_rows(rows, limit)
        queues = QueueShare.objects.using(self.queue.using).order_by("queue")
        for one in queues if queue is None else queues.filter(queue=queue):
            self.print_queue(one)

        def facts(row: FairShare) -> Facts:
            return for_programs(row, row.user, row.queue)

        columns = [
            Column[FairShare]("user", lambda row: row.user or "-", elastic=True),
            Column("queue", lambda row: row.queue or "(every)", elastic=True),
            Column("weight", lambda row: f"{row.weight:g}", right=True),
            Column("at most", lambda row: or_dash(row.max_running), right=True),
            Column("", lambda row: "paused" if row.paused else ""),
        ]
        none = "There are no shares: all users are equals, with weight 1."
        self.print_listing(shares, facts, columns, more=more, none=none)


def check_choice(options: CommandOptions, changes: CommandOptions, user: str | None) -> None:
    """Raise CommandError unless the options say one thing."""
    if options["no_user"] and options["user"] is not None:
        raise CommandError("Give a user or --no-user, not both.")
    if user is None and (changes or options["reset"]):
        raise CommandError("Say whose share: a user, '*' for everyone, or --no-user.")
    if changes and options["reset"]:
        raise CommandError("--reset takes the share away: it can't be changed as well.")


def check_queue_choice(options: CommandOptions, changes: CommandOptions) -> None:
    """Raise CommandError unless the options are about the weight of a queue."""
    if options["no_user"] or options["user"] is not None or options["queue"] is not None:
        raise CommandError("--of-queue is a share without a user: name the queue only there.")
    if set(changes) - {"weight"}:
        raise CommandError(
            "A queue has a weight only; pq_limit queue:NAME caps or pauses a whole queue."
        )
    if changes and options["reset"]:
        raise CommandError("--reset takes the share away: it can't be changed as well.")


def describe_share(held: FairShare, user: str, queue: str) -> str:
    owner = capfirst(user_of(user))
    return f"{owner}, {queue_of(queue)}: {share_terms(held)}."


def source_of(held: FairShare, own: FairShare) -> str:
    """Say from which other row it has this, if it has no share of its own."""
    if held.pk is None:
        return "It has no share of its own, and nor has everyone else: this is the default."
    if (held.user, held.queue) == (own.user, own.queue):
        return ""
    return (
        f"It has no share of its own here: this is that of {user_of(held.user)} in"
        f" {queue_of(held.queue)}."
    )


def for_programs(held: FairShare, user: str, queue: str) -> Facts:
    return {
        "user": user or None,
        "queue": queue or None,
        **picked(held, "weight", "max_running", "paused"),
        "from": held.pk and picked(held, "user", "queue"),
    }
