from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from django.core.management.base import CommandError

from django_perfectqueue import bulk, store
from django_perfectqueue.bulk.selection import ANY, SAMPLE, Found
from django_perfectqueue.bulk.verbs import REFUSED, chunks_of, in_place
from django_perfectqueue.exceptions import PayloadError, TaskError
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.models import Outcome, Task, TaskQuerySet
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.payload.context import masked
from django_perfectqueue.payload.inputs import merged

from ..base import CommandOptions, QueueCommand
from ..flags import FILTERS, MANY, person
from ..listing import CHOICES, list_tasks, no_group, no_tasks, selection_of, show_tasks, with_hint
from ..terminal import Column, ProgressLine, parsed, plural
from ..verbs import NounCommand, Subcommand

PAGE = 500
NOBODY = "-"
TERMS = ("to", "patch", "priority", "from_step")
ONE = {
    "copied": "Task '{copy}' is a copy of '{key}'.",
    "edited": "The data of task '{key}' are changed.",
    "moved": "Task '{key}' is in queue '{to}'.",
    "reprioritized": "Task '{key}' has the priority {priority}.",
    "requested": "Task '{key}' is held by a processor, and is asked to stop.",
    "retried": "Task '{key}' will be tried again.",
}
# Where ONE has nothing for a word.
IS = "Task '{key}' is {word}."
SEVERAL = {
    "retried": "{tasks} will be tried again.",
    "would retry": "{tasks} would be tried again.",
    "cancelled": "{tasks} {are} cancelled.",
    "would cancel": "{tasks} would be cancelled or asked to stop.",
    "requested": "{count} {are} held by a processor, and {are} asked to stop.",
    "deleted": "{tasks} {are} deleted.",
    "would delete": "{tasks} would be deleted.",
    "would move": "{tasks} would be moved.",
    "would edit": "{tasks} would be edited.",
}
# What may become of tasks that are chosen; of the first it is also said where it is none.
DONE = {"retry": ("retried",), "cancel": ("cancelled", "requested"), "delete": ("deleted",)}


def counted(word: str, count: int) -> str:
    be = "is" if count == 1 else "are"
    return SEVERAL[word].format(tasks=plural(count, "task"), are=be, count=f"{count:,}")


def steer_each(verb: bulk.Verb, command: QueueCommand, options: CommandOptions) -> None:
    """
    Do it to each task: what can't be done to one keeps none of the others from it.

    Raise CommandError, once all have been tried, when it could not be done to some.
    """
    terms = terms_of(options)
    ids, refused, keys = dict[int, str](), list[str](), options["names"]
    for key in keys:
        try:
            ids[id_of(command, key)] = key
        except TaskError as error:
            refused.append(refusal(command, key, error))
    operation = bulk.Operation(verb=verb, by=person(), **terms)
    for answer in bulk.run(operation, list(ids), using=command.queue.using):
        key = ids[answer.task[0]]
        if answer.error:
            refused.append(refusal(command, key, answer.error))
        else:
            known = {"key": key, "word": answer.word, "copy": answer.copy, **terms}
            facts = {"key": key, "done": answer.copy or answer.word}
            command.answer(facts, ONE.get(answer.word, IS).format(**known))
    total = len(ids) + sum(key not in ids.values() for key in keys)
    if total > 1:
        for message in refused:
            command.complain(message)
    if refused:
        many = f"It could not be done to {len(refused)} of {total} tasks."
        raise CommandError(many if total > 1 else refused[0])


def terms_of(options: CommandOptions) -> CommandOptions:
    return {name: value for name in TERMS if (value := options.get(name)) is not None}


def id_of(command: QueueCommand, key: str) -> int:
    """Return the id of a task; raise NotFoundError, with where it may be found."""
    task = command.queue[key]
    with with_hint(task):
        return task.id


def refusal(command: QueueCommand, key: str, error: Exception) -> str:
    """Return why it could not be done to a task; print it where programs read."""
    if command.as_json:
        command.print_json({"key": key, "error": type(error).__name__, "message": str(error)})
    return printable(str(error))


