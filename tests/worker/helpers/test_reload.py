"""``pq_worker --reload``, as one works with it: save, look, mend, save again."""

import os
import signal
import time

from django.test import SimpleTestCase, tag

from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.helpers.reloader import SourceFiles, installed, project_files

from ...waiting import wait_until
from ..workers import ROOT, WorkerTestCase

CODE = """
from django_perfectqueue.application import Dispatch
from reloaded_part import WORD

def say(task):
    return WORD

class SayDispatch(Dispatch):
    routes = {"say": say}
"""


class WatchTests(SimpleTestCase):
    def test_what_is_watched_is_the_project_and_not_what_is_installed(self):
        files = set(project_files())
        self.assertIn(ROOT / "tests" / "worker" / "helpers" / "test_reload.py", files)
        self.assertFalse(any(installed().intersection(file.parents) for file in files))

    def test_it_finds_what_has_changed_once(self):
        watch = SourceFiles()
        self.assertIsNone(watch.changed())
        file = ROOT / "tests" / "__init__.py"
        self.assertIn(file, watch.seen)
        watch.seen[file] -= 1
        self.assertEqual(watch.changed(), file)
        self.assertIsNone(watch.changed())


@tag("any-database")
class ReloadTests(WorkerTestCase):
    def save(self, name, text):
        """Write a file with a time of change that no earlier one has had."""
        path = self.folder / name
        path.write_text(text)
        self.saved = max(time.time_ns(), getattr(self, "saved", 0) + 10**9)
        os.utime(path, ns=(self.saved, self.saved))

    def said(self, key):
        Queue().submit(key, "say")
        self.wait_for_status(key, "finished")
        return Queue()[key].metadata().result

    def test_new_code_runs_once_it_is_saved(self):
        """
        Code that can't be loaded leaves the old one running; the next save mends it, though it
        is in a file that the old code does not know.
        """
        self.save("reloaded_part.py", "WORD = 'one'")
        self.save("reloaded.py", CODE)
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        worker = self.worker(
            "--reload", "reloaded.SayDispatch", environment={"PYTHONPATH": path}
        ).ready()
        self.assertEqual(self.said("k1"), "one")

        self.save("reloaded_part.py", "from reloaded_more import WORD")
        self.save("reloaded_more.py", "WORD = 'two")
        wait_until(lambda: "The restart failed" in worker.errors)
        self.assertIn("has changed; the worker restarts.", worker.output)
        self.assertEqual(self.said("k2"), "one")

        began = worker.output.count("django-perfectqueue ")
        self.save("reloaded_more.py", "WORD = 'two'")
        wait_until(lambda: worker.output.count("django-perfectqueue ") > began)
        wait_until(lambda: self.said(f"k{time.monotonic_ns()}") == "two")
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)
