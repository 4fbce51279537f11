"""Commands that do one thing to each of several tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from django.core.management.base import CommandError, CommandParser

from django_perfectqueue.exceptions import TaskError
from django_perfectqueue.inspection import steering
from django_perfectqueue.lib.printable import printable
from django_perfectqueue.queue import TaskHandle

from ..base import CommandOptions, QueueCommand
from ..queues.rule_command import person
from .hints import with_hint


class SteeringCommand(QueueCommand):
    """
    A command that takes keys, and says of each what became of it.

    ``steer`` does it to one task, and returns a sentence about it and a word for
    programs. What can't be done to one task keeps none of the others from it. The command
    ``signs`` what it did where the store has not recorded it with the change.
    """

    signs: ClassVar[bool] = True

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("keys", metavar="KEY", nargs="+", help="Keys of the tasks.")

    def act(self, options: CommandOptions) -> None:
        self.steer_all(options["keys"])

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        raise NotImplementedError

    def steer_all(self, keys: Iterable[str]) -> None:
        """
        Steer each task.

        Raise CommandError, once all have been tried, when it could not be done to some.
        """
        total, refused = 0, []
        for key in keys:
            total += 1
            if error := self.refused(self.queue[key]):
                refused.append(error)
        if refused and total == 1:
            raise CommandError(refused[0])
        for message in refused:
            self.complain(message)
        if refused:
            raise CommandError(f"It could not be done to {len(refused)} of {total} tasks.")

    def sign(self, keys: Iterable[str], word: str) -> None:
        """Write down who did it."""
        if self.signs:
            names = ((self.queue.name, key) for key in keys)
            steering.sign(names, word, by=person(), using=self.queue.using)

    def refused(self, task: TaskHandle) -> str:
        """Steer one task; return why it could not be done, or nothing."""
        try:
            with with_hint(task):
                sentence, word = self.steer(task)
        except TaskError as error:
            if self.as_json:
                self.print_json(
                    {"key": task.key, "error": type(error).__name__, "message": str(error)}
                )
            return printable(str(error))
        self.sign([task.key], word)
        self.answer({"key": task.key, "done": word}, sentence)
        return ""
