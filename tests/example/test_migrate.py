"""What the pages for those who come from elsewhere show of ours is there, and works."""

import re
from contextlib import contextmanager
from unittest import mock, skipUnless

from django.test import SimpleTestCase, TestCase, override_settings

from django_perfectqueue import compat, conf
from django_perfectqueue.application import Registry
from django_perfectqueue.models import Task

from ..documentation.test_docs import DJANGOS, names, options_of
from .pages import DOCS, FENCED

PAGES = DOCS / "howto" / "migrate"
BACKEND = "django_perfectqueue.backend.PerfectQueueBackend"
THEIRS = re.compile(r"^from (celery|huey|django_q|shop)\b", re.MULTILINE)
COMMAND = re.compile(r"\b(pq_\w+)([^`|\n]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
ELSEWHERE = {"pq_connect_timeout"}
LEFT_OUT = {
    "pages": range(2),
    **{name: lambda *args: None for name in ("deliver", "look_at", "remember", "store")},
}
SUBMITTED = {
    "from-celery.md": 5,
    "from-django-q2.md": 1,
    "from-django-tasks-db.md": 2,
    "from-huey.md": 4,
    "from-ruby-perfectqueue.md": 1,
}


def blocks(page):
    """Return the Python of a page: whether it is about this package, and the code."""
    text, end = page.read_text(), 0
    for match in FENCED.finditer(text):
        lead = text[end : match.start()].rstrip().rpartition("\n")[2]
        end = match.end()
        if match[1] == "python":
            yield not (lead.startswith("With ") or THEIRS.search(match[2])), match[2]


@skipUnless(PAGES.is_dir(), "The documentation is not beside the tests.")
@skipUnless(compat.HAS_TASKS, "Neither Django nor django-tasks has tasks here.")
@override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail", "heavy"]}})
class CodeTests(TestCase):
    def test_ours_submits_as_many_tasks_as_it_says_and_they_run(self):
        """
        Theirs is only to be Python. Handlers of the queue's own wait here for who knows them.
        """
        from ..backend.inline import run_due

        for name, count in SUBMITTED.items():
            before = Task.objects.count()
            with self.subTest(name), as_if_alone():
                module = {"__name__": name.removesuffix(".md"), "INSTALLED_APPS": [], **LEFT_OUT}
                for ours, code in blocks(PAGES / name):
                    compiled = compile(code, name, "exec")
                    if ours:
                        exec(compiled, module)
                words = [ending.word for ending in run_due()]
                self.assertEqual(Task.objects.count() - before, count)
                self.assertEqual(list(conf.problems(module.get("PERFECTQUEUE", {}))), [])
                self.assertLessEqual(set(words), {"finished", "released"})
                self.assertEqual("finished" in words, name != "from-ruby-perfectqueue.md")


@contextmanager
def as_if_alone():
    """Forget afterwards which handlers, tasks and receivers a page has made known."""
    from django_perfectqueue.backend.definition import definitions

    finished = compat.signals.task_finished
    with (
        mock.patch.dict(Registry.routes),
        mock.patch.dict(definitions),
        mock.patch.object(finished, "receivers", list(finished.receivers)),
    ):
        yield


@skipUnless(PAGES.is_dir(), "The documentation is not beside the tests.")
class CommandTests(SimpleTestCase):
    def test_each_command_and_option_of_ours_is_there(self):
        there = {name: options_of(name) | DJANGOS for name in names()}
        known = set().union(*there.values())
        for file in sorted(PAGES.glob("*.md")):
            with self.subTest(file.name):
                text = file.read_text()
                for name, rest in COMMAND.findall(text):
                    self.assertIn(name, there.keys() | ELSEWHERE)
                    self.assertLessEqual(set(OPTION.findall(rest)), there.get(name, known))
                for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
                    self.assertLessEqual(set(OPTION.findall(row.split("|")[-2])), known)
