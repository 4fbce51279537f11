"""A reader of the worker's output that stands still holds up no task."""

import fcntl
import json
import os
import pty
import signal
import socket
import termios
import urllib.request
from unittest import mock

from django.test import SimpleTestCase, tag

from django_perfectqueue.queue import Queue
from django_perfectqueue.worker.process import output

from ...waiting import wait_until
from ..helpers.test_registration import free_port
from ..workers import WorkerTestCase

LINE = b"x" * 99 + b"\n"
TOO_MANY = 3 * output.MOST_KEPT // len(LINE)


class OutletTests(SimpleTestCase):
    def read_all(self, file, out):
        """Read all that there is, while the outlet writes what it has kept."""
        os.set_blocking(file, False)
        text = b""
        while True:
            try:
                text += os.read(file, 65_536)
            except BlockingIOError:
                if not out.waiting:
                    return text
                out.push()

    def pairs(self):
        yield "pipe", os.pipe()
        yield "socket", [end.detach() for end in socket.socketpair()]
        ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        yield "terminal", (ours, theirs)

    def test_what_nobody_reads_is_kept_up_to_a_size_and_the_rest_is_counted(self):
        for name, (reader, writer) in self.pairs():
            with self.subTest(name):
                self.addCleanup(os.close, reader)
                self.addCleanup(os.close, writer)
                out = output.NonBlockingOutput(writer)
                before = sum(output.dropped)
                for _line in range(TOO_MANY):
                    self.assertEqual(out.write(LINE), len(LINE))
                lost = sum(output.dropped) - before
                self.assertGreater(lost, TOO_MANY / 3)
                text = self.read_all(reader, out)
                self.assertEqual(text.count(LINE), TOO_MANY - lost)
                self.assertIn(f"{lost} lines of output were dropped".encode(), text)
                self.assertTrue(os.get_blocking(writer))

    def test_a_pipe_gets_whole_lines_in_one_piece(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        out = output.NonBlockingOutput(writer)
        with mock.patch.object(os, "write", wraps=os.write) as write:
            out.write(LINE * 90)
        self.assertEqual([len(call.args[1]) for call in write.mock_calls], [4000, 4000, 1000])

    def test_a_child_writes_nothing_of_its_parents(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        out = output.NonBlockingOutput(writer)
        for _line in range(TOO_MANY):
            out.write(LINE)
        if not (pid := os.fork()):
            os._exit(len(out.waiting))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_what_the_encoding_cannot_show_is_escaped(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        file = os.fdopen(writer, "w", encoding="latin-1")
        self.addCleanup(file.close)
        print("finished 仕事 ä", file=output.through_outlet(file))
        self.assertEqual(os.read(reader, 100), b"finished \\u4ed5\\u4e8b \xe4\n")

    def test_a_reader_that_has_gone_disturbs_nobody(self):
        reader, writer = os.pipe()
        os.close(reader)
        before = sum(output.dropped)
        file = os.fdopen(writer, "w")
        self.addCleanup(file.close)
        stream = output.through_outlet(file)
        for _line in range(2):
            stream.write(LINE.decode())
            stream.flush()
        self.assertEqual(sum(output.dropped) - before, 2)
        output.push()
        self.assertEqual(sum(output.dropped) - before, 2)


@tag("any-database")
class StandingReaderTests(WorkerTestCase):
    def narrow_pipe(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        return reader, writer

    def pipe_without_reader(self):
        reader, writer = os.pipe()
        os.close(reader)
        return os.open(os.devnull, os.O_RDONLY), writer

    def stopped_terminal(self):
        """Return a terminal at which someone has pressed Ctrl-S."""
        ours, theirs = pty.openpty()
        termios.tcflow(theirs, termios.TCOOFF)
        return ours, theirs

    @tag("thorough")
    def test_tasks_run_probes_tell_and_a_stop_stops(self):
        ways = (self.narrow_pipe, self.stopped_terminal, self.pipe_without_reader)
        for number, make in enumerate(ways):
            with self.subTest(make.__name__):
                reader, writer = make()
                self.addCleanup(os.close, reader)
                self.addCleanup(os.close, writer)
                port = free_port()
                self.submit(f"first{number}", "shout", data={"lines": 2_000})
                self.submit(f"second{number}", "note")
                worker = self.worker("--health-port", str(port), output=writer)
                self.wait_for_status(f"second{number}", "finished")
                self.assertEqual(Queue()[f"first{number}"].metadata().status, "finished")

                def tells(port=port):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/live") as answer:
                        return json.load(answer)["dropped_lines"] > 0

                wait_until(tells)
                worker.send(signal.SIGTERM)
                self.assertEqual(worker.wait(30), 0)
                self.assert_gone(worker)

    def test_a_worker_that_is_started_without_output_runs_tasks(self):
        for number, closed in enumerate((">&-", ">&- 2>&-", "<&- >&- 2>&-")):
            with self.subTest(closed):
                task = self.submit(f"closed{number}", "note")
                self.burst("--verbosity", "2", within=["sh", "-c", f'exec "$@" {closed}', "sh"])
                self.assertEqual(task.metadata().status, "finished")
