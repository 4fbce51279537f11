"""What a service manager sees of a worker: its pid file, its messages, its titles."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.test import SimpleTestCase, tag

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.worker.launcher.generation import PidFile
from django_perfectqueue.worker.launcher.launcher import Launcher, Notifier, taken_out_of
from django_perfectqueue.worker.process.child import set_title

from ...waiting import wait_until
from ..workers import ROOT, WorkerTestCase

TITLES = """
import os

def setproctitle(title):
    with open(os.environ["PERFECTQUEUE_TEST_TITLES"], "a") as file:
        file.write(title + "\\n")
"""


IMPORTS = """
import sys
import django
django.setup()
before = set(sys.modules)
import django_perfectqueue.management.commands.pq_worker
print(*sorted(set(sys.modules) - before))
"""


class ServiceManager:
    """Receives notifications, as systemd does."""

    def __init__(self, folder):
        self.path = str(Path(folder, "notify"))
        self.heard = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def messages(self):
        """Return all messages so far, each as a dict."""
        try:
            while True:
                lines = self.socket.recv(4096).decode().splitlines()
                self.heard.append(dict(line.split("=", 1) for line in lines))
        except BlockingIOError:
            return self.heard

    def count(self, name):
        return sum(message.get(name) == "1" for message in self.messages())

    def order(self):
        """Return what it was notified of, one word each, without the watchdog's."""
        words = ("READY", "RELOADING", "STOPPING")
        return [word for message in self.messages() for word in words if word in message]


class Folder:
    def setUp(self):
        super().setUp()
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class PidFileTests(Folder, SimpleTestCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "worker.pid"

    def pid_file(self):
        made = PidFile(self.path)
        self.addCleanup(made.let_go)
        return made

    def refused(self, message):
        with self.assertRaises(ConfigError) as refused:
            self.pid_file().take()
        self.assertIn(message, str(refused.exception))

    def test_who_has_it_keeps_others_out_and_takes_it_along(self):
        ours = self.pid_file()
        ours.take()
        self.assertEqual(self.path.read_text(), f"{os.getpid()}\n")
        self.refused(f"A worker is running already, with the pid file {self.path}: its pid is")
        ours.remove()
        self.assertFalse(self.path.exists())

    def test_what_a_killed_worker_has_left_holds_up_no_other(self):
        """
        Another process, of another user even, may have its pid by now.
        """
        self.path.write_text("1\n")
        self.pid_file().take()
        self.assertEqual(self.path.read_text(), f"{os.getpid()}\n")

    def test_one_that_detaches_leaves_it_to_a_successor(self):
        ours, theirs = self.pid_file(), self.pid_file()
        ours.take()
        ours.let_go()
        self.assertEqual(self.path.read_text(), f"{os.getpid()}\n")
        theirs.take()
        ours.remove()
        self.assertTrue(self.path.exists())

        theirs.let_go()
        self.path.write_text("1\n")
        ours.remove()
        self.assertTrue(self.path.exists())

    def test_one_that_detached_without_a_successor_removes_it(self):
        ours = self.pid_file()
        ours.take()
        ours.let_go()
        ours.remove()
        self.assertFalse(self.path.exists())

    def test_a_file_that_someone_has_put_in_its_place_stays(self):
        ours = self.pid_file()
        ours.take()
        self.path.unlink()
        self.path.write_text("something else")
        ours.remove()
        self.assertEqual(self.path.read_text(), "something else")

    def test_what_is_no_pid_file_is_not_overwritten(self):
        for text in ("root:x:0:0:", "12 34", "1" * 99):
            with self.subTest(text):
                self.path.write_text(text)
                self.refused("is no pid file, and is left as it is")
                self.assertEqual(self.path.read_text(), text)

    def test_a_link_is_not_followed(self):
        target = self.folder / "made-for-another"
        self.path.symlink_to(target)
        self.refused("symbolic link")
        self.assertFalse(target.exists())

    def test_a_path_that_can_not_be_is_reported(self):
        self.path = self.folder / "nowhere" / "worker.pid"
        self.refused("No such file or directory")
        self.path = self.folder
        self.refused("Is a directory")


class NotifierTests(Folder, SimpleTestCase):
    def test_it_speaks_to_the_socket_that_was_named(self):
        manager = ServiceManager(self.folder)
        self.addCleanup(manager.socket.close)
        notifier = Notifier({"NOTIFY_SOCKET": manager.path})
        notifier.notify("Taking tasks.", "READY=1")
        [message] = manager.messages()
        self.assertEqual(message, {"READY": "1", "STATUS": "Taking tasks."})

    def test_an_abstract_socket_will_do(self):
        name = f"perfectqueue-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"\0{name}")
            Notifier({"NOTIFY_SOCKET": f"@{name}"}).send("WATCHDOG=1")
            self.assertEqual(manager.recv(99), b"WATCHDOG=1")

    def test_without_a_service_manager_it_is_silent(self):
        for environment in ({}, {"NOTIFY_SOCKET": str(self.folder / "gone")}):
            Notifier(environment).send("STOPPING=1")

    def test_the_watchdog_is_patted_three_times_in_its_patience(self):
        notifier = Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})
        moments = [tenth / 10 for tenth in range(1000, 1060)]
        self.assertEqual(len([now for now in moments if notifier.is_due(now)]), 6)

    def test_a_watchdog_of_another_process_is_none_of_ours(self):
        for environment in ({}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}):
            self.assertFalse(Notifier(environment).is_due(1.0))

    def test_what_handlers_start_can_not_speak_for_the_worker(self):
        environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "9", "PATH": "/bin"}
        self.assertEqual(len(taken_out_of(environment)), 2)
        self.assertEqual(environment, {"PATH": "/bin"})


