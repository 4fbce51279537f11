from __future__ import annotations

from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date

from django.core.management.base import CommandParser
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_perfectqueue.inspection.statistics import Statistics, by_type, lifetime
from django_perfectqueue.lib.distinct import distinct
from django_perfectqueue.lib.durations import short_duration
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import DEAD, LIVE, Status, Usage

from ..base import CommandOptions, QueueCommand, at_least
from ..queues.figures import BOUND, Figures, User, figures
from ..tasks.hints import no_tasks
from ..terminal.table import GAP, Column, lines, terminal_width

TODAY, ALL_TIME = "today", "all"

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
        parser.add_argument(
            "--day",
            nargs="?",
            const=TODAY,
            type=day_or_all,
            metavar="DAY",
            help=_(
                "How attempts ended on a day in UTC, as 2026-11-22, and how long they took, by"
                " type; today where no day follows; 'all' for all time."
            ),
        )

    def act(self, options: CommandOptions) -> None:
        if options["day"] is not None:
            self.print_day(options)
            return
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
            self.print_table(user_columns(found, top), map(user_cells, found.users[:top]))
        if found.dead and top:
            columns = [Column(_("did not finish")), Column(_("because"), elastic=True)]
            columns.append(Column(_("tasks"), right=True))
            self.print_table(columns, dead_cells(found, top))

    def print_day(self, options: CommandOptions) -> None:
        using, day = self.queue.using, options["day"]
        named = options["queue"]
        for queue in [named] if named else distinct(Usage._default_manager.using(using), "queue"):
            if day == ALL_TIME:
                found = lifetime(queue, using=using)
            else:
                found = by_type(queue, None if day == TODAY else day, using=using)
            if self.as_json:
                for one in found:
                    self.print_json(one.facts())
                continue
            title = _("Queue '%(queue)s', %(day)s") % {
                "queue": queue,
                "day": found[0].day or _("all time"),
            }
            self.stdout.write(self.style.MIGRATE_HEADING(printable(title)))
            self.print_table(day_columns(), map(day_cells, found))

    def print_table(self, columns: Sequence[Column], rows: Iterator[list[str]]) -> None:
        width = terminal_width(self.stdout)
        table = lines(columns, rows, width=width and width - len(GAP))
        self.stdout.write("\n" + GAP + self.style.MIGRATE_LABEL(GAP.join(next(table)).rstrip()))
        for cells in table:
            self.stdout.write(GAP + GAP.join(cells).rstrip())


def day_or_all(text: str) -> date | str:
    """Return a day, or that all time is meant. Raise ArgumentTypeError for anything else."""
    if text in (TODAY, ALL_TIME):
        return text
    try:
        return date.fromisoformat(text)
    except ValueError:
        sentence = _("'%s' is no day such as 2026-11-22, and not 'all'.")
        raise ArgumentTypeError(sentence % text) from None


def day_columns() -> list[Column]:
    return [
        Column(_("type"), elastic=True),
        Column(_("finished"), right=True),
        Column(_("retried"), right=True),
        Column(_("failed"), right=True),
        Column(_("cancelled"), right=True, spare=True),
        Column(_("lost"), right=True, spare=True),
        Column(_("run mean s"), right=True),
        Column(_("deviation"), right=True, spare=True),
        Column("p95", right=True),
        Column(_("wait mean s"), right=True),
        Column("p95", right=True),
    ]


def day_cells(found: Statistics) -> list[str]:
    counted = (found.finished, found.retried, found.failed, found.cancelled, found.lost)
    run, wait = found.run, found.wait
    lengths = (run.mean, run.deviation, run.p95, wait.mean, wait.p95)
    return [
        found.type or _("all"),
        *map(str, counted),
        *("-" if seconds is None else f"{seconds:.3g}" for seconds in lengths),
    ]


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


def user_columns(found: Figures, top: int) -> list[Column]:
    more = len(found.users) > top
    title = _("users (%(top)s of %(all)s)") % {"top": top, "all": len(found.users)}
    return [
        Column(title if more else _("user"), elastic=True),
        Column(_("running"), right=True),
        Column(_("at most"), right=True),
        Column(_("waiting"), right=True),
        Column(_("later"), right=True),
        Column(_("weight"), right=True),
        Column(""),
    ]


def user_cells(user: User) -> list[str]:
    later = user.counts["scheduled"] + user.counts["retrying"] + user.counts["blocked"]
    return [
        user.user or "-",
        str(user.running),
        "-" if user.max_running is None else str(user.max_running),
        str(user.waiting),
        str(later),
        f"{user.weight:g}",
        _("paused") if user.paused else "",
    ]


def dead_cells(found: Figures, top: int) -> Iterator[list[str]]:
    for (status, group), count in found.dead.most_common(top):
        yield [status, group or "-", str(count)]


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