def steer(verb: bulk.Verb, command: QueueCommand, options: CommandOptions) -> None:
    if options.get("with_dependents"):
        steer_dependents(verb, command, options)
    elif not chooses(options):
        steer_each(verb, command, options)
    else:
        steer_chosen(operation_of(verb, command, options), command, options)
    if to := options.get("to"):
        command.warn_unserved(to)


def chooses(options: CommandOptions) -> bool:
    """
    Return whether tasks are chosen by filters and not by keys.

    Raise CommandError unless the options say one thing.
    """
    names = ("all", *CHOICES)
    given = [name for name in names if options[name] not in (None, False)]
    listed = f"a filter: {', '.join(map(flag, names))}"
    if given and options["names"]:
        raise CommandError(f"Give keys, or {listed}, but not both.")
    if given:
        # A filter that says nothing would be about all tasks.
        if empty := [name for name in given if name != "user" and not options[name]]:
            raise CommandError(f"{flag(empty[0])} is empty: name one, or say --all.")
        return True
    for name in ("first", "dry_run", "rate", "run_in"):
        if options[name]:
            raise CommandError(f"{flag(name)} needs {listed}.")
    if not options["names"]:
        raise CommandError(f"Which tasks? Give their keys, or {listed}.")
    return False


def flag(name: str) -> str:
    return "--tag" if name == "tags" else f"--{name.replace('_', '-')}"


def operation_of(verb: bulk.Verb, command: QueueCommand, options: CommandOptions) -> bulk.Operation:
    """
    Return what the options say; a retry without a status or a group is of what failed.

    Raise InvalidTaskError where they don't fit.
    """
    if len(options["tags"] or ()) > 1:
        raise CommandError("Tasks are steered by one --tag: pq_task list takes several.")
    selection = selection_of(command.queue, options)
    if verb == "retry" and not selection.status and not selection.group:
        selection = replace(selection, status=Outcome.FAILED.value)
    count, period = options["rate"] or (bulk.RATE, 1.0)
    using = command.queue.using
    operation = bulk.Operation(
        verb=verb,
        selection=selection,
        rate=count / period if period else math.inf,
        by=person(),
        until=store.upkeep.newest_id(using=using),
        **terms_of(options),
    )
    if not (first := options["first"]):
        return operation
    ids = operation.selection.tasks(verb, using=using).values_list("pk", flat=True)
    return replace(operation, until=max(ids[:first], default=0))


def steer_chosen(operation: bulk.Operation, command: QueueCommand, options: CommandOptions) -> None:
    """Do the operation here; if data or queue change, or on request, submit a task that does it."""
    using, verb = command.queue.using, operation.verb
    tasks = operation.selection.tasks(verb, using=using).filter(pk__lte=operation.until)
    if options["queue"] is None:
        everywhere = replace(operation.selection, queue="").tasks(verb, using=using)
        if everywhere.exclude(queue=command.queue.name).exists():
            name = printable(command.queue.name)
            command.complain(
                f"Only tasks of queue '{name}' are chosen. Others match in other queues."
            )
    if not command.as_json and not tasks.exists() and (why := why_none(command, options)):
        command.say(why)
        return
    if options["dry_run"]:
        found = bulk.preview(verb, operation.selection, until=operation.until, using=using)
        left = awaited(tasks, using=using) if verb == "cancel" else 0
        print_preview(command, operation, found, left=left)
        return
    if not options["yes"] and (count := tasks[: bulk.COUNTED].count()):
        command.confirm(counted(f"would {verb}", count))
    if operation.to or operation.patch is not None or options["rate"] or options["run_in"]:
        task = bulk.submit_bulk(operation, queue=options["run_in"] or "", using=using)
        count = task.metadata().data["total"]
        facts = {"key": task.key, "queue": task.queue.name}
        text = "Task '%(key)s' of queue '%(queue)s' does it: %(tasks)s, as far as known."
        command.answer(facts, text % {**facts, "tasks": plural(count, "task")})
        command.warn_unserved(task.queue.name)
    else:
        do_in_place(operation, chunks_of(operation, using=using), command)


