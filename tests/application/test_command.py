import contextlib
import json
import os
import shlex
import signal
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

from django.test import SimpleTestCase, TestCase

from django_perfectqueue.application import CommandHandler, programs
from django_perfectqueue.application.programs import Output
from django_perfectqueue.exceptions import (
    CancelRequestedError,
    CommandFailedError,
    CommandNotFoundError,
    ConfigError,
    GracefulProcessStopError,
    TimeLimitError,
)
from django_perfectqueue.models import DeadLetter
from django_perfectqueue.queue import AcquiredTask

from ..databases.lifetime import is_alive
from ..factories import lease, running
from ..waiting import wait_until


def task_with(data, *, key="k1", user="ann"):
    facts = {"queue": "reports", "key": key, "type": "convert", "user": user}
    created_at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    payload = json.dumps(data)
    return AcquiredTask(lease(attempt=3, errors=1, payload=payload, created_at=created_at, **facts))


def shell(script, data=None, **attributes):
    """Return the handler of a task that runs this script."""
    kind = type("Script", (CommandHandler,), {"command": ["/bin/sh", "-c", script], **attributes})
    return kind(task_with({} if data is None else data))


def open_files():
    """Return what files of this process are open, by what they are."""
    folder = Path("/proc/self/fd")
    return {os.readlink(entry) for entry in folder.iterdir() if os.path.lexists(entry)}


class OutputTests(SimpleTestCase):
    def test_the_beginning_and_the_end_are_kept(self):
        for chunks in (["abcdefghij"], list("abcdefghij"), ["abcdef", "ghij"]):
            output = Output(5)
            for chunk in chunks:
                output.add(chunk.encode())
            self.assertEqual((bytes(output.head), bytes(output.tail)), (b"abc", b"ij"))
            self.assertEqual((output.size, output.left_out), (10, 5))
            self.assertEqual(str(output), "abc\n[... 5 bytes left out ...]\nij")
            self.assertEqual(output.last(1), "... j")

    def test_what_fits_is_whole(self):
        output = Output(5)
        output.add(b"abcd\n")
        self.assertTrue(output.is_whole)
        self.assertEqual(
            (str(output), output.last(9), output.last(3)), ("abcd\n", "abcd", "... cd")
        )


class WhatItGetsTests(SimpleTestCase):
    def test_the_data_come_on_its_input_and_the_key_as_its_last_argument(self):
        """
        As with the ancestor's --exec; a script in any language can read both.
        """
        script = 'cat; printf \'"%s"\' "$*" >&2; echo "$0" >&2'
        handler = shell(script, {"page": 1, "name": "Zoë"})
        completed = handler.completed()
        self.assertEqual(json.loads(str(completed.stdout)), {"page": 1, "name": "Zoë"})
        self.assertEqual(str(completed.stderr), '""k1\n')
        with_arguments = type("Words", (CommandHandler,), {"command": ["printf", "%s|", "a b"]})
        self.assertEqual(with_arguments(task_with({}, key="-- '$x;")).run(), "a b|-- '$x;|")

    def test_its_environment_tells_of_the_task_but_not_its_data(self):
        with mock.patch.dict(os.environ, {"PERFECTQUEUE_HOLDER": "7", "OURS": "1"}):
            lines = shell("env", {"password": "hunter2"}).run().splitlines()
        reported = dict(line.split("=", 1) for line in lines)
        wanted = {
            "PERFECTQUEUE_QUEUE": "reports",
            "PERFECTQUEUE_KEY": "k1",
            "PERFECTQUEUE_TYPE": "convert",
            "PERFECTQUEUE_USER": "ann",
            "PERFECTQUEUE_ATTEMPT": "2",
            "PERFECTQUEUE_CREATED_AT": "2030-01-01T00:00:00+00:00",
            "PERFECTQUEUE_HOLDER": "7",
            "OURS": "1",
        }
        self.assertEqual({name: reported[name] for name in wanted}, wanted)
        self.assertNotIn("hunter2", str(reported))

    def test_a_subclass_says_otherwise(self):
        class Page(CommandHandler):
            folder = "/"

            def argv(self):
                return ["/bin/sh", "-c", 'cat; pwd; echo "$SIZE" "$#"']

            def stdin(self):
                return b"%d pages\n" % self.task.data["pages"]

            def environment(self):
                return {"PATH": os.environ["PATH"], "SIZE": "A4"}

            def result(self, completed):
                return [completed.code, str(completed.stdout).split("\n")]

        with mock.patch.dict(os.environ, {"PERFECTQUEUE_HOLDER": "7"}):
            handler = Page(task_with({"pages": 3}))
            self.assertEqual(handler.program().environment["PERFECTQUEUE_HOLDER"], "7")
            self.assertEqual(handler.run(), [0, ["3 pages", "/", "A4 0", ""]])

    def test_what_can_not_be_meant_is_refused_at_once(self):
        table = [
            ({"command": "convert -v"}, "must be a list of words"),
            ({"command": ["x"], "exit_codes": {3: "again"}}, "not 'again'"),
        ]
        for attributes, message in table:
            with self.subTest(attributes), self.assertRaisesMessage(ConfigError, message):
                type("Wrong", (CommandHandler,), attributes)


class WhatItPrintsTests(SimpleTestCase):
    def test_json_is_the_result_as_a_value_and_all_else_as_text(self):
        table = [
            ('{"pages": 3}\n', {"pages": 3}),
            ("42", 42),
            ("null", None),
            ("", None),
            ("two\nlines\n", "two\nlines"),
            ("NaN", "NaN"),
            ("[1e999]", "[1e999]"),
            ("[" * 9000, "[" * 9000),
        ]
        for printed, result in table:
            with self.subTest(printed[:20]):
                self.assertEqual(shell(f"printf %s {shlex.quote(printed)}").run(), result)

    def test_what_is_no_utf_8_is_marked(self):
        self.assertEqual(shell(r"printf 'a\377b\000c'").run(), "a\ufffdb\0c")

    def test_much_output_is_read_and_a_part_of_it_is_kept(self):
        """
        Each stream is more than a pipe holds, and so is the input, which is read last.
        """
        script = "head -c 3000000 /dev/zero | tr '\\0' e >&2; head -c 3000000 /dev/zero; cat"
        handler = shell(script, ["x" * 500_000], max_output=1000)
        completed = handler.completed()
        self.assertEqual(completed.stderr.size, 3_000_000)
        self.assertEqual(completed.stdout.size, 3_000_000 + 500_000 + 5)
        kept = completed.stdout
        self.assertEqual((len(kept.head), bytes(kept.tail[-4:])), (500, b'x"]\n'))
        self.assertEqual(
            handler.result(completed)[500:535], "\n[... 3499005 bytes left out ...]\nx"
        )

    def test_a_program_need_not_read_its_input(self):
        for script in ("exec <&-; echo 1", "echo 1"):
            self.assertEqual(shell(script, ["x" * 500_000]).run(), 1)

    def test_what_it_leaves_running_is_not_waited_for(self):
        began = time.monotonic()
        pid = shell("sleep 600 & echo $!").run()
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        self.assertLess(time.monotonic() - began, 60)
        self.assertTrue(is_alive(pid))


class ExitCodeTests(SimpleTestCase):
    def test_an_error_tells_the_code_and_the_end_of_what_was_said(self):
        with self.assertRaises(CommandFailedError) as caught:
            shell("head -c 5000 /dev/zero | tr '\\0' e >&2; echo No such page. >&2; exit 3").run()
        message = str(caught.exception)
        self.assertEqual(caught.exception.code, 3)
        self.assertTrue(message.startswith("'/bin/sh' ended with exit code 3: ... eee"), message)
        self.assertTrue(message.endswith("eeeNo such page."))
        self.assertLess(len(message), 2100)

    def test_a_signal_is_reported_by_its_name(self):
        for number, name in ((signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 1, "signal 3")):
            with self.assertRaisesRegex(CommandFailedError, f"^'/bin/sh' was ended by {name}"):
                shell(f"kill -{int(number)} $$").run()

    def test_a_code_can_mean_success(self):
        self.assertEqual(shell("echo 5; exit 1", exit_codes={1: "finish"}).run(), 5)

    def test_a_program_that_is_not_there_is_reported_by_its_name(self):
        with tempfile.NamedTemporaryFile() as file:
            for name in ("no-such-program", file.name):
                handler = type("Missing", (CommandHandler,), {"command": [name]})
                with self.assertRaisesMessage(CommandNotFoundError, f"'{name}' can't be started"):
                    handler(task_with({})).run()
        with self.assertRaisesMessage(CommandNotFoundError, "names no command"):
            CommandHandler(task_with({})).run()

    def test_what_may_go_better_later_is_an_error_like_any_other(self):
        with (
            mock.patch.object(programs.subprocess, "Popen", side_effect=MemoryError),
            self.assertRaises(MemoryError),
        ):
            shell("true").run()
        too_long = type("Long", (CommandHandler,), {"command": ["echo", "x" * 10_000_000]})
        with self.assertRaises(OSError):
            too_long(task_with({})).run()


class VerdictTests(TestCase):
    def test_the_exit_code_decides_what_becomes_of_the_task(self):
        codes = {65: "fail", 66: "release", 75: "retry"}
        table = [
            (CommandFailedError("…", 1), {}, "retried"),
            (CommandFailedError("…", 75), {}, "released"),
            (CommandFailedError("…", 127), {}, "failed"),
            (CommandFailedError("…", 65), codes, "failed"),
            (CommandFailedError("…", 66), codes, "released"),
            (CommandFailedError("…", 75), codes, "retried"),
            (CommandFailedError("…", -9), codes, "retried"),
            (CommandNotFoundError("…"), codes, "failed"),
            (ValueError("…"), codes, "retried"),
        ]
        for number, (error, exit_codes, word) in enumerate(table):
            with self.subTest(error=error, exit_codes=exit_codes):
                _task, held = running(f"k{number}", now=None)
                attributes = {"exit_codes": exit_codes, "retry_wait": 60}
                handler = type("Coded", (CommandHandler,), attributes)(AcquiredTask(held))
                handler.decide("unexpected_error_raised", error=error)
                self.assertEqual(handler.task.settled, word)
        letters = DeadLetter.objects.order_by("task__key").values_list("task__key", "message")
        self.assertEqual(list(letters), [("k2", "…"), ("k3", "…"), ("k7", "…")])


