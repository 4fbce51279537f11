import io
import json
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock, skipUnless

from django.core.management import call_command
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils.timezone import now as clock

from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.management.terminal import point
from django_perfectqueue.models import Task, Worker
from django_perfectqueue.queue import Queue
from tests.factories import register, running, submit

from .running import json_lines, refused, run, run_json, typed

COMMANDS = "django_perfectqueue.management.commands"
# So many tasks are stored at once.
CHUNK = 1000


def keys():
    return list(Task.objects.order_by("id").values_list("key", flat=True))


class SubmitTests(TestCase):
    def test_the_ancestors_line_submits_a_task(self):
        """
        Who knows PerfectQueue's command line knows this one.
        """
        out = run("pq_submit", "k1", "user_task", '{"uid": 1}', "-u", "user_1", "-t", "1767225600")

        task = Queue()["k1"].metadata()
        self.assertEqual(out, "Task 'k1' is submitted.\n")
        self.assertEqual((task.type, task.data, task.user), ("user_task", {"uid": 1}, "user_1"))
        self.assertEqual(task.run_at, datetime(2026, 1, 1, tzinfo=timezone.utc))

    def test_a_task_needs_no_data(self):
        run("pq_submit", "k1", "user_task")
        self.assertIsNone(Queue()["k1"].metadata().data)

    def test_a_task_of_a_sequence_waits_for_the_one_before(self):
        for key in ("k1", "k2"):
            run("pq_submit", key, "t", "--sequence", "account-7")
        self.assertEqual([task.key for task in Queue().acquire(9)], ["k1"])
        found = run("pq_task", "list", "--tag", "sequence:account-7")
        self.assertIn("k2", found)
        self.assertIn("k1 (running, sequence)", run("pq_task", "show", "k2"))

    def test_every_option_reaches_the_task(self):
        run(
            *("pq_submit", "k1", "t", "null", "--queue", "reports", "--priority", "-3"),
            *("--in", "5m30s", "--expires", "2030-01-01T12:00:00+02:00"),
            *("--expect", "2029-01-01T00:00:00Z", "--limit", "mail", "--limit", "api"),
        )

        task = Queue("reports")["k1"].metadata()
        self.assertEqual(task.priority, -3)
        self.assertEqual(task.expires_at, datetime(2030, 1, 1, 10, tzinfo=timezone.utc))
        self.assertEqual(task.expected_at, datetime(2029, 1, 1, tzinfo=timezone.utc))
        self.assertEqual(task.limits, "api,mail")
        self.assertAlmostEqual(
            task.run_at, clock() + timedelta(seconds=330), delta=timedelta(seconds=30)
        )

    def test_json_tells_a_program_what_was_done(self):
        [reported] = run_json("pq_submit", "k1", "t", "1")

        self.assertEqual(reported, {"queue": "default", "key": "k1", "done": "submitted"})

    def test_a_second_submit_of_a_key_exits_with_three(self):
        """
        A script that repeats itself can distinguish this from an error that it must act on.
        """
        submit("k1")

        message = refused(self, "pq_submit", "k1", "t", "1", code=3)

        self.assertIn("already has a task with the key 'k1'", message)

    def test_a_conflict_can_be_ignored(self):
        submit("k1", data={"first": True})

        out = run("pq_submit", "k1", "t", "1", "--on-conflict", "ignore")

        self.assertIn("was there already", out)
        self.assertEqual(Queue()["k1"].metadata().data, {"first": True})

    def test_a_conflict_can_replace_what_is_not_running(self):
        submit("k1")

        out = run("pq_submit", "k1", "t", "2", "--on-conflict", "replace")

        self.assertIn("in the place of another", out)
        self.assertEqual(Queue()["k1"].metadata().data, 2)

    def test_a_running_task_is_not_replaced(self):
        running("k1")

        message = refused(self, "pq_submit", "k1", "t", "2", "--on-conflict", "replace")

        self.assertEqual(message, "Task 'k1' is running.")

    def test_verbosity_nought_says_nothing(self):
        self.assertEqual(run("pq_submit", "k1", "t", "1", "-v", "0"), "")


