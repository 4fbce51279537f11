"""Names that would steer a terminal, or forge a line of another task."""

import io
import logging
import re

from django.core.management import CommandError, call_command
from django.test import SimpleTestCase, TestCase
from django.urls import reverse

from django_perfectqueue import logs, store
from django_perfectqueue.queue import AcquiredTask

from ..admin.staff import LIST, AdminTestCase, row
from ..factories import fail, lease, running, submit
from ..worker.workers import WorkerTestCase

NASTY = "ok\n07:00:00 finished  forged\x1b[2J\t\u202egnissop"
SHOWN = "ok\\n07:00:00 finished  forged\\x1b[2J\\t\\u202egnissop"
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


class WorkerTests(WorkerTestCase):
    def test_the_lines_and_the_log_of_a_worker(self):
        self.submit(NASTY, "fail", user=NASTY)
        self.submit(NASTY + "2", "echo", user=NASTY)
        self.submit(NASTY + "3", NASTY, user=NASTY)
        worker = self.burst("--verbosity", "2", MAX_ATTEMPTS=1)

        printed = worker.output + worker.errors
        self.assertIn(f"key={SHOWN}", worker.errors)
        self.assertIn(f"finished  {SHOWN}2 type=echo user={SHOWN} attempt=1", worker.output)
        self.assertIn(f"type={SHOWN}", worker.errors)
        self.assertEqual(UNSEEN.findall(printed), [])
        self.assertNotIn("\n07:00:00", printed)


class CommandTests(TestCase):
    def test_metrics_do_not_steer_the_terminal(self):
        submit("waiting", queue="a\x1b[2Jb", now=None)
        out = io.StringIO()
        call_command("pq_status", "metrics", stdout=out)
        self.assertIn("a\\x1b[2Jb", out.getvalue())
        self.assertNotIn("\x1b", out.getvalue())

    def test_what_commands_print(self):
        submit("waiting", user=NASTY, type=NASTY, queue=NASTY, now=None)
        _task, held = running(NASTY, user=NASTY, type=NASTY, now=None)
        fail(held, now=None, error=NASTY, message=NASTY)
        store.records.note_waiting(using="default")
        queue = ("--queue", NASTY)
        for command in (
            (
                "pq_task",
                "list",
            ),
            ("pq_task", "list", *queue),
            ("pq_task", "list", "--queue", NASTY + "x"),
            ("pq_task", "show", NASTY),
            ("pq_task", "show", NASTY, *queue),
            ("pq_task", "show", NASTY + "x"),
            ("pq_task", "show", "waiting", *queue),
            ("pq_queue", "list"),
            ("pq_queue", "show", NASTY),
            ("pq_status", "workers", *queue),
            ("pq_user", "report", *queue),
            ("pq_user", "report", NASTY, *queue),
            ("pq_user", "set", NASTY, "--weight", "2"),
            ("pq_user", "show", NASTY),
            ("pq_limit", "set", f"user:{NASTY}", "--max-running", "1"),
            ("pq_limit", "list"),
            ("pq_task", "priority", "waiting", NASTY, "3", *queue),
            ("pq_task", "retry", "--group", NASTY, "--dry-run"),
            ("pq_task", "retry", "--group", NASTY + "x", "--yes"),
            ("pq_task", "retry", NASTY),
            ("pq_task", "retry", NASTY, NASTY + "x"),
            ("pq_task", "cancel", NASTY),
            ("pq_task", "finish", NASTY),
            ("pq_submit", NASTY, NASTY, "1"),
            ("pq_submit", NASTY + "2", NASTY, "1"),
            ("pq_queue", "clear", NASTY + "x", "--yes"),
            ("pq_status", "health", *queue),
            ("pq_status", "health", "--queue", NASTY + "x"),
        ):
            with self.subTest(command):
                out = io.StringIO()
                try:
                    call_command(*command, stdout=out, stderr=out, no_color=True)
                except CommandError as error:
                    out.write(str(error))
                self.assertEqual(UNSEEN.findall(out.getvalue()), [], out.getvalue())
                self.assertNotIn("\n07:00:00", out.getvalue())


class LogTests(SimpleTestCase):
    def test_the_task_of_a_record(self):
        record = logging.makeLogRecord({"msg": "Hello."})
        with logs.about(AcquiredTask(lease(key=NASTY, user=NASTY), worker="app1:17")):
            logs.TaskContext().filter(record)
        reported = logging.Formatter("%(pq_key)s %(pq_user)s %(message)s").format(record)
        self.assertEqual(reported, f"{SHOWN} {SHOWN} Hello.")


class AdminTests(AdminTestCase):
    def test_what_pages_show(self):
        task, held = running(NASTY, user=NASTY, type=NASTY, now=None)
        fail(held, now=None)
        submit("waiting", user=NASTY, type=NASTY, queue=NASTY, now=None)
        store.upkeep.wake_forgotten_lanes(using="default")
        store.records.note_waiting(using="default")
        for url in (
            LIST,
            reverse("admin:perfectqueue_task_change", args=[row(task).pk]),
            reverse("admin:perfectqueue_deadletter_changelist"),
            reverse("admin:perfectqueue_fairshare_changelist"),
            reverse("admin:perfectqueue_queueshare_changelist"),
        ):
            with self.subTest(url):
                page = self.client.get(url).content.decode()
                page = re.sub(r' value="[^"]*"', "", page)
                self.assertIn("\\u202egnissop", page)
                self.assertEqual(set(UNSEEN.findall(page)) - {"\t"}, set())
