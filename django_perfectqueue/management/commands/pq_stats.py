from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django.core.management.base import CommandParser
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import DEAD, LIVE, Status

from ..base import CommandOptions, QueueCommand, at_least, or_dash
from ..queues.figures import BOUND, Figures, User, figures
from ..tasks.hints import no_tasks
from ..terminal.table import GAP, Column

ALWAYS = ("waiting", "running", "finished")


class Command(QueueCommand):
    summary = gettext_lazy(
        "Tells how many tasks a queue has in each status, whose they are, and why some did not"
        " finish. What has ended is counted up to 10,000."
    )
    queue_help: str | Promise = gettext_lazy("Only this queue (default: all that there are).")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--top",
            type=at_least(0),
            default=10,
            metavar="N",
            help=_("How many users and how many reasons to show (10)."),
        )

    def act(self, options: CommandOptions) -> None:
        found = figures(self.queue.using, options["queue"])
        for number, one in enumerate(found):
            if self.as_json:
                self.print_json(summary(one, options["top"]))
                continue
            if options["queue"] and one.empty:
                self.say(no_tasks(self.queue))
                continue
            if number:
                self.stdout.write("")
            self.print_figures(one, options["top"])
        if not found and not self.as_json:
            self.say(_("There are no queues yet: nothing was ever submitted."))

    def print_figures(self, found: Figures, top: int) -> None:
        title = _("Queue '%s'") % found.queue
        self.stdout.write(self.style.MIGRATE_HEADING(printable(title)))
        for name, count, note in counts(found):
            if count != "0" or name in ALWAYS:
                self.stdout.write(f"  {name:<10}{count:>8}  {note}".rstrip())
        if found.users and top:
            self.stdout.write("")
            self.print_table(user_columns(found, top), found.users[:top], GAP)
        if found.dead and top:
            self.stdout.write("")
            self.print_table(dead_columns(), found.dead.most_common(top), GAP)


def counts(found: Figures) -> Iterator[tuple[str, str, str]]:
    for status in LIVE:
        note = ""
        if status == Status.WAITING and found.oldest is not None:
            note = _("the first has been due for %s") % short_duration(found.oldest)
        held = found.counts[status]
        if status == Status.RUNNING and found.working < held:
            words = {"working": found.working, "held": held - found.working}
            note = _("at work on %(working)d, %(held)d taken in advance") % words
        yield status.value, str(found.counts[status]), note
    yield Status.FINISHED.value, bounded(found.finished), ""
    by_status = dead_by_status(found)
    for outcome in DEAD:
        yield outcome.value, str(by_status[outcome]), ""


def dead_by_status(found: Figures) -> Counter[str]:
    totals: Counter[str] = Counter()
    for (status, _group), count in found.dead.items():
        totals[status] += count
    return totals


def bounded(count: int) -> str:
    return f"{BOUND}+" if count > BOUND else str(count)


def user_columns(found: Figures, top: int) -> list[Column[User]]:
    more = len(found.users) > top
    title = _("users (%(top)s of %(all)s)") % {"top": top, "all": len(found.users)}
    return [
        Column(title if more else _("user"), lambda user: user.user or "-", elastic=True),
        Column(_("running"), lambda user: str(user.running), right=True),
        Column(_("at most"), lambda user: or_dash(user.max_running), right=True),
        Column(_("waiting"), lambda user: str(user.waiting), right=True),
        Column(_("later"), lambda user: str(later(user.counts)), right=True),
        Column(_("weight"), lambda user: f"{user.weight:g}", right=True),
        Column("", lambda user: _("paused") if user.paused else ""),
    ]


def later(counts: Counter[str]) -> int:
    return counts["scheduled"] + counts["retrying"] + counts["blocked"]


def dead_columns() -> list[Column[tuple[tuple[str, str], int]]]:
    return [
        Column(_("did not finish"), lambda dead: dead[0][0]),
        Column(_("because"), lambda dead: dead[0][1] or "-", elastic=True),
        Column(_("tasks"), lambda dead: str(dead[1]), right=True),
    ]


def summary(found: Figures, top: int) -> dict[str, object]:
    dead = dead_by_status(found)
    return {
        "queue": found.queue,
        "counts": {
            **{status.value: found.counts[status] for status in LIVE},
            "finished": min(found.finished, BOUND),
            **{outcome.value: dead[outcome] for outcome in DEAD},
        },
        "more_finished": found.finished > BOUND,
        "more_dead": found.dead.total() > BOUND,
        "working": found.working,
        "oldest_due_for": found.oldest,
        "users_with_work": len(found.users),
        "users": [
            {
                "user": user.user or None,
                **user.counts,
                "working": user.working,
                "weight": user.weight,
                "max_running": user.max_running,
                "paused": user.paused,
            }
            for user in found.users[:top]
        ],
        "dead_letters": [
            {"status": status, "group": group, "count": count}
            for (status, group), count in found.dead.most_common(top)
        ],
    }
