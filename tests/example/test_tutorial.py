"""The tutorial is followed to the letter, and what it says is printed is printed."""

import tempfile
from unittest import skipUnless

from django.db import connection
from django.test import SimpleTestCase, tag

from django_perfectqueue import compat

from .pages import DOCS, Project, sections

FIRST = "The first task"
MOST_LINES = 6
MOST_COMMANDS = 3


class Reader(SimpleTestCase):
    """Someone who does what a page says, in an empty folder."""

    def setUp(self):
        self.project = Project(self, self.enterContext(tempfile.TemporaryDirectory()))
        self.addCleanup(self.project.close)
        self.sections = sections("docs/tutorial.md")
        self.follow("Make a project")

    def follow(self, *titles):
        for title in titles:
            self.project.follow(self.sections[title])


@skipUnless(DOCS.is_dir(), "The documentation is not beside the tests.")
@skipUnless(connection.vendor == "sqlite", "Its project is on SQLite.")
@skipUnless(compat.HAS_NATIVE_TASKS, "It tells how it is on Django 6.0 and later.")
class FirstTaskTests(Reader):
    def test_the_first_task_runs_as_the_page_says(self):
        self.follow(FIRST)

    def test_the_first_run_is_quiet_and_a_worker_that_stays_gives_advice(self):
        for block in self.sections[FIRST]:
            if block.file:
                self.project.write(block)
        self.assertEqual(self.project.run("python manage.py migrate --verbosity 0").stderr, "")

        self.project.obey("python manage.py pq_worker", ["Processor 1 started, pid 1."])
        self.assertIn("'transaction_mode': 'IMMEDIATE'", self.project.worker.printed.read_text())


@tag("thorough")
@skipUnless(DOCS.is_dir(), "The documentation is not beside the tests.")
@skipUnless(connection.vendor == "sqlite", "Its project is on SQLite.")
@skipUnless(compat.HAS_NATIVE_TASKS, "It tells how it is on Django 6.0 and later.")
class ServiceTests(Reader):
    def test_the_service_runs_as_the_page_says(self):
        titles = list(self.sections)
        self.follow(*titles[titles.index(FIRST) : -1])


@skipUnless(DOCS.is_dir(), "The documentation is not beside the tests.")
class FiveMinutesTests(SimpleTestCase):
    def test_no_more_than_six_lines_and_three_commands_lead_to_the_first_task(self):
        """
        Every line that is typed into a file counts, imports too; blank ones don't. Of
        commands those count that are typed in the project, up to the first task's result.
        """
        files, reported = taught("docs/tutorial.md", FIRST)
        commands = [line for line, _printed in reported.steps]
        self.assertLessEqual(sum(len(block.lines) for block in files), MOST_LINES)
        self.assertEqual(len(commands), MOST_COMMANDS)
        self.assertRegex(reported.text, r"(?m)^finished  \S+ type=\S*greet ")

    def test_the_shorter_pages_say_the_same(self):
        for page, title in (
            ("README.md", "Quick start"),
            ("docs/howto/django-tasks.md", "In five minutes"),
        ):
            with self.subTest(page):
                files, reported = taught("docs/tutorial.md", FIRST)
                same, commands = taught(page, title)
                self.assertEqual([block.text for block in same], [block.text for block in files])
                self.assertEqual(commands.lines, [line for line, _printed in reported.steps])


def taught(page, title):
    """Return the blocks of files that a section begins with, and the commands after them."""
    files = []
    for block in sections(page)[title]:
        if not block.file:
            return files, block
        files.append(block)
    raise AssertionError(f"{page}: no commands below {title!r}.")
