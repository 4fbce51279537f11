import os
import subprocess
import sys
from unittest import mock, skipIf

from django.core.checks import run_checks
from django.test import SimpleTestCase

from . import case  # isort: skip
from django_perfectqueue import compat
from django_perfectqueue.backend import base

WITHOUT = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in ("django.tasks", "django_tasks") else found(name, package)
)
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_perfectqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.core.management import load_command_class
from django_perfectqueue.application import Dispatch
from django_perfectqueue.management.commands import pq_worker as plan
command = load_command_class("django_perfectqueue", "pq_worker")
parser = command.create_parser("manage.py", "pq_worker")

class Own(Dispatch):
    routes = {"report": print}

plan.discovery.found = lambda path: Own
assert plan.plan_of(vars(parser.parse_args([]))).dispatch is Own
try:
    import django_perfectqueue.backend
except ImportError as error:
    print(error)
"""


EARLY = """
import sys
from django.conf import settings
settings.configure(
    TASKS={"default": {"BACKEND": "django_perfectqueue.backend.PerfectQueueBackend"}}
)
from django_perfectqueue.compat import task
import shutil
task(max_attempts=2)(shutil.copy)
assert "django_perfectqueue.models" not in sys.modules
"""


class CompatTests(SimpleTestCase):
    def test_a_task_may_be_defined_before_the_apps_are_ready(self):
        """
        In models.py, say; the backend is made as soon as there is a task.
        """
        self.assertEqual(ran(EARLY), "")

    def test_all_but_the_backend_works_where_there_are_no_tasks(self):
        """
        As on Django 5.2 without django-tasks.
        """
        self.assertIn("install django-perfectqueue[tasks]", ran(WITHOUT))

    @skipIf(compat.APP, "The backport has an app to be installed.")
    def test_the_backports_app_is_missed(self):
        with mock.patch.object(base, "APP", "django_tasks"):
            [problem] = run_checks(tags=["perfectqueue"])
        self.assertEqual(problem.id, "perfectqueue.E031")
        self.assertIn("'django_tasks'", problem.hint)

    def test_the_decorator_takes_a_backends_words_on_every_django(self):
        with self.assertRaisesMessage(TypeError, "run_after"):
            compat.task(run_after=case.LATER)(print)


def ran(code):
    """Return what a program prints in a process of its own; fail when it ends with an error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout
