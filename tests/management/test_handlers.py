import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.worker import discovery

BROKEN = {
    "pq_test_oops": ("def broken(:\n", "SyntaxError: invalid syntax ({file}, line 1)"),
    "pq_test_lack": ("x = 1\n{}['key']\n", "KeyError: 'key' ({file}, line 2)"),
    "pq_test_inner": ("import os\nos.stat('')\n", "({file}, line 2)"),
}


class ImportTests(SimpleTestCase):
    def test_the_line_at_which_a_module_fails_is_reported(self):
        """
        Whatever it raises; and of a syntax error the line in the file, not that of the import.
        """
        with TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder, *sys.path]):
            for name, (text, message) in BROKEN.items():
                file = Path(folder, f"{name}.py")
                file.write_text(text)
                for load in (
                    lambda name=name: discovery.found(f"{name}.Dispatch"),
                    lambda name=name: discovery.imported(lambda: import_module(name)),
                ):
                    with self.subTest(name), self.assertRaises(ConfigError) as caught:
                        load()
                    self.assertIn(message.format(file=file), str(caught.exception))
                    self.assertNotIn("\n", str(caught.exception))

    def test_words_that_djangos_own_task_refuses_are_explained(self):
        for refused in ("Task.__init__()", "task()"):
            error = TypeError(f"{refused} got an unexpected keyword argument 'max_attempts'")
            with self.subTest(refused), self.assertRaises(ConfigError) as caught:
                discovery.imported(mock.Mock(side_effect=error))
            self.assertIn("need a PerfectQueueBackend in TASKS", str(caught.exception))
        error = TypeError("QueueTask.__init__() got an unexpected keyword argument 'max_atempts'")
        with self.assertRaises(ConfigError) as caught:
            discovery.imported(mock.Mock(side_effect=error))
        self.assertNotIn("TASKS", str(caught.exception))

    def test_what_explains_itself_is_left_as_it_is(self):
        refusal = ConfigError("Both a.b and a.c handle 'x'.")
        with self.assertRaises(ConfigError) as caught:
            discovery.imported(mock.Mock(side_effect=refusal))
        self.assertIs(caught.exception, refusal)
