import http.client
import json
import socket
import threading
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue.worker.helpers.probe_server import ProbeHTTPServer, refusal
from django_perfectqueue.worker.process.signals import DUMP, PAUSE, StackDumps
from django_perfectqueue.worker.shared import status as board
from django_perfectqueue.worker.shared.status import WorkerStatus


class BoardTestCase(SimpleTestCase):
    def setUp(self):
        self.made = WorkerStatus.shared()

    @property
    def stands(self):
        return self.made.is_live, self.made.is_ready


class BoardTests(BoardTestCase):
    def test_one_that_leaves_is_live_and_not_ready(self):
        self.made.turn(2)
        self.made.reach()
        self.assertEqual(self.stands, (True, True))
        self.made.leaving = True
        self.assertEqual(self.stands, (True, False))

    def test_a_database_that_is_away_leaves_it_live(self):
        self.made.turn(1)
        self.assertEqual(self.stands, (True, False))
        self.made.reach()
        with self.later(board.ALIVE_FOR):
            self.made.turn(1)
            self.assertEqual(self.stands, (True, False))

    def test_one_whose_supervisor_hangs_is_not_live(self):
        self.made.turn(1)
        with self.later(board.ALIVE_FOR):
            self.assertEqual(self.stands, (False, False))

    def later(self, seconds):
        now = board.time.monotonic() + seconds
        return mock.patch.object(board.time, "monotonic", return_value=now)


class ProbeTests(BoardTestCase):
    def setUp(self):
        super().setUp()
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
                "django_perfectqueue.worker.process.signals.send", lambda *one: sent.append(one)
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
