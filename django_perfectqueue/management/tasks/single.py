"""Commands that do one thing to each of several tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue.bulk import Answer, Operation, Verb, run
from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.lib.printable import printable

from ..base import CommandOptions, QueueCommand
from ..queues.rule_command import person
from .hints import with_hint

SENTENCES = {
    "cancelled": "Task '{key}' is cancelled.",
    "copied": "Task '{copy}' is a copy of '{key}'.",
    "edited": "The data of task '{key}' are changed.",
    "finished": "Task '{key}' is finished.",
    "moved": "Task '{key}' is in queue '{to}'.",
    "reprioritized": "Task '{key}' has the priority {priority}.",
    "requested": "Task '{key}' is held by a processor, and is asked to stop.",
    "retried": "Task '{key}' will be tried again.",
}


class SteeringCommand(QueueCommand):
    """
    A command that takes keys, does its ``verb`` to each, and says what became of it.

    What can't be done to one task keeps none of the others from it.
    """

    verb: ClassVar[Verb]

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("keys", metavar="KEY", nargs="+", help="Keys of the tasks.")

    def act(self, options: CommandOptions) -> None:
        self.steer_all(options["keys"])

    def steer_all(self, keys: Iterable[str]) -> None:
        """
        Do it to each task.

        Raise CommandError, once all have been tried, when it could not be done to some.
        """
        given = ("to", "patch", "priority")
        terms = {name: value for name in given if (value := self.options.get(name)) is not None}
        operation = Operation(verb=self.verb, by=person(), **terms)
        ids, refused = dict[int, str](), list[str]()
        for key in keys:
            try:
                with with_hint(self.queue[key]):
                    ids[self.queue[key].id] = key
            except TaskError as error:
                refused.append(self.refusal(key, error))
        for answer in run(operation, list(ids), using=self.queue.using):
            if answer.error:
                refused.append(self.refusal(ids[answer.task[0]], answer.error))
            else:
                self.report(ids[answer.task[0]], answer, terms)
        total = len(ids) + sum(key not in ids.values() for key in keys)
        if refused and total == 1:
            raise CommandError(refused[0])
        for message in refused:
            self.complain(message)
        if refused:
            raise CommandError(f"It could not be done to {len(refused)} of {total} tasks.")

    def report(self, key: str, answer: Answer, terms: dict[str, object]) -> None:
        facts = {"key": key, "done": answer.copy or answer.word}
        self.answer(facts, SENTENCES[answer.word].format(key=key, copy=answer.copy, **terms))

    def refusal(self, key: str, error: Exception) -> str:
        """Return why it could not be done to a task; print it where programs read."""
        if self.as_json:
            self.print_json({"key": key, "error": type(error).__name__, "message": str(error)})
        return printable(str(error))
