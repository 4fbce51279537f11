"""Probes are answered whoever else talks to the worker's port."""

import contextlib
import http.client
import socket
import threading
import time

from django.test import SimpleTestCase

from django_perfectqueue.worker.helpers import probe_server
from django_perfectqueue.worker.shared.status import WorkerStatus

from ...waiting import wait_until

PROBES = 10


class SlowClientTests(SimpleTestCase):
    def setUp(self):
        worker_status = WorkerStatus.shared()
        worker_status.turn(1)
        self.desk = probe_server.ProbeHTTPServer(("127.0.0.1", 0), worker_status)
        self.port = self.desk.server_address[1]
        self.ended = threading.Event()
        thread = threading.Thread(target=self.serve)
        thread.start()
        self.addCleanup(self.desk.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.ended.set)

    def serve(self):
        self.desk.timeout = 0.05
        while not self.ended.is_set():
            self.desk.hang_up_late(time.monotonic())
            self.desk.handle_request()

    def slow(self):
        """Open a connection, and say no more than the beginning of a request."""
        client = socket.create_connection(("127.0.0.1", self.port))
        self.addCleanup(client.close)
        client.sendall(b"GET /live HTTP/1.1\r\n")
        return client

    def is_answered(self):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(link):
            link.request("GET", "/live")
            return link.getresponse().status == 200

    def test_any_number_of_slow_ones_silences_no_probe(self):
        clients = [self.slow() for _client in range(3 * probe_server.MOST_AT_ONCE)]
        for _probe in range(PROBES):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b"X")
            self.assertTrue(self.is_answered())
        wait_until(lambda: len(self.desk.since) < probe_server.MOST_AT_ONCE)

    def test_one_that_never_comes_to_an_end_is_hung_up(self):
        longest, probe_server.LONGEST_REQUEST = probe_server.LONGEST_REQUEST, 0.3
        self.addCleanup(setattr, probe_server, "LONGEST_REQUEST", longest)
        client = self.slow()
        client.settimeout(0.05)

        def is_hung_up():
            with contextlib.suppress(TimeoutError):
                client.sendall(b"X")
                return client.recv(1) == b""

        with contextlib.suppress(ConnectionError):
            wait_until(is_hung_up)
        wait_until(lambda: not self.desk.since)
