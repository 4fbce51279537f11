"""
Run tasks of tenants and of none in one type of processors, and print how many saw what.

``python -m tests.tenancy.trial TYPE COUNT`` in an empty database; see tests/tenancy/settings.py.
"""

import itertools
import json
import sys
from collections import Counter
from uuid import uuid4

import django


def main(type_, count):
    django.setup()
    from django.core.management import call_command
    from django_tenants.utils import schema_context

    from django_perfectqueue.models import Task
    from django_perfectqueue.queue import Queue
    from django_perfectqueue.schedules import Schedules

    from .models import Customer
    from .rows.models import Row

    call_command("migrate_schemas", "--shared", verbosity=0)
    names = ("acme", "blue", "public")
    for name in names[:2]:
        if not Customer.objects.filter(schema_name=name).exists():
            Customer(schema_name=name).save(verbosity=0)
        with schema_context(name):
            Row.objects.get_or_create(owner=name)
    Queue().clear()

    acts = (None, None, "leave", "raise", "leave open")
    mixed = itertools.cycle(itertools.product(acts, ("look", "alook"), names))
    for number, (act, kind, name) in zip(range(count), mixed):  # noqa: B905
        with schema_context(name):
            data = {"tenant": name, "act": act}
            Queue().submit(f"{number}", kind, data)
    for name in names:
        with schema_context(name):
            data = {"tenant": name, "act": "overrun"}
            for kind in ("look", "alook"):
                Queue().submit(f"over-{kind}-{name}", kind, data, time_limit=0.5)
            data = {"tenant": name, "act": None}
            Schedules().put(f"schedule-{name}", "look", data, every="1m")
            with Queue().batch(f"{uuid4()}-{name}") as batch:
                batch.submit(f"in-{name}", "look", data)
                batch.then(f"then-{name}", "alook", data)
    with schema_context("blue"):
        for name in names:
            Schedules()[f"schedule-{name}"].trigger()
            Queue()[f"in-{name}"].copy(f"copy-{name}")
    call_command(
        "pq_worker", "--burst", "--processors", "2", "--processor-type", type_, verbosity=0
    )
    found = Counter()
    for task in Task.objects.all():
        own = [task.data["tenant"], *([task.data["tenant"]] * (task.data["tenant"] != "public"))]
        found[task.status] += 1
        if task.result != own:
            found["foreign"] += 1
            sys.stderr.write(f"{task.key} {task.data} {task.result} {task.status}\n")
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
