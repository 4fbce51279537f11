import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from django.apps import apps
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import SimpleTestCase, modify_settings, override_settings

from . import case  # isort: skip
from django_perfectqueue.compat import APP, task, task_backends

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = """\
SECRET_KEY = "not a secret"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = {apps!r}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {folder!r} + "/db"}}}}
{name} = {{"default": {{"BACKEND": {backend!r}, **{params!r}}}}}
"""
OURS = ["django_perfectqueue", *([APP] if APP else [])]


class CheckTests(SimpleTestCase):
    """What ``manage.py check`` prints, by all checks that are registered."""

    def found(self, **params):
        with override_settings(TASKS=case.tasks_with(**params)):
            return [(one.id, one.msg) for one in run_checks(tags=["perfectqueue"])]

    def assert_found(self, number, words, **params):
        [(id_, message)] = self.found(**params)
        self.assertEqual(id_, f"perfectqueue.E{number:03}")
        self.assertIn(words, message)

    def test_nothing_is_wrong_with_what_is_right(self):
        good = {"database": "default", "modules": ["tests.backend.jobs"], "max_attempts": 3}
        good["backoff"] = "tests.application.test_policy.forty"
        good["id_function"] = "uuid.uuid1"
        self.assertEqual(self.found(QUEUES=["a", "b"], OPTIONS={**good, "time_limit": 1.5}), [])
        self.assertEqual(self.found(QUEUES=[], MAX_ATTEMPTS=3, BACKOFF=None), [])

    @modify_settings(INSTALLED_APPS={"remove": "django_perfectqueue"})
    def test_the_app_is_not_installed(self):
        self.assertFalse(apps.is_installed("django_perfectqueue"))
        with override_settings(TASKS=case.tasks_with()):
            [found] = task_backends["default"].check()
            self.assertEqual(found.id, "perfectqueue.E030")
            with self.assertRaisesMessage(ImproperlyConfigured, "to INSTALLED_APPS, and migrate."):
                task(module_level)

    def test_an_option_that_there_is_not(self):
        self.assert_found(33, "Did you mean 'modules'?", OPTIONS={"module": ["tests.tasks"]})

    def test_a_key_beside_the_options_that_there_is_not(self):
        self.assert_found(33, "TASKS['default'] has no 'QUEUE'. Did you mean 'QUEUES'?", QUEUE=[])

    def test_a_backend_that_there_is_not(self):
        with override_settings(TASKS={"default": {"BACKEND": f"{case.BACKEND}s"}}):
            found = run_checks(tags=["perfectqueue"])
        self.assertEqual([one.id for one in found], ["perfectqueue.E035"])

    def test_an_option_with_a_value_that_will_not_do(self):
        for options, words in (
            ({"database": "elsewhere"}, "must be one of 'default', or None, not 'elsewhere'"),
            ({"modules": "tests.tasks"}, "must be a list of modules"),
            ({"modules": ["tests.nowhere"]}, "'tests.nowhere'"),
            ({"modules": ["no.where"]}, "'no.where'"),
            ({"max_attempts": True}, "must be a whole number of at least 1, or None, not True"),
            ({"backoff": 5}, "must be a function"),
            ({"backoff": "tests.nowhere.wait"}, "No module named 'tests.nowhere'"),
            ({"id_function": "uuid.uuid99"}, 'does not define a "uuid99"'),
            ({"id_function": 7}, "must be a function or a path to one, or None, not 7"),
            ({"time_limit": 0}, "must be a number of seconds above 0, or None, not 0"),
        ):
            with self.subTest(options):
                self.assert_found(34, words, OPTIONS=options)

    def test_a_queue_that_can_have_no_name(self):
        self.assert_found(32, "can't be the name of a queue", QUEUES=["x" * 101])


class ProjectTests(SimpleTestCase):
    """A project of its own, checked by ``manage.py check`` in a process of its own."""

    def check(self, name="TASKS", apps=OURS, backend=case.BACKEND, **params):
        with TemporaryDirectory() as folder:
            shop = Path(folder, "shop")
            shop.mkdir()
            text = SETTINGS.format(
                name=name, apps=apps, backend=backend, params=params, folder=folder
            )
            Path(shop, "settings.py").write_text(text)
            Path(shop, "tasks.py").write_text(
                "from django_perfectqueue.compat import task\n\n\n@task\ndef greet():\n    pass\n"
            )
            Path(shop, "urls.py").write_text("import shop.tasks\n\nurlpatterns = []\n")
            paths = os.pathsep.join([folder, str(ROOT)])
            surroundings = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": paths}
            command = [sys.executable, "-m", "django", "check"]
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **surroundings},
                text=True,
                capture_output=True,
            )
        return done.returncode, done.stdout + done.stderr

    def test_what_is_wrong_is_printed_once(self):
        code, printed = self.check(OPTIONS={"max_attemps": 3})
        self.assertEqual(code, 1)
        self.assertEqual(printed.count("perfectqueue.E033"), 1, printed)
        self.assertIn("Did you mean 'max_attempts'?", printed)

    def test_what_is_right_passes(self):
        code, printed = self.check(OPTIONS={"max_attempts": 3})
        self.assertEqual(code, 0, printed)
        self.assertNotIn("perfectqueue.E", printed)

    def test_the_app_is_not_installed(self):
        code, printed = self.check(apps=[APP] if APP else [])
        self.assertEqual(code, 1)
        self.assertIn("Add 'django_perfectqueue' to INSTALLED_APPS, and migrate.", printed)

    def test_the_settings_have_a_name_that_nobody_reads(self):
        for name in ("PERFECT_QUEUE", "DJANGO_PERFECTQUEUE", "PERFECTQUEUES"):
            with self.subTest(name):
                code, printed = self.check(name=name, backend="")
                self.assertEqual(code, 0, printed)
                self.assertIn(f"The setting {name} has no effect.", printed)


def module_level():
    pass