class KillTests(SimpleTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.pids = self.folder / "pids"

    def begun(self, script, count=1, **attributes):
        """Start a script in a thread; wait until it has noted so many processes."""
        handler = shell(script.format(pids=self.pids), **attributes)
        self.raised = []

        def run():
            try:
                self.raised.append(handler.run())
            except BaseException as error:
                self.raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(self.end, handler, thread)
        wait_until(lambda: len(self.noted()) >= count)
        return handler, thread

    def end(self, handler, thread):
        for pid in self.noted():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thread.join()

    def noted(self):
        return [int(word) for word in self.pids.read_text().split()] if self.pids.exists() else []

    def assert_ended(self, thread, outcome):
        thread.join(60)
        self.assertEqual(self.raised, [outcome])
        wait_until(lambda: not any(map(is_alive, self.noted())))

    def test_one_that_hears_ends_by_itself(self):
        before = open_files()
        script = (
            "trap 'echo bye >> {pids}.bye; exit 0' TERM; "
            "echo $$ >> {pids}; while :; do sleep 0.05; done"
        )
        handler, thread = self.begun(script, kill_wait=600)
        reason = CancelRequestedError("Someone asked.")
        handler.kill(reason)
        handler.kill(TimeLimitError("too late"))
        self.assert_ended(thread, reason)
        self.assertTrue(Path(f"{self.pids}.bye").exists())
        self.assertEqual(open_files() - before, set())

    def test_one_that_is_deaf_is_killed_with_all_that_it_has_started(self):
        """
        Also what has a session of its own, and what has lost its parent.
        """
        script = (
            "trap '' TERM; "
            "sh -c 'echo $$ >> {pids}; exec sleep 600' & "
            "setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & "
            "(setsid sh -c 'echo $$ >> {pids}; exec sleep 600' &); "
            "echo $$ >> {pids}; while :; do sleep 0.05; done"
        )
        handler, thread = self.begun(script, 4, kill_wait=0.2)
        reason = TimeLimitError("too long")
        handler.kill(reason)
        self.assert_ended(thread, reason)

    def test_what_one_that_hears_has_left_is_killed(self):
        script = (
            "sh -c 'trap \"\" TERM; echo $$ >> {pids}; exec sleep 600' & echo $$ >> {pids}; wait"
        )
        handler, thread = self.begun(script, 2, kill_wait=600)
        reason = CancelRequestedError("Someone asked.")
        handler.kill(reason)
        self.assert_ended(thread, reason)

    def test_on_a_graceful_stop_it_ends_in_its_own_time(self):
        script = "echo $$ >> {pids}; while [ ! -e {pids}.gate ]; do sleep 0.02; done; echo 7"
        handler, thread = self.begun(script)
        handler.kill(GracefulProcessStopError("The processor stops."))
        Path(f"{self.pids}.gate").touch()
        self.assert_ended(thread, 7)

    def test_an_exception_from_elsewhere_leaves_nothing_behind(self):
        handler = shell(f"echo $$ >> {self.pids}; exec sleep 600")
        before = open_files()
        select = programs.selectors.DefaultSelector.select

        def broken(selector, timeout):
            wait_until(self.noted)
            select(selector, 0)
            raise KeyboardInterrupt

        with (
            mock.patch.object(programs.selectors.DefaultSelector, "select", broken),
            self.assertRaises(KeyboardInterrupt),
        ):
            handler.run()
        self.assertFalse(is_alive(self.noted()[0]))
        with self.assertRaises(ChildProcessError):
            os.waitpid(self.noted()[0], os.WNOHANG)
        self.assertEqual(open_files() - before, set())

    def test_what_it_has_left_may_write_on_for_ever(self):
        self.assertIn("y", shell("yes & sleep 0.2", max_output=100).run())

    def test_a_reason_that_comes_when_it_has_ended_changes_nothing(self):
        handler, real = shell("echo 7"), programs.Program.run

        def late(self):
            completed = real(self)
            handler.kill(CancelRequestedError("Someone asked."))
            return completed

        with mock.patch.object(programs.Program, "run", late):
            self.assertEqual(handler.run(), 7)

    def test_before_and_after_the_program_the_reason_is_raised(self):
        handler = shell("true")
        raised = []
        handler.interrupter = raised.append
        reason = CancelRequestedError("Someone asked.")
        handler.kill(reason)
        handler.run()
        handler.kill(reason)
        self.assertEqual(raised, [reason, reason])
