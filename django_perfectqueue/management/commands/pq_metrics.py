from __future__ import annotations

from django.core.management.base import CommandParser

from django_perfectqueue.lib.printable import printable_lines
from django_perfectqueue.metrics.text import of_database

from ..base import CommandOptions, QueueCommand


class Command(QueueCommand):
    summary = (
        "Prints the metrics of all queues as Prometheus reads them, for instance for the text file"
        " collector of its node exporter."
    )
    queue_help = ""

    def add_options(self, parser: CommandParser) -> None:
        """It has none."""

    def act(self, options: CommandOptions) -> None:
        text, _type = of_database(self.queue.using)
        if not self.as_json:
            self.stdout.write(printable_lines(text.decode()), ending="")
            return
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                facts = {"name": sample.name, "labels": sample.labels, "value": sample.value}
                self.print_json(facts)