class BadSubmitTests(TestCase):
    """Bad input gets a clear error, and nothing is stored."""

    def assert_refused(self, *arguments, says):
        message = refused(self, "pq_submit", *arguments)
        self.assertIn(says, message)
        self.assertEqual(keys(), [])

    def test_malformed_json_is_shown_with_how_to_quote_it(self):
        """
        The shell has mostly eaten the quotes, which the excerpt shows.
        """
        self.assert_refused("k", "t", "{uid: 1}", says="This is not JSON: {uid: 1} (")
        self.assert_refused("k", "t", " ", says="This is empty, and not JSON. Quote it")
        self.assert_refused("k", "t", "", says="""Quote it for the shell: pq_submit k1""")

    def test_an_empty_key(self):
        self.assert_refused("", "t", "1", says="The key must be a text of 1")

    def test_a_key_over_255_characters(self):
        self.assert_refused(
            "k" * 256, "t", "1", says="The key must be a text of 1 to 255 characters"
        )

    @override_settings(PERFECTQUEUE={"MAX_PAYLOAD_SIZE": 10})
    def test_a_payload_over_the_limit(self):
        self.assert_refused(
            "k", "t", json.dumps("x" * 10), says="may have at most 10 bytes as JSON"
        )

    def test_a_payload_that_json_has_no_word_for(self):
        self.assert_refused("k", "t", "NaN", says="can't be written as JSON")

    @skipUnless(HAS_TASKS, "There are no tasks of Django here.")
    def test_data_with_which_a_function_can_not_be_called(self):
        from ..backend import jobs

        type_ = jobs.add.module_path
        self.assert_refused("k", type_, "[1, 2]", says="The data is not that of a Django task")
        self.assert_refused("k", type_, says="missing a required argument: 'a'")
        with typed(json_lines({"key": "k", "type": type_, "data": {"args": [1, 2, 3]}})):
            self.assert_refused("--file", "-", says="Line 1: tests.backend.jobs.add() can't be")
        run("pq_submit", "good", type_, '{"args": [1], "kwargs": {"b": 2}}')
        run("pq_submit", "none", jobs.nothing.module_path)
        self.assertEqual(Queue()["none"].metadata().data, {"args": [], "kwargs": {}})

    def test_a_payload_nested_beyond_all_depth(self):
        self.assert_refused("k", "t", "[" * 200_000, says="nested too deeply")

    def test_a_bad_time(self):
        self.assert_refused("k", "t", "1", "-t", "noon", says="--time: must be unix seconds")
        self.assert_refused("k", "t", "1", "-t", "1" * 15, says="up to year 9999")
        for option in ("--time", "--expect", "--expires"):
            for end in ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "253402300799"):
                self.assert_refused("k", "t", "1", f"{option}={end}", says="to 9999-12-30 in UTC")
        self.assert_refused("k", "t", "1", "-t", "2030-01-01T12:00", says="with an offset")
        self.assert_refused("k", "t", "1", "-t", "2030-99-01T12:00Z", says="--time: must be")
        self.assert_refused("k", "t", "1", "--in", "5 minutes", says="--in: must be a span")
        self.assert_refused("k", "t", "1", "--in", "9999999d", says="less than 1e9 seconds")
        self.assert_refused("k", "t", "1", "--in", "1900000000s", says="(as text ISO 8601)")
        self.assert_refused("k", "t", "1", "--expires", "x", says="--expires: must be")
        self.assert_refused("k", "t", "1", "--expect", "x", says="--expect: must be")

    def test_a_bad_limit(self):
        self.assert_refused("k", "t", "1", "--limit", "a,b", says="without NUL or ',', not 'a,b'")
        self.assert_refused("k", "t", "1", "--limit", "", says="must be a text of 1 to 249")

    def test_two_times(self):
        self.assert_refused(
            "k", "t", "1", "-t", "1", "--in", "1s", says="not allowed with argument"
        )

    def test_half_a_task(self):
        self.assert_refused("k", says="Give KEY TYPE JSON, such as: pq_submit k1 user_task")

    def test_a_priority_beyond_what_a_column_holds(self):
        self.assert_refused("k", "t", "1", "--priority", str(2**31), says="The priority must be")

    def test_options_that_do_not_go_together(self):
        self.assert_refused("k", "t", "1", "--file", "-", says="With --file")
        self.assert_refused("k", "t", "1", "--atomic", says="--atomic is for --file")
        self.assert_refused(
            *("--file", "-", "--on-conflict", "replace"), says="is for one task, not for --file"
        )

    @override_settings(PERFECTQUEUE={"DEFAULT_QEUE": "x"})
    def test_an_unknown_setting(self):
        self.assert_refused("k", "t", "1", says="Did you mean 'DEFAULT_QUEUE'?")


