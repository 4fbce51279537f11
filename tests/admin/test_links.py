"""Pages link only to pages that their reader may see."""

import re
from contextvars import Context
from html import unescape

from django.template import Context as TemplateContext
from django.template import Template
from django.test import override_settings, tag
from django.urls import reverse

from django_perfectqueue.fairness import set_limit, set_share
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.templatetags.perfectqueue import page_url

from ..factories import failed, register, submit
from .staff import AdminTestCase, staff

MODELS = (
    *("overview", "task", "deadletter", "fairshare", "queueshare", "limit"),
    *("schedule", "batch", "worker"),
)
ADDRESS = re.compile(r'(?:href|action)="(/admin/perfectqueue/[^"]*|\?[^"]*)"')


def only_ann(request):
    return ["ann"]


@tag("any-database")
class LinkTests(AdminTestCase):
    def setUp(self):
        register("default", now=None, release="r1")
        with Queue().batch("b", user="ann") as batch:
            batch.submit("member", "report", user="ann", limits=["smtp"])
        submit("waits", user="ann", now=None, tags=["red"])
        failed("broken", user="ann", now=None)
        Schedules().put("nightly", "report", every=60, user="ann")
        Schedules()["nightly"].trigger()
        set_share("ann", weight=2, paused=True)
        set_limit("smtp", max_running=2)
        Queue().pause()

    def refused(self, user, *models):
        """Return the links of the pages of these models that refuse their reader."""
        self.client.force_login(user)
        todo = [reverse(f"admin:perfectqueue_{model}_changelist") for model in models]
        seen, refused = set(todo), []
        for depth in range(3):
            found = {}
            for url in todo:
                response = self.client.get(url)
                if response.status_code == 403:
                    refused.append(url)
                elif response.status_code == 200 and depth < 2:
                    for address in map(unescape, ADDRESS.findall(response.content.decode())):
                        at = address if address.startswith("/") else url.partition("?")[0] + address
                        found[at] = None
            todo = [url for url in found if url not in seen and "/steer/" not in url]
            seen |= set(todo)
        return refused

    def test_where_no_page_of_an_admin_is_shown_there_are_no_links(self):
        source = "{% load perfectqueue %}{% list_link 'task' 'Tasks' queue='a' %}"
        shown = Context().run(Template(source).render, TemplateContext())
        self.assertEqual(shown, "Tasks")
        address = Context().run(page_url, "task_changelist")
        self.assertEqual(address, "/admin/perfectqueue/task/")
        self.client.get(address)
        self.assertEqual(Template(source).render(TemplateContext()), "Tasks", "nor after one")

    def test_a_reader_of_one_kind_of_pages_finds_no_link_to_another(self):
        for model in MODELS:
            with self.subTest(model):
                user = staff(f"view_{model}", name=f"of-{model}")
                self.assertEqual(self.refused(user, model), [])

    def test_nor_does_one_who_sees_only_some_users(self):
        models = ("task", "deadletter", "fairshare", "schedule", "batch")
        user = staff(*(f"view_{model}" for model in MODELS), name="of-ann")
        with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": "tests.admin.test_links.only_ann"}):
            self.assertEqual(self.refused(user, *models), [])
