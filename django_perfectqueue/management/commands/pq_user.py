from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from django.core.management.base import CommandError
from django.utils.text import capfirst

from django_perfectqueue.bulk import forget_user
from django_perfectqueue.conf import options as settings
from django_perfectqueue.fairness import edit, wording
from django_perfectqueue.fairness.report import COUNTED, UserShare, balance
from django_perfectqueue.fairness.shares import reset_share, set_share, share
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import FairShare

from ..base import CommandOptions
from ..flags import MANY, PAUSE
from ..terminal import GAP, Column, Facts, bounded, duration, for_programs, known, picked, unseen
from ..verbs import PAUSED, NounCommand, RuleCommand, Subcommand

CHANGES = "--weight --max-running"
HELD = {"": "", "paused": "paused", "capped": "at its cap", "limited": "behind a limit"}


def list_shares(command: NounCommand, options: CommandOptions) -> None:
    """List all shares that are set."""
    rows = FairShare.objects.using(command.queue.using).order_by("user", "queue")
    if options["queue"] is not None:
        rows = rows.filter(queue=options["queue"])
    command.print_listing(rows, COLUMNS, none="There are no shares: all users have weight 1.")


def show(command: Command, options: CommandOptions) -> None:
    """Show which share applies, and who changed it."""
    for owner in command.owners():
        own, (facts, sentence) = FairShare(**owner), command.held(owner)
        lines = [sentence, source_of(share(**owner, using=command.queue.using), own)]
        command.print_rule(own, facts, partial(command.print, map(printable, filter(None, lines))))


def change(command: Command, options: CommandOptions) -> None:
    """Change only what is given, for tasks that wait already, too."""
    command.do(partial(set_share, **command.changed(CHANGES)))


def pause(command: Command, options: CommandOptions) -> None:
    """Pause a user in every queue until a time, or until it is unpaused."""
    terms = command.pause_terms

    def act(user: str, queue: str, using: str, by: str) -> None:
        if queue:
            set_share(user, queue=queue, paused=True, **terms, using=using, by=by)
            return
        # Refuses a name that can't be.
        share(user, using=using)
        edit.pause_user(user, edit.pause(True, **terms), using=using, by=by)

    command.do(act)


def unpause(command: Command, options: CommandOptions) -> None:
    """End the pause."""

    def act(user: str, queue: str, using: str, by: str) -> None:
        goes_on = not queue and edit.unpause_user(user, using=using, by=by)
        # The pause may be that of everyone else.
        if not goes_on and (queue or share(user, using=using).paused):
            set_share(user, queue=queue, paused=False, using=using, by=by)

    command.do(act)


def reset(command: Command, options: CommandOptions) -> None:
    """Delete the share; that of '*' applies."""

    def act(**owner: str) -> None:
        if not reset_share(**owner) and not command.as_json:
            command.say("This user had no share of its own.")

    command.do(act)


def forget(command: NounCommand, options: CommandOptions) -> None:
    """Delete all that is stored of users: tasks, results, logs, usage, shares and their trail."""
    using, dry_run, running = command.queue.using, options["dry_run"], 0
    for user in options["names"]:
        found = forget_user(user, using=using, dry_run=True)
        if not dry_run:
            command.confirm(f"This forgets the user '{user}': {in_words(found)}.")
            found = forget_user(user, using=using)
            running += found["running"]
        done = f"{'would be' if dry_run else 'is'} forgotten: {in_words(found)}"
        facts = {"user": user, "dry_run": dry_run, **found}
        command.answer(facts, f"User '{user}' {done}.")
    if running:
        raise CommandError(
            f"Tasks that still run, and are asked to stop: {running}. Once they have ended, do it"
            " again."
        )


def in_words(found: dict[str, int]) -> str:
    counts = [f"{name} {count:,}" for name, count in found.items() if count]
    return ", ".join(counts) or "nothing is stored"


def report(command: NounCommand, options: CommandOptions) -> None:
    """Show what each user was entitled to and received, and how long it waited."""
    over, user = options["over"], options["name"]
    queue, using = command.queue.name, command.queue.using
    top, by = command.first or None, options["by"]
    found = balance(queue, over=over, using=using, top=top, user=user, by=by)
    if command.as_json:
        command.print_json({"over": over, **asdict(found)})
    elif not found.shares:
        command.say(nothing(queue, over))
    else:
        time = short_duration(found.total.seconds)
        title = f"Queue '{found.queue}' in the last {over}: {time} of processor time"
        command.print_title(title)
        command.stdout.write("")
        command.print_table(columns(found.total), [*found.shares, found.total], GAP)
        if user is not None and all(one.others for one in found.shares):
            command.say(f"User '{user}' received nothing, and none of its tasks waited.")


