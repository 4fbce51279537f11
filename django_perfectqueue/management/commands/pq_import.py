from __future__ import annotations

from dataclasses import asdict

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue.health.queues import unserved
from django_perfectqueue.worker.discovery import workers_dispatch

from ..base import CommandOptions, QueueCommand, known_alias
from ..flags import add_flags
from ..importing.move import ImportTally, Move
from ..importing.sources import SOURCES
from ..terminal import ProgressLine, are, plural


class Command(QueueCommand):
    help = (
        "Moves the tasks that wait in the table of another queue, and its schedules, into this"
        " one. It skips what it has moved before, so it may be run again. Stop the other"
        " queue's workers first. Exits with 1 when rows are left behind, and prints the reasons."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        text = f"Which queue: {', '.join(SOURCES)}."
        parser.add_argument("source", metavar="SOURCE", nargs="?", choices=list(SOURCES), help=text)
        add_flags(parser, "--queue --from-database --table --map --any-type --dry-run")
        super().add_arguments(parser)

    def act(self, options: CommandOptions) -> None:
        if options["source"] is None:
            example = "pq_import celery-beat --dry-run"
            raise CommandError(f"From which queue? {', '.join(SOURCES)}. Example: {example}")
        using = self.queue.using
        table = SOURCES[options["source"]](
            known_alias(options["from_database"] or using),
            name=options["table"],
        )
        progress = ProgressLine(self.stderr, "%s rows looked at")
        move = Move(
            table=table,
            queue=self.queue,
            own_queues=options["queue"] is None,
            dispatch=None if options["any_type"] else workers_dispatch(using),
            renamed=dict(options["map"]),
            dry_run=options["dry_run"],
            progress=progress.show,
        )
        try:
            move.run()
        except BaseException:
            self.complain("To continue, run it again: it skips what has been moved.")
            raise
        finally:
            progress.clear()
        notes = [*move.table.notes(), *unserved(move.tally.queues, using=using)]
        if self.as_json:
            facts = {"source": table.source, "dry_run": move.dry_run, "notes": notes}
            self.print_json({**facts, **asdict(move.tally)})
        else:
            for text in [first_line(move), *lines_of_rows_that_stay(move.tally), *notes]:
                self.say(text)
        if count := move.tally.left_behind:
            raise CommandError(f"{are(count, 'row')} left behind.")


def first_line(move: Move) -> str:
    tally = move.tally
    text = f"{'To be imported' if move.dry_run else 'Imported'}: {plural(tally.stored, 'task')}"
    if tally.schedules:
        text += f" and {plural(tally.schedules, 'schedule')}"
    if tally.queues:
        text += f" (queue: {', '.join(sorted(tally.queues))})"
    text += "."
    if tally.there:
        text += f" {tally.there:,} {'was' if tally.there == 1 else 'were'} there already."
    return text


def lines_of_rows_that_stay(tally: ImportTally) -> list[str]:
    """Return the lines of what is not to be moved, then of what is left behind."""
    lines = []
    for title, left_behind in (("Not to be moved:", False), ("Left behind:", True)):
        stay = [item for item in tally.stay.items() if item[1].left_behind == left_behind]
        lines += [title] if stay else []
        lines += [line for why, reason in stay for line in reason.described(why)]
    return lines
