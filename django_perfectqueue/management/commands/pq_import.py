from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

from django.core.management.base import CommandError, CommandParser
from django.db import Error
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue import compat
from django_perfectqueue.application import Dispatch
from django_perfectqueue.conf import options as settings
from django_perfectqueue.exceptions import PerfectQueueError
from django_perfectqueue.worker.discovery import found, types_of, with_django_tasks

from ..base import INTERRUPTED, CommandOptions, QueueCommand, at_least, diagnosis, known_alias
from ..importing import SOURCES, Move, Source, Tally
from ..importing.move import Reason
from ..importing.source import Terms, reading
from ..tasks.facts import Facts, picked
from ..terminal.progress import Progress


class Command(QueueCommand):
    summary = gettext_lazy(
        "Moves the tasks that wait in the tables of another queue, and its schedules, into this"
        " one. What was moved"
        " before is passed over, so it may be run again. Stop the other queue's workers first."
        " Exits with 1 when some were left behind that could be moved if something were done."
    )
    queue_help = gettext_lazy(
        "The queue that gets them. By default each of django-tasks-db, dj_queue and celery-beat"
        " goes to the queue of its name, and all others to DEFAULT_QUEUE."
    )

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "source",
            metavar="SOURCE",
            choices=list(SOURCES),
            help=_("Which queue it is: %s.") % ", ".join(SOURCES),
        )
        add(
            "--from-database",
            metavar="ALIAS",
            help=_("The database that has its tables (default: the one of this queue)."),
        )
        add(
            "--from-queue",
            metavar="NAME",
            help=_("Only what is in this queue there; django-q2 calls it a cluster."),
        )
        add(
            "--table",
            metavar="NAME",
            help=_("The table, of perfectqueue or perfectsched (default: of that name)."),
        )
        add(
            "--map",
            action="append",
            type=pair,
            default=[],
            metavar="OLD=NEW",
            help=_("What a type is called here; may be repeated."),
        )
        add(
            "--any-type",
            action="store_true",
            help=_("Also tasks of types for which there is no handler."),
        )
        add(
            "--trust-pickle",
            action="store_true",
            help=_("Read the signed pickles of django-q2; only plain values are made of them."),
        )
        add("--limit", type=at_least(1), metavar="N", help=_("Move no more than so many."))
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--dry-run", action="store_true", help=_("Only say what would be moved."))
        how.add_argument(
            "--delete",
            action="store_true",
            help=_("Delete each row there once its task is here. By default they stay."),
        )

    def act(self, options: CommandOptions) -> None:
        source = source_of(self.queue.using, options)
        move = self.move(source, options)
        try:
            move.run()
        except KeyboardInterrupt as error:
            message = f"{_('Interrupted.')} {so_far(move)}"
            raise CommandError(message, returncode=INTERRUPTED) from error
        except PerfectQueueError as error:
            raise CommandError(f"{error} {so_far(move)}") from error
        except Error as error:
            raise CommandError(f"{diagnosis(move.using, error)} {so_far(move)}") from error
        finally:
            self.progress.clear()
        self.report(move)
        if count := move.tally.fixable:
            text = ngettext("%s task is left behind.", "%s tasks are left behind.", count)
            raise CommandError(text % f"{count:,}")

    def move(self, source: Source, options: CommandOptions) -> Move:
        with reading(source.terms.using):
            total = sum(table.count() for table in source.tables)
        self.progress = Progress(self.stderr, _("%s tasks looked at"), total=total)
        dispatch = None if options["any_type"] else handlers(self.queue.using)
        return Move(
            source=source,
            queue=self.queue,
            own_queues=options["queue"] is None,
            knows=knowing(dispatch),
            types=types_of(dispatch) if dispatch else (),
            renamed=dict(options["map"]),
            limit=options["limit"],
            delete=options["delete"],
            dry_run=options["dry_run"],
            progress=lambda count: self.progress.show(count, count),
        )

    def report(self, move: Move) -> None:
        notes = [note for table in move.source.tables for note in table.notes()]
        if self.as_json:
            self.print_json(as_json(move, notes))
            return
        for text in [*outcome(move), *notes]:
            self.say(text)


def source_of(using: str, options: CommandOptions) -> Source:
    """Return the source that was asked for; raise ConfigError when it can't be read as it is."""
    terms = Terms(
        using=known_alias(options["from_database"] or using),
        table=options["table"],
        queue=options["from_queue"],
        trust_pickle=options["trust_pickle"],
    )
    return SOURCES[options["source"]](terms)


def handlers(using: str) -> type[Dispatch]:
    """Return what a worker would run tasks by."""
    dispatch = found(settings().DISPATCH)
    if compat.HAS_TASKS:
        dispatch, _queues = with_django_tasks(dispatch, using)
    return dispatch


def knowing(dispatch: type[Dispatch] | None) -> Callable[[str], bool]:
    return (lambda type_: True) if dispatch is None else dispatch.knows


def pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ArgumentTypeError(_("must be OLD=NEW, not %r") % text)
    return old, new


def so_far(move: Move) -> str:
    """Say what has been done before it was broken off."""
    if move.dry_run or not move.tally.moved:
        return _("Nothing was imported.")
    count = move.tally.stored
    text = ngettext("%s task was imported", "%s tasks were imported", count) % f"{count:,}"
    if count := move.tally.schedules:
        text += ", " + ngettext("%s schedule", "%s schedules", count) % f"{count:,}"
    return text + _("; to go on, run it again.")


def outcome(move: Move) -> list[str]:
    return [first_line(move), *left_lines(move.tally)]


def first_line(move: Move) -> str:
    tally, count = move.tally, move.tally.stored
    if move.dry_run:
        text = ngettext("%s task would be imported", "%s tasks would be imported", count)
    else:
        text = ngettext("%s task is imported", "%s tasks are imported", count)
    text %= f"{count:,}"
    if tally.schedules:
        words = ngettext("%s schedule", "%s schedules", tally.schedules)
        text += _(", and %s") % (words % f"{tally.schedules:,}")
    if tally.moved:
        text += _(" (queue: %s)") % ", ".join(sorted(tally.queues))
    text += "."
    if tally.there:
        words = ngettext("%s was there already.", "%s were there already.", tally.there)
        text += " " + words % f"{tally.there:,}"
    if move.delete:
        words = ngettext("%s row is deleted there.", "%s rows are deleted there.", tally.deleted)
        text += " " + words % f"{tally.deleted:,}"
    if move.remaining == 0:
        text += " " + _("There may be more: the limit is reached.")
    return text


def left_lines(tally: Tally) -> list[str]:
    if not tally.left:
        return []
    width = max(len(f"{reason.count:,}") for reason in tally.left.values())
    lines = [_("Not moved:")]
    for why, reason in tally.left.items():
        lines.append(f"  {reason.count:>{width},} {why}")
        lines += [f"  {'':{width}}   {name}" for name in describe_reason(reason)]
    return lines


def describe_reason(reason: Reason) -> list[str]:
    more = reason.count - len(reason.names)
    return [*reason.names, _("and %d more") % more] if reason.names and more else reason.names


def as_json(move: Move, notes: list[str]) -> Facts:
    tally = move.tally
    return {
        "source": move.source.name,
        "would_import" if move.dry_run else "imported": tally.stored,
        "schedules": tally.schedules,
        "there_already": tally.there,
        "deleted": tally.deleted,
        "queues": sorted(tally.queues),
        "not_moved": [
            {"why": why, **picked(reason, "count", "fixable", "names")}
            for why, reason in tally.left.items()
        ],
        "notes": notes,
    }