def why_none(command: QueueCommand, options: CommandOptions) -> str:
    """Return what was named that does not exist, and what does, or an empty text."""
    if not command.queue.list().exists():
        return no_tasks(command.queue)
    return no_group(command.queue, options["group"]) if options["group"] else ""


def do_in_place(
    operation: bulk.Operation, chunks: Iterable[Sequence[Found]], command: QueueCommand
) -> None:
    first, *others = words = DONE[operation.verb]
    progress = ProgressLine(command.stderr, "%s tasks")
    done = Counter(dict.fromkeys(words, 0))
    for some in in_place(operation, chunks, using=command.queue.using):
        done.update(some)
        progress.show(sum(done.values()))
    progress.clear()
    refused = done.pop(REFUSED, 0)
    sentences = [counted(first, done[first]), *(counted(w, done[w]) for w in others if done[w])]
    command.answer(done, " ".join(sentences))
    if refused:
        why = "They have changed, have a later task of their key, or are waited for by others."
        raise CommandError(f"Tasks that are left: {refused}. {why}")


def steer_dependents(verb: bulk.Verb, command: QueueCommand, options: CommandOptions) -> None:
    """Do the verb to the tasks of the keys, and to those that wait for them and allow it."""
    if not options["names"] or any(options[name] for name in ("all", *CHOICES)):
        raise CommandError("--with-dependents is for keys.")
    using = command.queue.using
    ids = [id_of(command, key) for key in options["names"]]
    every = [*store.dependencies.descendants(ids, using=using), *ids]
    tasks = list[Task]()
    for start in range(0, len(every), PAGE):
        rows = TaskQuerySet(Task, using=using).with_status()
        tasks += rows.filter(ANY[verb], pk__in=every[start : start + PAGE])
    # Those that wait come before those for which they wait.
    tasks.sort(key=lambda task: -task.pk)
    operation = bulk.Operation(verb=verb, by=person(), until=store.upkeep.newest_id(using=using))
    if options["dry_run"]:
        statuses = Counter(task.status for task in tasks).most_common()
        users = Counter(task.user for task in tasks).most_common()
        counts: CommandOptions = {"total": len(tasks), "statuses": statuses, "users": users}
        print_preview(command, operation, bulk.Preview(**counts, sample=tasks[:SAMPLE], until=0))
        return
    command.confirm(counted(f"would {verb}", len(tasks)))
    names = [(task.pk, task.queue, task.key) for task in tasks]
    chunks = (names[start : start + PAGE] for start in range(0, len(names), PAGE))
    do_in_place(operation, chunks, command)


def awaited(tasks: TaskQuerySet, *, using: str) -> int:
    """Return for how many of these tasks one waits that is not among them."""
    ids, count = list(tasks.values_list("pk", flat=True)[: bulk.COUNTED]), 0
    among = set(ids).intersection
    for start in range(0, len(ids), PAGE):
        some = store.dependencies.choose(ids[start : start + PAGE], using=using, among=among)
        count += len(some.awaited)
    return count


def print_preview(
    command: QueueCommand, operation: bulk.Operation, found: bulk.Preview, *, left: int = 0
) -> None:
    """
    Print how many tasks match, by status and user, and a sample; with a patch its effect.

    Of these so many are ``left``.
    """
    rows = [sample_row(task, operation.patch) for task in found.sample]
    if command.as_json:
        facts: dict[str, object] = {"total": found.total - left, "left": left}
        facts["is_bounded"] = found.is_bounded
        facts |= {"statuses": dict(found.statuses), "users": dict(found.users), "sample": rows}
        command.print_json(facts)
        return
    more = " There may be more." if found.is_bounded else ""
    command.say(counted(f"would {operation.verb}", found.total - left) + more)
    if left:
        command.say(f"Tasks that would be left, since others wait for them: {left:,}.")
    for title, counts in (("By status", found.statuses), ("By user", found.users)):
        if counts:
            each = ", ".join(f"{printable(name) or NOBODY} {count:,}" for name, count in counts)
            command.say(f"{title}: {each}")
    print_sample(command, rows)


