"""
How many statements each page takes, whatever there is.

The first two find the session and the user. For who is no superuser Django reads the permissions
by two more: those of the user and those of its groups.
"""

import re

from django.contrib.auth.models import Permission
from django.db import connection
from django.test import override_settings, tag
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.models import Step, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain

from ..factories import NOON, register, submit
from .staff import AdminTestCase, staff
from .test_scope import APP, HERE, OURS, THEIRS, fill, shown_pages

MOST = 15


def stories(queue):
    """Store tasks with all that can hang on one: limits, tags, parents, children, batches."""
    names = {"queue": queue, "type": "report", "user": "ann", "now": None}
    submit("workflow", **{**names, "type": "decide"}).signal("paid", {"sum": 7})
    drain(queue)
    for key in ("p1", "p2"):
        submit(key, **names)
    after = [Queue(queue)["p1"], Queue(queue)["p2"]]
    for key in ("waiting", "running"):
        submit(key, limits=["smtp"], tags=["red", "blue"], **names)
    submit("blocked", after=after, tags=["red"], **names)
    for key in ("c1", "c2"):
        submit(
            key, after=[Queue(queue)[name] for name in ("waiting", "running", "blocked")], **names
        )
    submit("grandchild", after=[Queue(queue)["c1"]], **names)
    with Queue(queue).batch("nightly", user="ann") as batch:
        for number in range(3):
            batch.submit(f"member-{number}", "report", user="ann")
        batch.then("callback", "report", when="finished")
        with batch.batch("inner", user="ann") as inner:
            inner.submit("figure", "report")
        batch.then("other-callback", "report", when="failed")


@override_settings(ROOT_URLCONF=HERE)
class StatementTests(AdminTestCase):
    @classmethod
    def setUpTestData(cls):
        super().setUpTestData()
        for whose in (OURS, THEIRS):
            fill(whose)
        stories("stories")
        store.upkeep.wake_forgotten_lanes(using="default")
        register("stories", now=None)
        for task in Task.objects.all():
            Step.objects.create(task_id=task.pk, name="load", result_text="1", kept_at=NOON)
            store.records.sign([(task.queue, task.key)], "retried", by="ann", using="default")

    @tag("any-database")
    def test_no_page_takes_more_than_fifteen(self):
        lists = [url for url in shown_pages() if not re.search(r"\d", url)]
        of_each_kind = {re.sub(r"\d+", "", url): url for url in shown_pages() if url not in lists}
        stories = [f"{APP}task/{task.pk}/change/" for task in Task.objects.all()]
        filters = ({"queue": "stories"}, {"q": "key"}, {"user": "ann", "status": "all"})
        for url in (*lists, *of_each_kind.values(), *stories):
            for query in ({}, *(filters if url in lists else ())):
                with CaptureQueriesContext(connection) as captured:
                    status = self.client.get(url, query).status_code
                with self.subTest(url=url, query=query, status=status):
                    self.assertLessEqual(len(captured), MOST)

    def test_who_is_no_superuser_takes_only_the_two_for_the_permissions_more(self):
        names = Permission.objects.filter(content_type__app_label="perfectqueue")
        reader = staff(*names.values_list("codename", flat=True), name="reader")
        for url in sorted({url for url in shown_pages() if re.fullmatch(rf"{APP}\w+/", url)}):
            counts = []
            for user in (self.boss, reader):
                self.client.force_login(user)
                self.client.get(url)
                sent = self.statements(url)
                counts.append((len(sent), sum("auth_permission" in sql for sql in sent)))
            (bare, none), (whole, permissions) = counts
            with self.subTest(url=url):
                self.assertEqual((none, permissions, whole), (0, 2, bare + 2))
