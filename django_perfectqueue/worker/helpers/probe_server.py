"""The helper that answers probes: whether the worker lives, and takes tasks."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from django_perfectqueue.metrics.views import MISSING, written

from ..plan import Plan
from ..shared.status import WorkerStatus
from .base import Helper
from .registration import states_of

logger = logging.getLogger("django_perfectqueue.health")

LONGEST_WAIT = 5.0
LONGEST_REQUEST = 5.0
SOON = 0.5
MOST_AT_ONCE = 32


class ProbeServer(Helper):
    """
    Answers ``/live`` and ``/ready`` over HTTP, from the worker's status in shared memory; and
    ``/metrics`` with what the processors do.

    It waits for no task and no database. During a restart the next worker shares the port,
    and the old one gives it up once the next takes tasks.
    """

    def __init__(self, plan: Plan, worker_status: WorkerStatus) -> None:
        super().__init__(plan)
        self.worker_status = worker_status

    def work(self) -> None:
        assert self.plan.health is not None
        try:
            server = ProbeHTTPServer(self.plan.health, self.worker_status)
        except OSError as error:
            logger.error("The probe server can't listen at %s:%s: %s", *self.plan.health, error)
            return
        with server:
            while not self.stopping:
                self.wait(SOON if server.since else LONGEST_WAIT, server)
                server.hang_up_late(time.monotonic())
                server.handle_request()


class ProbeHTTPServer(ThreadingHTTPServer):
    """
    An HTTP server at an address that its predecessor may still use.

    A request must arrive within a few seconds. Beyond 32 connections the oldest is closed,
    so that slow clients don't block probes.
    """

    daemon_threads = True
    timeout = 0
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], worker_status: WorkerStatus) -> None:
        self.worker_status = worker_status
        self.since: dict[socket.socket, float] = {}
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, ProbeRequestHandler)

    def server_bind(self) -> None:
        """Bind without the reverse DNS query of the base class, which may be slow."""
        if hasattr(socket, "SO_REUSEPORT"):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in list(self.since)[: max(0, len(self.since) - MOST_AT_ONCE + 1)]:
            self.since.pop(oldest, None)
            hang_up(oldest)
        self.since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.since.pop(request, None)
        super().shutdown_request(request)

    def hang_up_late(self, now: float) -> None:
        """Shut down connections that take too long."""
        for request, since in list(self.since.items()):
            if now - since > LONGEST_REQUEST:
                hang_up(request)

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("A probe was aborted.", exc_info=True)


class ProbeRequestHandler(BaseHTTPRequestHandler):
    """One probe."""

    server: ProbeHTTPServer
    timeout = LONGEST_REQUEST
    server_version = "perfectqueue"
    sys_version = ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            self.answer_metrics()
            return
        status = self.server.worker_status
        probes = {"/live": status.is_live, "/ready": status.is_ready}
        passed = probes.get(path)
        if passed is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = json.dumps({"ok": passed, **status.facts()}).encode()
        code = HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
        self.answer(code, content, "application/json")

    def answer_metrics(self) -> None:
        try:
            from django_perfectqueue.metrics.families import ProcessCollector
        except ImportError:
            self.answer(HTTPStatus.NOT_IMPLEMENTED, MISSING.encode(), "text/plain")
            return
        status = self.server.worker_status
        collector = ProcessCollector(status.is_live, status.is_ready, states_of(status.statuses))
        text, content_type = written(collector, self.headers.get("Accept", ""))
        self.answer(HTTPStatus.OK, text, content_type)

    def answer(self, code: HTTPStatus, content: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        logger.debug(format, *args)


def hang_up(request: socket.socket) -> None:
    """Shut a connection down; its thread gets an error and closes it."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def refusal(address: tuple[str, int]) -> str:
    """Return why the address can't be used, or an empty text."""
    try:
        ProbeHTTPServer(address, worker_status=None).server_close()  # type: ignore[arg-type]
    except (OSError, OverflowError) as error:
        return str(error)
    return ""