def print_sample(command: QueueCommand, rows: Iterable[dict[str, str]]) -> None:
    found = list(rows)
    names = found[0] if found else {}
    columns = [Column(name, shown=itemgetter(name), elastic=True) for name in names]
    command.print_table(columns, found, indent="  ")


def sample_row(task: Task, patch: JSON = None) -> dict[str, str]:
    row = {"key": task.key, "status": task.status, "type": task.type, "user": task.user}
    if patch is not None:
        row |= before_and_after(task, patch)
    return row


def before_and_after(task: Task, patch: JSON) -> dict[str, str]:
    """Return its data before and after, without what is sensitive."""
    try:
        values = task.data, merged(task.data, patch)
    except PayloadError as error:
        return {"before": str(error), "after": ""}
    return {name: dump(value) for name, value in zip(("before", "after"), values, strict=True)}


def dump(value: JSON) -> str:
    return json.dumps(masked(value), ensure_ascii=False, default=str)


STEERED = f"{FILTERS} --all {MANY} --rate --run-in"


def retry(command: NounCommand, options: CommandOptions) -> None:
    """Retry failed, cancelled and expired tasks; start scheduled and retrying ones at once."""
    steer("retry", command, options)


def cancel(command: NounCommand, options: CommandOptions) -> None:
    """Cancel tasks that have yet to run, and ask running ones to stop."""
    steer("cancel", command, options)


def finish(command: NounCommand, options: CommandOptions) -> None:
    """Close tasks as finished, even while they run."""
    steer_each("finish", command, options)


def move(command: NounCommand, options: CommandOptions) -> None:
    """Move tasks that wait or have failed to another queue."""
    steer("move", command, options)


def edit(command: NounCommand, options: CommandOptions) -> None:
    """Change the data of tasks that wait or have failed."""
    steer("edit", command, options)


def copy(command: NounCommand, options: CommandOptions) -> None:
    """Submit copies of tasks, due at once, each with a new key."""
    steer_each("copy", command, options)


def priority(command: NounCommand, options: CommandOptions) -> None:
    """Give tasks that have not ended another priority."""
    steer_each("priority", command, options)


def signal(command: NounCommand, options: CommandOptions) -> None:
    """Send a signal to a task, for which it waits now or later."""
    key, name, answer = options["names"], options["signal"], options["answer"]
    task, by = command.queue[key], person()
    with with_hint(task):
        task.signal(name, {"by": by} if answer is None else parsed(answer), by=by)
    facts = {"key": key, "done": "signalled", "signal": name}
    command.answer(facts, f"Signal '{name}' is sent to task '{key}'.")


def delete(command: NounCommand, options: CommandOptions) -> None:
    """Delete tasks that have ended; without --status those that did not finish."""
    steer("delete", command, options)


class Command(NounCommand):
    help = "Lists, shows and changes the tasks of a queue."
    metavar = "KEY"
    name_help = "Key of a task; show takes an id, too."
    label_width = 22
    examples = (
        "pq_task list --status failed --since 2h",
        "pq_task show order-42",
        "pq_task retry order-42 order-43",
        """pq_task signal order-42 approved '{"by": "ann"}'""",
        "pq_task retry --type report.draw --since 10:00 --rate 50/s --dry-run",
        "pq_task cancel --user acme --yes",
        "pq_task delete --status finished --until 30d --yes",
    )
    verbs = {
        "list": Subcommand(list_tasks, flags=f"{FILTERS} --after --oldest-first --data"),
        "show": Subcommand(show_tasks, "+", "--queue --no-data --log"),
        "retry": Subcommand(retry, "*", f"{STEERED} --to --patch --with-dependents"),
        "cancel": Subcommand(cancel, "*", f"{STEERED} --with-dependents"),
        "finish": Subcommand(finish, "+", "--queue"),
        "move": Subcommand(move, "*", f"{STEERED} --to!"),
        "edit": Subcommand(edit, "*", f"{STEERED} --patch!"),
        "copy": Subcommand(copy, "+", "--queue --from-step"),
        "priority": Subcommand(priority, "+", "priority --queue"),
        "signal": Subcommand(signal, "1", "signal answer? --queue"),
        "delete": Subcommand(delete, "*", STEERED),
    }