def nothing(queue: str, over: str) -> str:
    text = f"No task of queue '{queue}' ran or waited for a worker in the last {over}."
    if settings().USAGE_TIME == 0:
        return text + " Usage is not recorded: USAGE_TIME is 0."
    return text + " Workers write every ten seconds what they did."


def source_of(held: FairShare, own: FairShare) -> str:
    """Say from which other row it has this, if it has no share of its own."""
    if held.pk is None:
        return "Neither this user nor '*' has a share: this is the default."
    if (held.user, held.queue) == (own.user, own.queue):
        return ""
    return (
        f"It has no share of its own here: this is that of {wording.user_of(held.user)} in"
        f" {wording.queue_of(held.queue)}."
    )


COLUMNS: list[Column[FairShare]] = [
    Column("user", "user", elastic=True),
    Column("queue", "queue", shown=lambda row: row.queue or "(every)", elastic=True),
    Column("weight", "weight", right=True),
    Column("at most", "max_running", right=True),
    Column("", shown=wording.paused_terms, elastic=True),
    Column(None, "from", lambda row: row.pk and picked(row, "user", "queue")),
    *unseen(*PAUSED),
]


def columns(total: UserShare) -> list[Column[UserShare]]:
    """Return the columns, of which some say nothing of the others or of the total."""

    def name(share: UserShare) -> str:
        if share.others:
            return "(all)" if share is total else "(others)"
        return share.user or "-"

    def own(text: Callable[[UserShare], str]) -> Callable[[UserShare], str]:
        return lambda share: "" if share.others else text(share)

    def part(text: Callable[[UserShare], str]) -> Callable[[UserShare], str]:
        return lambda share: "" if share is total else text(share)

    return [
        Column("user", shown=name, elastic=True),
        Column("weight", shown=own(lambda share: f"{share.weight:g}"), right=True),
        Column("running", shown=own(lambda share: f"{share.running:,}"), right=True),
        Column("waiting", shown=own(lambda share: bounded(share.waiting, COUNTED)), right=True),
        Column("entitled", shown=part(lambda share: percent(share.entitled)), right=True),
        Column("received", shown=lambda share: percent(share.received), right=True),
        Column("more", shown=part(lambda share: signed(share.difference)), right=True),
        Column("tasks", "tasks", right=True),
        Column("wait p50", shown=lambda share: duration(share.p50), right=True),
        Column("p95", shown=lambda share: duration(share.p95), right=True),
        Column("", shown=part(lambda share: HELD[share.held])),
    ]


def percent(part: float) -> str:
    return f"{part * 100:.1f}%"


def signed(part: float) -> str:
    """Return a difference with its sign, or none where it is too small to be seen."""
    rounded = round(part * 100, 1)
    return f"{rounded:+.1f}%" if rounded else "0.0%"


NAMED = "--no-user --queue"


class Command(RuleCommand):
    help = (
        "Shows and sets the fair shares of users: their weights, how many of their tasks may run at"
        " once, whether they are paused; and who received how much of the processor time."
    )
    metavar = "USER"
    name_help = "For whom the tasks run; '*': for all who have no share of their own."
    examples = (
        "pq_user report --over hour --by waiting",
        "pq_user show acme",
        "pq_user set acme --weight 3 --max-running 10",
        "pq_user pause acme --unpause-at 1h --note 'ticket 812'",
        "pq_user reset acme",
        "pq_user forget acme --dry-run",
    )
    verbs = {
        "list": Subcommand(list_shares, flags="--queue --first"),
        "show": Subcommand(show, "*", flags=NAMED),
        "set": Subcommand(change, "*", flags=NAMED, terms=CHANGES),
        "reset": Subcommand(reset, "*", flags=NAMED),
        "pause": Subcommand(pause, "*", flags=f"{NAMED} {PAUSE}"),
        "unpause": Subcommand(unpause, "*", flags=NAMED),
        "forget": Subcommand(forget, "+", flags=MANY),
        "report": Subcommand(report, flags="name? --queue --over --first --by"),
    }

    def owners(self) -> Iterator[CommandOptions]:
        """Yield who is named, and where; raise CommandError unless the options say so."""
        options = self.options
        if bool(options["names"]) == options["no_user"]:
            raise CommandError(
                "Give users, '*' for all who have no share of their own, or --no-user."
            )
        for user in options["names"] or [""]:
            yield {"user": user, "queue": options["queue"] or ""}

    def held(self, owner: CommandOptions) -> tuple[Facts, str]:
        row = share(**owner, using=self.queue.using)
        facts = for_programs(COLUMNS, row) | {name: known(text) for name, text in owner.items()}
        who, where = wording.user_of(owner["user"]), wording.queue_of(owner["queue"])
        return facts, f"{capfirst(who)}, {where}: {wording.share_terms(row)}."
