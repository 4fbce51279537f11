import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.exceptions import ConfigError, UnknownTypeError

from .. import tasks
from ..tasks import SampleDispatch


class DispatchTests(SimpleTestCase):
    def test_a_string_matches_only_itself(self):
        self.assertTrue(SampleDispatch.knows("echo"))
        for type_ in ("echo2", "an echo", "Echo", ""):
            with self.subTest(type_), self.assertRaises(UnknownTypeError):
                SampleDispatch.handler_for(type_)

    def test_a_pattern_matches_anywhere_as_the_ancestors_did(self):
        for type_ in ("late", "too late", "later"):
            self.assertTrue(SampleDispatch.knows(type_), type_)

    def test_the_first_route_that_matches_is_taken(self):
        """
        Routes are read from the top, so that an exception can be put before its rule.
        """
        handler = SampleDispatch.handler_for("import.never")
        self.assertIs(handler, SampleDispatch.handler_for("import.csv"))
        self.assertEqual(handler.__qualname__, "import_anything")

    def test_a_dotted_path_is_followed_when_needed(self):
        self.assertIs(SampleDispatch.handler_for("wait"), tasks.Wait)

    def test_a_miss_is_not_remembered(self):
        """
        The ancestor cached misses, so that a route added later was never found.
        """

        class Growing(Dispatch):
            routes = {}

        self.assertFalse(Growing.knows("new"))
        Growing.routes["new"] = tasks.Wait
        self.assertTrue(Growing.knows("new"))

    def test_subclasses_do_not_share_what_they_found(self):
        class Parent(Dispatch):
            routes = {"one": tasks.Wait}

        class Child(Parent):
            routes = {"one": tasks.Hesitant}

        self.assertIs(Parent.handler_for("one"), tasks.Wait)
        self.assertIs(Child.handler_for("one"), tasks.Hesitant)

    def test_an_unknown_type_is_named_with_the_dispatch(self):
        with self.assertRaisesMessage(
            UnknownTypeError, "SampleDispatch has no route for tasks of type 'nothing'."
        ):
            SampleDispatch.handler_for("nothing")


class BadRoutesTests(SimpleTestCase):
    """A worker says at its start which line is wrong, and does not find out in the night."""

    def assert_refused(self, routes, message):
        dispatch = type("BadDispatch", (Dispatch,), {"routes": routes})
        with self.assertRaisesMessage(ConfigError, message):
            dispatch.load()

    def test_a_path_that_leads_nowhere(self):
        self.assert_refused(
            {"report": "tests.tasks.Reprot"},
            "BadDispatch.routes['report'] names 'tests.tasks.Reprot', which can't be imported",
        )

    def test_a_module_that_raises_is_said_with_its_line(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder]):
            for name, text, error in (
                ("pq_undefined", "import os\nPRICE = price\n", "NameError"),
                ("pq_unclosed", "import os\nPRICE = (\n", "SyntaxError"),
            ):
                path = Path(folder, f"{name}.py")
                path.write_text(text)
                with self.subTest(error):
                    self.assert_refused({"report": f"{name}.run"}, f"({path}, line 2)")

    def test_a_class_that_is_no_handler(self):
        self.assert_refused(
            {"report": dict}, "BadDispatch.routes['report'] leads to <class 'dict'>"
        )

    def test_a_handler_that_is_an_instance(self):
        self.assert_refused({re.compile("re.*"): 3}, "BadDispatch.routes['re.*'] leads to 3")

    def test_a_route_that_is_no_type(self):
        for route in (3, None, b"report", re.compile(b"report"), ""):
            with self.subTest(route):
                self.assert_refused({route: Application}, f"BadDispatch routes {route!r}")
