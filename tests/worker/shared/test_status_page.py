import http.client
import json
import os
import socket
import tempfile
import threading
from pathlib import Path
from unittest import mock

from django.test import SimpleTestCase, override_settings

from django_perfectqueue.worker.helpers.probe_server import ProbeHTTPServer, refusal
from django_perfectqueue.worker.process.signals import DUMP
from django_perfectqueue.worker.process.stack_dump import PAUSE, StackDumps
from django_perfectqueue.worker.shared import status_page as board
from django_perfectqueue.worker.shared.status_page import StatusPage, path_for, statuses

DEAD = 2**22 + 1  # above what Linux gives


class BoardTestCase(SimpleTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        settings = override_settings(PERFECTQUEUE={"BELL_FOLDER": folder.name})
        settings.enable()
        self.addCleanup(settings.disable)

    def board(self, pid=None, port=0):
        pid = pid or os.getpid()
        made = StatusPage(path_for(pid))
        self.addCleanup(made.close)
        made.introduce(pid, 1, port)
        return made


class BoardTests(BoardTestCase):
    def test_others_see_how_a_worker_stands(self):
        made = self.board()
        made.turn(2)
        made.reach()
        [shown] = statuses()
        self.assertEqual((shown.supervisor, shown.launcher, shown.processors), (os.getpid(), 1, 2))
        self.assertTrue(shown.is_live and shown.is_ready)

    def test_one_that_leaves_is_live_and_not_ready_and_rings(self):
        made = self.board()
        made.turn(2)
        made.reach()
        made.leave()
        [shown] = statuses()
        self.assertEqual((shown.is_live, shown.is_ready), (True, False))
        self.assertTrue(made.wakeup.wait(0))

    def test_a_database_that_is_away_leaves_it_live(self):
        made = self.board()
        made.turn(1)
        self.assertEqual((made.status.is_live, made.status.is_ready), (True, False))
        made.reach()
        with self.later(board.ALIVE_FOR):
            made.turn(1)
            self.assertEqual((made.status.is_live, made.status.is_ready), (True, False))

    def test_one_whose_supervisor_hangs_or_is_dead_is_not_live(self):
        self.board()
        with self.later(board.ALIVE_FOR):
            self.assertEqual([one.is_live for one in statuses()], [False])
        made = self.board(pid=DEAD)
        self.assertFalse(made.status.is_live)

    def test_one_from_before_the_host_started_is_not_live(self):
        self.board()
        with self.later(-1.0):
            self.assertEqual([one.is_live for one in statuses()], [False])

    def test_the_next_worker_removes_what_killed_ones_have_left(self):
        self.board(pid=DEAD)
        mine = StatusPage(path_for(os.getpid()))
        self.assertEqual([*self.folder.iterdir()], [mine.path])
        mine.close()
        self.assertEqual([*self.folder.iterdir()], [])

    def test_one_in_another_container_with_the_same_folder_is_left_alone(self):
        """
        It may have the same pid, and has none that is known here.
        """
        with mock.patch.object(board, "pid_namespace", return_value=1):
            other, dead = self.board(), self.board(pid=DEAD)
        mine = self.board()
        self.assertTrue(other.path.exists() and dead.path.exists())
        self.assertEqual(len(statuses()), 1)

        with self.later(board.FORGOTTEN_AFTER + 1):
            mine.turn(1)
            board.remove_old()
        self.assertEqual([*self.folder.iterdir()], [mine.path])

    def test_it_rings_once_that_it_leaves(self):
        made = self.board()
        made.leave()
        self.assertTrue(made.wakeup.wait(0))
        made.leave()
        self.assertFalse(made.wakeup.wait(0))

    def test_what_is_no_board_is_not_read(self):
        path_for(1).write_bytes(b"short")
        path_for(2).write_bytes(b"x" * board.SIZE)
        path_for(3).symlink_to(self.board().path)
        path_for(4).mkdir()
        self.assertEqual([one.supervisor for one in statuses()], [os.getpid()])
        with (
            mock.patch("os.geteuid", return_value=os.geteuid() + 1),
            mock.patch.object(board, "ROOT", -1),
        ):
            self.assertEqual(statuses(), [])

    def test_a_worker_goes_without_where_there_is_no_folder(self):
        with self.assertLogs("django_perfectqueue.supervisor", "INFO"):
            made = StatusPage(self.folder / "nowhere" / "board")
        self.addCleanup(made.close)
        made.introduce(os.getpid(), 1)
        self.assertTrue(made.status.is_live)

    def later(self, seconds):
        now = board.time.monotonic() + seconds
        return mock.patch.object(board.time, "monotonic", return_value=now)


class ProbeTests(BoardTestCase):
    def setUp(self):
        super().setUp()
        self.made = self.board(port=0)
        self.desk = ProbeHTTPServer(("127.0.0.1", 0), self.made)
        self.desk.timeout = 10
        self.addCleanup(self.desk.server_close)

    def ask(self, path, method="GET"):
        answering = threading.Thread(target=self.desk.handle_request)
        answering.start()
        link = http.client.HTTPConnection("127.0.0.1", self.desk.server_port, timeout=10)
        self.addCleanup(link.close)
        link.request(method, path)
        response = link.getresponse()
        content = response.read()
        answering.join()
        if response.status in (200, 503):
            self.assertEqual(response.headers["Cache-Control"], "no-store")
        return response.status, content

    def test_it_answers_by_what_is_on_the_board(self):
        self.made.turn(1)
        status, content = self.ask("/live?x=1")
        self.assertEqual((status, json.loads(content)["ok"]), (200, True))
        self.assertEqual(self.ask("/ready")[0], 503)
        self.made.reach()
        self.assertEqual(self.ask("/ready")[0], 200)
        self.assertEqual(self.ask("/ready", "HEAD"), (200, b""))

    def test_it_answers_nothing_else(self):
        self.assertEqual(self.ask("/")[0], 404)
        self.assertEqual(self.ask("/live", "POST")[0], 501)

    def test_one_that_leaves_answers_for_its_successor(self):
        self.made.turn(1)
        self.made.leave()
        self.assertEqual(self.ask("/ready")[0], 503)
        successor = self.board(pid=os.getppid())
        successor.turn(1)
        successor.reach()
        self.assertEqual(self.ask("/ready")[0], 200)

    def test_a_port_that_another_program_has_is_refused(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = other.getsockname()
            self.assertIn("in use", refusal(address))
        self.assertEqual(refusal(address), "")


class StackTests(SimpleTestCase):
    def test_one_process_after_another_is_asked(self):
        stacks, sent = StackDumps(), []
        with (
            mock.patch(
                "django_perfectqueue.worker.process.stack_dump.send", lambda *one: sent.append(one)
            ),
            mock.patch("sys.stderr") as printed,
        ):
            stacks.ask([(1, "One:"), (2, "Two:")])
            stacks.ask([(2, "Two:")])
            for now in (10.0, 10.0 + PAUSE / 2, 10.0 + PAUSE, 11.0):
                stacks.go_on(now)
        self.assertEqual(sent, [(1, DUMP), (2, DUMP)])
        self.assertEqual(stacks.due(), [])
        self.assertEqual(printed.write.call_args_list[0].args, ("\nOne:\n",))