class FileTests(TestCase):
    def submit(self, text, *options):
        with typed(text):
            return run("pq_submit", "--file", "-", *options)

    def refused(self, text, *options, code=1):
        with typed(text):
            return refused(self, "pq_submit", "--file", "-", *options, code=code)

    def test_each_line_is_a_task(self):
        task = {"key": "a", "type": "t", "data": [1], "user": "u", "priority": 2, "run_at": "1h"}

        out = self.submit(json_lines(task, {"key": "b", "type": "t"}))

        self.assertEqual(out, "2 tasks are submitted.\n")
        row = Queue()["a"].metadata()
        self.assertEqual((row.data, row.user, row.priority, row.status), ([1], "u", 2, "scheduled"))

    def test_a_line_may_say_when_it_is_expected_and_to_which_limits_it_keeps(self):
        task = {"key": "a", "type": "t", "expected_at": "2030-01-01T00:00Z", "limits": ["mail"]}

        self.submit(json_lines(task))

        row = Queue()["a"].metadata()
        self.assertEqual(row.expected_at, datetime(2030, 1, 1, tzinfo=timezone.utc))
        self.assertEqual(row.limits, "mail")

    def test_blank_lines_windows_ends_and_a_missing_last_end_do_no_harm(self):
        self.submit('\n{"key": "a", "type": "t"}\r\n  \n{"key": "b", "type": "t"}')

        self.assertEqual(keys(), ["a", "b"])

    def test_an_empty_file_is_no_error(self):
        self.assertEqual(self.submit(""), "0 tasks are submitted.\n")

    def test_a_file_is_read_from_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tasks.jsonl")
            path.write_text(json_lines({"key": "März", "type": "t"}))
            [reported] = run_json("pq_submit", "--file", str(path))

        self.assertEqual(reported, {"queue": "default", "submitted": 1, "ignored": 0})
        self.assertEqual(keys(), ["März"])

    def test_a_line_may_wait_for_the_one_before_it_and_bring_its_context(self):
        dump = json_lines(
            {"key": "a", "type": "t"},
            {"key": "b", "type": "t", "after": ["a"], "if_failed": "cancel", "context": {}},
        )
        with typed(dump):
            run("pq_submit", "--file", "-")

        self.assertEqual(Queue()["b"].metadata().status, "blocked")

    def test_a_file_that_is_not_there(self):
        message = refused(self, "pq_submit", "--file", "/nowhere/tasks.jsonl")
        self.assertEqual(message, "Can't read '/nowhere/tasks.jsonl': No such file or directory.")

        message = refused(self, "pq_submit", "--file", "/")
        self.assertEqual(message, "Can't read '/': Is a directory.")

    def test_a_bad_line_is_named_with_what_is_wrong(self):
        good = json_lines({"key": "a", "type": "t"})
        for line, says in {
            '{"key": ': "This is not JSON",
            '["key"]': "must be a JSON object, not",
            '{"key": "b"}': "The task has no 'type'.",
            '{"key": "b", "type": "t", "usr": 1}': "has no 'usr'. Did you mean 'user'?",
            '{"key": "", "type": "t"}': "The key must be a text of 1",
            '{"key": 5, "type": "t"}': "The key must be a text of 1",
            '{"key": "b", "type": "t", "priority": "high"}': "The priority must be",
            '{"key": "b", "type": "t", "run_at": "soon"}': "run_at must be unix seconds",
            '{"key": "b", "type": "t", "run_at": true}': "run_at must be unix seconds",
            '{"key": "b", "type": "t", "expected_at": "soon"}': "expected_at must be unix seconds",
            '{"key": "b", "type": "t", "limits": "mail"}': "The limits must be a list of names",
            '{"key": "b", "type": "t", "limits": ["a,b"]}': "without NUL or ',', not 'a,b'",
        }.items():
            with self.subTest(line):
                message = self.refused(good + line + "\n" + good)
                self.assertIn("Line 2: ", message)
                self.assertIn(says, message)
                self.assertIn("Nothing was stored.", message)

    def test_a_line_that_is_not_utf8(self):
        message = self.refused(b'{"key": "\xff", "type": "t"}\n')

        self.assertIn("Line 1: This is not JSON", message)

    def test_what_was_stored_before_a_bad_line_is_reported(self):
        """
        A person who corrects the line knows how to go on without doing anything twice.
        """
        many = json_lines(*({"key": f"k{n}", "type": "t"} for n in range(CHUNK + 10)))

        message = self.refused(many + "{}\n")

        self.assertIn(f"Line {CHUNK + 11}: The task has no 'key'.", message)
        self.assertIn(f"Stored are its first {CHUNK:,} tasks;", message)
        self.assertEqual(len(keys()), CHUNK)
        self.assertIn(
            f"11 tasks are submitted. {CHUNK:,} were there already.",
            self.submit(many + '{"key": "last", "type": "t"}', "--on-conflict", "ignore"),
        )

    def test_atomic_stores_all_or_none(self):
        many = json_lines(*({"key": f"k{n}", "type": "t"} for n in range(CHUNK + 10)))

        message = self.refused(many + "{}\n", "--atomic")

        self.assertIn("Nothing was stored.", message)
        self.assertEqual(keys(), [])
        self.submit(many, "--atomic")
        self.assertEqual(len(keys()), CHUNK + 10)

    def test_keys_that_are_taken_are_named(self):
        submit("a")

        message = self.refused(json_lines({"key": "a", "type": "t"}), code=3)

        self.assertIn("Up to line 1: Queue 'default' already has a task with the key 'a'.", message)

    def test_a_key_given_twice_is_an_error_too(self):
        twice = json_lines({"key": "a", "type": "t"}, {"key": "a", "type": "t"})

        self.refused(twice, code=3)

        self.assertEqual(keys(), [])

    def test_conflicts_can_be_ignored_and_are_counted(self):
        submit("a")

        out = self.submit(
            json_lines({"key": "a", "type": "t"}, {"key": "b", "type": "t"}),
            "--on-conflict",
            "ignore",
        )

        self.assertEqual(out, "1 task is submitted. 1 was there already.\n")

    def test_an_interrupt_says_how_far_it_came(self):
        lines = [json_lines({"key": f"k{n}", "type": "t"}).encode() for n in range(CHUNK)]
        source = mock.Mock(spec=["readline"])
        source.readline.side_effect = [*lines, KeyboardInterrupt]

        with mock.patch("sys.stdin", mock.Mock(buffer=source)):
            message = refused(self, "pq_submit", "--file", "-", code=130)

        self.assertIn(f"Interrupted. Stored are its first {CHUNK:,} tasks;", message)


