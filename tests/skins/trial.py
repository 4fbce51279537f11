"""
Open every page of the admin, and press each button of a task, in one skin; print what came.

``PERFECTQUEUE_TEST_SKIN=unfold python -m tests.skins.trial``; see tests/skins/settings.py.
"""

import json
import re
import sys

import django

LINK = re.compile(r"""(?:href|action|data-url)="(/[^"]*)""")


def main():
    django.setup()
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    connection.creation.create_test_db(verbosity=0)
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("boss"))
    addresses = list(fill())
    found = {"pages": {}, "strays": {}}
    for site, other in (("admin", "ops"), ("ops", "admin")):
        for method, address, data in addresses:
            path = address.replace("/admin/", f"/{site}/", 1)
            response = getattr(client, method)(path, data)
            name = f"{method} {path} {json.dumps(data)}"
            found["pages"][name] = response.status_code
            links = [*LINK.findall(response.content.decode()), response.headers.get("Location", "")]
            if strays := [link for link in links if link.startswith(f"/{other}/")]:
                found["strays"][name] = sorted(set(strays))
    sys.stdout.write(f"{json.dumps(found)}\n")


def fill():
    """Store one of all that pages show; yield the requests that show them."""
    from django_perfectqueue import store
    from django_perfectqueue.admin.parts.actions import VERBS
    from django_perfectqueue.models import Batch, DeadLetter, Schedule, Task
    from tests.admin.test_scope import APP, OURS, THEIRS, fill, shown_pages
    from tests.admin.test_statements import stories
    from tests.factories import register

    for whose in (OURS, THEIRS):
        fill(whose)
    stories("stories")
    store.upkeep.wake_forgotten_lanes(using="default")
    register("stories", now=None)
    yield from (("get", path, {}) for path in ("/admin/", APP, *shown_pages()))
    for model in (Task, Batch, DeadLetter, Schedule):
        for row in model.objects.all():
            yield "get", f"{APP}{model._meta.model_name}/{row.pk}/change/", {}
    for query in ({"status": "all"}, {"q": OURS}, {"queue": "stories"}, {"over": "day"}):
        for name in ("task", "deadletter", "account", "usage", "overview/figures", "task/bulk"):
            yield "get", f"{APP}{name}/", query
    ids = ",".join(str(row.pk) for row in Task.objects.all())
    batch = Batch.objects.latest("pk").pk
    for verb in VERBS:
        yield "post", f"{APP}task/steer/{verb}/", {"ids": ids}
    for sent in ({"batch": batch}, {"dependents": Task.objects.earliest("pk").pk}):
        yield "post", f"{APP}task/steer/cancel/", sent
    letter = DeadLetter.objects.latest("pk")
    yield "post", f"{APP}deadletter/retry-group/", {"group": letter.group, "status": "all"}
    yield "post", f"{APP}deadletter/{letter.pk}/change/", {}


if __name__ == "__main__":
    main()