class WatchdogTests(SimpleTestCase):
    def test_a_supervisor_that_does_not_answer_is_left_to_the_watchdog(self):
        notifier = mock.Mock(interval=1.0)
        launcher = Launcher(["python"], detach_wait=1, notifier=notifier)
        self.addCleanup(launcher.signal_queue.close)
        launcher.current = mock.Mock()
        launcher.current.has_answered.side_effect = [True, False]
        launcher.report_state()
        notifier.notify.assert_called_once()
        launcher.report_state()
        notifier.send.assert_called_once_with("WATCHDOG=1")


class TitleTests(SimpleTestCase):
    def test_processes_are_named_where_that_can_be_done(self):
        """
        The environment that others see of a process is what a restart begins with.
        """
        seen = []
        there = mock.Mock(
            setproctitle=lambda title: seen.append((title, os.environ.get("SPT_NOENV")))
        )
        with mock.patch.dict(sys.modules, setproctitle=there):
            set_title("launcher")
        self.assertEqual(seen, [("pq_worker: launcher", "1")])
        self.assertNotIn("SPT_NOENV", os.environ)

    def test_without_the_package_nothing_is_named(self):
        with mock.patch.dict(sys.modules, setproctitle=None):
            set_title("launcher")


class ImportTests(SimpleTestCase):
    def test_the_command_does_not_import_helpers_that_few_workers_have(self):
        ran = subprocess.run(
            [sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True
        )
        imported = set(ran.stdout.split())
        self.assertIn("django_perfectqueue.worker.supervisor.supervisor", imported)
        helpers = "django_perfectqueue.worker.helpers"
        rare = {f"{helpers}.probe_server", f"{helpers}.reloader", "http.server"}
        self.assertEqual(imported & rare, set())


@tag("any-database")
class ServiceTests(WorkerTestCase):
    def assert_programs_lack(self, path, *names):
        """Run a task whose program writes its environment to this file."""
        path.unlink(missing_ok=True)
        key = uuid.uuid4().hex
        self.submit(key)
        self.wait_for_status(key, "finished")
        given = path.read_text()
        self.assertIn("PERFECTQUEUE_TEST_TITLES", given)
        for name in names:
            self.assertNotIn(name, given)

    def read(self, worker):
        """Return which processes have read the settings."""
        return worker.settings.with_suffix(".json.read").read_text().split()

    def test_the_first_supervisor_needs_not_read_the_code_again(self):
        worker = self.worker(afresh=True).ready()
        self.assertEqual(self.read(worker), [str(worker.process.pid)])
        worker.send(signal.SIGUSR1)
        wait_until(lambda: len(worker.processors()) == 2)
        self.assertEqual(len(self.read(worker)), 2)

    def test_a_project_with_threads_is_not_forked_but_started_anew(self):
        worker = self.worker(afresh=True, THREAD=True)
        self.submit("k1", "note")
        self.wait_for_note("ran")
        self.assertEqual(len(self.read(worker)), 2)
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)

    def test_a_service_manager_sees_it_start_restart_and_stop(self):
        manager = ServiceManager(self.folder)
        self.addCleanup(manager.socket.close)
        pid_file, titles = self.folder / "worker.pid", self.folder / "titles"
        variables = self.folder / "variables"
        (self.folder / "setproctitle.py").write_text(TITLES)
        worker = self.worker(
            "--pid-file",
            str(pid_file),
            "--exec",
            f"sh -c 'env > {variables}'",
            environment={
                "NOTIFY_SOCKET": manager.path,
                "WATCHDOG_USEC": "900000",
                "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
                "PERFECTQUEUE_TEST_TITLES": str(titles),
            },
        )
        wait_until(lambda: manager.count("READY"))
        self.assertEqual(len(worker.processors()), 1)
        pid = f"{worker.process.pid}\n"
        self.assertEqual(pid_file.read_text(), pid)
        other = self.worker("--pid-file", str(pid_file))
        self.assertEqual(other.wait(), 1)
        self.assertIn(f"its pid is {worker.process.pid}.", other.errors)
        self.assert_gone(other)
        self.assertEqual(other.output, "")
        self.assert_programs_lack(variables, "NOTIFY_SOCKET", "WATCHDOG")

        patted = manager.count("WATCHDOG")
        wait_until(lambda: manager.count("WATCHDOG") > patted + 2)
        worker.send(signal.SIGUSR1)
        wait_until(lambda: manager.count("READY") == 2)
        self.assertEqual(pid_file.read_text(), pid)
        self.assert_programs_lack(variables, "NOTIFY_SOCKET", "WATCHDOG")

        worker.send(signal.SIGTERM)
        self.assertEqual(worker.wait(), 0)
        self.assertEqual(manager.order(), ["READY", "RELOADING", "READY", "STOPPING"])
        [reload] = [message for message in manager.messages() if "RELOADING" in message]
        self.assertGreater(int(reload["MONOTONIC_USEC"]), 0)
        self.assertFalse(pid_file.exists())
        roles = {line.removeprefix("pq_worker: ") for line in titles.read_text().splitlines()}
        there = {"launcher", "supervisor", "processor 1", "helper"}
        self.assertEqual(roles, there)

    def test_one_that_detaches_gives_the_pid_file_away(self):
        pid_file = self.folder / "worker.pid"
        self.submit("k0")
        old = self.worker("--pid-file", str(pid_file), DETACH_WAIT=60)
        self.wait_for_note("start")
        old.send(signal.SIGINT)
        wait_until(lambda: "Stopping once" in old.output)
        new = self.worker("--pid-file", str(pid_file)).ready()
        self.open_gate()
        self.assertEqual(old.wait(), 0)
        self.assertEqual(pid_file.read_text(), f"{new.process.pid}\n")