class ReaderTests(SimpleTestCase):
    def test_a_time_is_read_in_three_ways(self):
        noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
        for written in (noon.timestamp(), "1893499200", "2030-01-01T13:00:00+01:00"):
            self.assertEqual(point("run_at", written), noon)
        self.assertEqual(point("run_at", "2030-01-01T12:00:00Z"), noon)
        self.assertEqual(point("run_at", "5m30s"), "5m30s")
        self.assertIsNone(point("run_at", None))


class CommittedTests(TransactionTestCase):
    def test_a_chunk_with_a_taken_key_stores_nothing(self):
        """
        So that what the message says was stored is what was stored.
        """
        submit("k5")
        many = json_lines(*({"key": f"k{n}", "type": "t"} for n in range(10)))

        with typed(many):
            message = refused(self, "pq_submit", "--file", "-", code=3)

        self.assertIn("Nothing was stored.", message)
        self.assertEqual(keys(), ["k5"])


class DoubtTests(TestCase):
    def test_a_type_that_no_worker_knows_is_reported(self):
        def reported(type_, *options):
            out = io.StringIO()
            call_command("pq_submit", f"k-{type_}", type_, "1", *options, stdout=out, stderr=out)
            return out.getvalue()

        self.assertIn(
            "No handler here knows the type 'fali'. Did you mean 'fail'?", reported("fali")
        )
        self.assertNotIn("No", reported("fail"))
        self.assertIn("No worker serves queue 'mial'", reported("fail", "--queue", "mial"))
        register("mial", now=None)
        Worker.objects.update(draining=True)
        printed = reported("fail", "--queue", "mial", "--on-conflict", "ignore")
        self.assertIn("The workers of queue 'mial' are drained: see pq_status", printed)
        register(now=None)
        self.assertIn("knows the type 'reprot'. Did you mean 'report'?", reported("reprot"))
        self.assertNotIn("knows the type", reported("report"))
        register(now=None, routes="null")
        self.assertNotIn("knows the type", reported("other"))
