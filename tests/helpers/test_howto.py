"""The tests that the page on testing shows, run as they stand there."""

import re
import sys
import types
from pathlib import Path
from unittest import SkipTest, mock

from django.test import SimpleTestCase, TestCase, override_settings
from django.urls import path

from django_perfectqueue import compat

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "howto" / "testing.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

if not PAGE.exists():
    raise SkipTest("The documentation is not beside the tests.")
if not compat.HAS_TASKS:
    raise SkipTest("It shows tasks of Django.")

MAIL = "django.core.mail.backends.locmem.EmailBackend"
NATIVE, OURS = "from django.tasks import", "from django_perfectqueue.compat import"


def blocks():
    return [(name, text.replace(NATIVE, OURS)) for name, text in BLOCK.findall(PAGE.read_text())]


def module(name):
    return sys.modules.setdefault(name, types.ModuleType(name))


def run(source, name):
    exec(compile(source, f"{PAGE}: {name}", "exec"), vars(module(name)))


def set_up(kind):
    """Return a test case of the page, with the settings of a project that has its app."""
    return override_settings(ROOT_URLCONF="shop.urls", MAILERS={"default": {"BACKEND": MAIL}})(kind)


shop = module("shop")
for file, source in blocks():
    if file.startswith("shop/"):
        run(source, file.removesuffix(".py").replace("/", "."))
module("shop.urls").urlpatterns = [path("sign-up/", module("shop.views").sign_up)]

shown = {}
for file, source in blocks():
    if file == "tests.py":
        before = set(vars(module(f"{__name__}_shown")))
        run(source, f"{__name__}_shown")
        made = vars(module(f"{__name__}_shown"))
        shown |= {name: made[name] for name in set(made) - before if name.endswith("Tests")}
globals().update({name: set_up(kind) for name, kind in shown.items()})


class PageTests(SimpleTestCase):
    def test_all_test_cases_of_the_page_are_run_here(self):
        named = re.findall(r"^class (\w+Tests)\(", PAGE.read_text(), re.MULTILINE)
        self.assertEqual(sorted(shown), sorted(named))
        self.assertGreater(len(shown), 5)


class PytestTests(TestCase):
    def test_what_is_shown_for_pytest_does_what_it_says(self):
        """
        By its fixtures alone, as pytest may not be there.
        """
        stand_in = types.SimpleNamespace(fixture=lambda function: function)
        conftest, tests = {}, {}
        with mock.patch.dict(sys.modules, {"pytest": stand_in}):
            for file, source in blocks():
                if file in ("conftest.py", "test_shop.py"):
                    exec(source, conftest if file == "conftest.py" else tests)
        tests["test_a_report_is_mailed"](db=None)
        fixture = conftest["eager_tasks"](transactional_db=None)
        next(fixture)
        queue = tests["Queue"]()
        queue.submit("r2", "shop.report", {"count": 2})
        self.assertEqual(queue["r2"].metadata().status, "finished")
        self.assertEqual(list(fixture), [])
