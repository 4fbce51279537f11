from __future__ import annotations

from dataclasses import replace

from django.core.management.base import CommandParser

from django_perfectqueue.bulk import Selection
from django_perfectqueue.models import Outcome

from ..base import CommandOptions
from ..tasks.bulk_preview import add_change_options
from ..tasks.together import TogetherCommand


class Command(TogetherCommand):
    summary = (
        "Puts failed, cancelled and expired tasks back in their line, with their counts of errors"
        " at 0, and hastens tasks that wait for their time."
    )
    verb = "retry"
    terms = ("rate", "run_in", "to", "patch")
    all_help = "Every task that ended with --status."
    status_help = "%s (failed)."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        add_change_options(parser)

    def selection(self, options: CommandOptions) -> Selection:
        chosen = super().selection(options)
        if chosen.status or chosen.group:
            return chosen
        return replace(chosen, status=Outcome.FAILED.value)
