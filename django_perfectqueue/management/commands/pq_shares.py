from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import CommandParser

from django_perfectqueue.conf import options as settings
from django_perfectqueue.fairness.report import COUNTED, WINDOWS, Balance, UserShare, balance
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable

from ..base import CommandOptions, QueueCommand, at_least
from ..tasks.facts import Facts, iso, picked
from ..terminal.table import GAP, Column
from ..terminal.text import or_more

LAST: dict[str, str] = {
    "minute": "in the last minute",
    "hour": "in the last hour",
    "day": "in the last day",
}
HELD: dict[str, str] = {
    "": "",
    "paused": "paused",
    "capped": "at its cap",
    "limited": "behind a limit",
}


class Command(QueueCommand):
    summary = (
        "Shows what part of the processor time of a queue each user was entitled to and received of"
        " late, and how long its tasks waited."
    )

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--over",
            choices=list(WINDOWS),
            default="hour",
            help="Over which time: the last minute, hour or day (hour).",
        )
        add("-u", "--user", metavar="USER", help="Only this user.")
        add(
            "--top",
            type=at_least(0),
            default=20,
            metavar="N",
            help="How many users to show, those who received most first (20).",
        )

    def act(self, options: CommandOptions) -> None:
        over, user = options["over"], options["user"]
        found = balance(
            self.queue.name, over=over, using=self.queue.using, top=options["top"], user=user
        )
        if self.as_json:
            self.print_json(summary(found, over))
        elif not found.shares:
            self.say(self.nothing(over))
        else:
            self.print_balance(found, over)
            if user is not None and all(share.others for share in found.shares):
                self.say(f"User '{user}' received nothing, and none of its tasks waited.")

    def nothing(self, over: str) -> str:
        text = f"No task of queue '{self.queue.name}' ran or waited for a worker {LAST[over]}."
        if settings().USAGE_TIME == 0:
            return text + " It would not be known: USAGE_TIME is 0."
        return text + " Workers write every ten seconds what they did."

    def print_balance(self, found: Balance, over: str) -> None:
        time = short_duration(found.total.seconds)
        title = f"Queue '{found.queue}' {LAST[over]}: {time} of processor time"
        self.stdout.write(self.style.MIGRATE_HEADING(printable(title)) + "\n\n")
        self.print_table(columns(found.total), [*found.shares, found.total], GAP)


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
        Column("user", name, elastic=True),
        Column("weight", own(lambda share: f"{share.weight:g}"), right=True),
        Column("running", own(lambda share: f"{share.running:,}"), right=True),
        Column("waiting", own(lambda share: bounded(share.waiting)), right=True),
        Column("entitled", part(lambda share: percent(share.entitled)), right=True),
        Column("received", lambda share: percent(share.received), right=True),
        Column("more", part(lambda share: signed(share.difference)), right=True),
        Column("tasks", lambda share: f"{share.tasks:,}", right=True),
        Column("wait p50", lambda share: duration(share.p50), right=True),
        Column("p95", lambda share: duration(share.p95), right=True),
        Column("", part(lambda share: HELD[share.held])),
    ]


def percent(part: float) -> str:
    return f"{part * 100:.1f}%"


def signed(part: float) -> str:
    """Return a difference with its sign, or none where it is too small to be seen."""
    rounded = round(part * 100, 1)
    return f"{rounded:+.1f}%" if rounded else "0.0%"


def duration(seconds: float | None) -> str:
    return "-" if seconds is None else short_duration(seconds)


def bounded(count: int) -> str:
    return or_more(min(count, COUNTED), more=count > COUNTED)


def summary(found: Balance, over: str) -> Facts:
    return {
        "queue": found.queue,
        "over": over,
        "since": iso(found.since),
        "until": iso(found.until),
        "seconds": found.total.seconds,
        "tasks": found.total.tasks,
        "wait_p50": found.total.p50,
        "wait_p95": found.total.p95,
        "shares": [share_facts(share) for share in found.shares],
    }


def share_facts(share: UserShare) -> Facts:
    figures = {
        **picked(share, "user", "others", "entitled", "received", "entitled_seconds"),
        "received_seconds": share.seconds,
        "tasks": share.tasks,
        "wait_p50": share.p50,
        "wait_p95": share.p95,
    }
    if share.others:
        return figures
    return figures | {
        **picked(share, "weight", "max_running", "running", "held"),
        "waiting": min(share.waiting, COUNTED),
        "more_waiting": share.waiting > COUNTED,
    }
