from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from django.core.management.base import CommandParser
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_perfectqueue import store
from django_perfectqueue.bulk import Selection
from django_perfectqueue.inspection import steering
from django_perfectqueue.models import DEAD, Outcome, TaskQuerySet
from django_perfectqueue.payload.names import JSON
from django_perfectqueue.queue import TaskHandle

from ..base import CommandOptions
from ..queues.rule_command import person
from ..tasks.bulk import SelectingCommand
from ..tasks.bulk_preview import add_change_options
from ..tasks.hints import no_group
from ..tasks.together import TogetherCommand


class Command(TogetherCommand):
    fitting = Q(dead_letter__isnull=False)
    to: str | None
    patch: JSON

    summary = gettext_lazy(
        "Puts failed, cancelled and expired tasks back in their line, with their counts of"
        " errors at nought, and hastens tasks that wait for their time."
    )
    statuses: ClassVar[list[str]] = [outcome.value for outcome in DEAD]
    verb = "retry"
    terms = ("rate", "run_in", "to", "patch")
    choices = ("group", *SelectingCommand.choices)
    outcomes = ("retried",)
    page_by = "dead_letter__task_id"

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add_change_options(parser)
        parser.add_argument(
            "--group",
            metavar="ERROR",
            help=_("Every task that ended for this reason, such as builtins.ValueError."),
        )

    def all_help(self) -> str:
        return _("Every task that ended with --status.")

    def status_help(self) -> str:
        return _("%s (failed).") % ", ".join(self.statuses)

    def act(self, options: CommandOptions) -> None:
        self.to, self.patch = options["to"], options["patch"]
        super().act(options)

    def selection(self, options: CommandOptions) -> Selection:
        chosen = super().selection(options)
        if chosen.status or chosen.group:
            return chosen
        return replace(chosen, status=Outcome.FAILED.value)

    def steer(self, task: TaskHandle) -> tuple[str, str]:
        if self.patch is not None:
            task.edit_data(self.patch, by=person())
        if self.to:
            task = task.move(self.to, by=person())
        task.retry()
        return _("Task '%s' will be tried again.") % task.key, "retried"

    def sign(self, keys: Iterable[str], word: str) -> None:
        names = ((self.to or self.queue.name, key) for key in keys)
        steering.sign(names, word, by=person(), using=self.queue.using)

    def steer_id(self, task_id: int) -> str:
        store.retry_ended(task_id, using=self.queue.using)
        return "retried"

    def tasks(self, options: CommandOptions) -> TaskQuerySet:
        tasks = self.queue.list()
        status, group = options["status"], options["group"]
        if group is not None:
            tasks = tasks.filter(dead_letter__group=group)
        if status or group is None:
            tasks = tasks.in_status(status or Outcome.FAILED)
        return tasks

    def none_found(self, options: CommandOptions) -> str:
        group = options["group"]
        return "" if group is None else no_group(self.queue, group)

    def summary_of(self, done: dict[str, int], *, dry: bool = False) -> str:
        count = sum(done.values())
        if dry:
            text = ngettext(
                "%s task would be tried again.", "%s tasks would be tried again.", count
            )
        else:
            text = ngettext("%s task will be tried again.", "%s tasks will be tried again.", count)
        return text % count
