import json
import threading
from datetime import datetime, timezone
from unittest import mock

from django.db import DatabaseError, connection, transaction
from django.test import SimpleTestCase, TestCase, override_settings

import django_perfectqueue as pq
from django_perfectqueue import logs, store
from django_perfectqueue.checks.settings import check_settings
from django_perfectqueue.conf import Options
from django_perfectqueue.exceptions import NotFoundError
from django_perfectqueue.models import Journal
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.payload.journal import LONGEST_LINE, Notes, entry, part_of, read
from django_perfectqueue.queue import Queue, note_of

from ..factories import running, submit

MOMENT = 1_900_000_000.25


class PartTests(SimpleTestCase):
    def test_a_part_is_of_one_or_of_what_is_said(self):
        table = [
            ((0.4,), 0.4),
            ((0,), 0.0),
            ((1,), 1.0),
            ((None,), None),
            ((3, 10), 0.3),
            ((11, 10), 1.0),
            ((0, 0), 1.0),
        ]
        for given, part in table:
            with self.subTest(given):
                self.assertEqual(part_of(*given), part)

    def test_what_is_no_part_is_refused_in_words(self):
        for given in ((-0.1,), (float("nan"),), (float("inf"),), ("0.4",), (True,), (1, -1)):
            with self.subTest(given), self.assertRaisesRegex(ValueError, "a number of at least 0"):
                part_of(*given)
        with self.assertRaisesRegex(ValueError, r"progress\(40, of=100\)"):
            part_of(40)


class LineTests(SimpleTestCase):
    def test_a_line_is_read_as_it_was_written(self):
        reported = entry(MOMENT, "WARNING", "shop.mail", "It took:\nlong.")
        self.assertEqual(
            reported, "2030-03-17T17:46:40.250Z WARNING shop.mail: It took:\n    long."
        )
        [line] = read(reported)
        moment = datetime(2030, 3, 17, 17, 46, 40, 250_000, tzinfo=timezone.utc)
        self.assertEqual(line, ("It took:\nlong.", moment, "WARNING", "shop.mail"))

    def test_nothing_that_is_logged_looks_like_another_line(self):
        fake = entry(MOMENT, "ERROR", "root", "Never logged.")
        reported = "\n".join(
            entry(MOMENT, "INFO", "shop", f"{mark}{fake}") for mark in ("\n", "\r")
        )
        self.assertEqual([line.source for line in read(reported)], ["shop", "shop"])

    def test_a_level_and_a_name_are_read_as_such_whatever_they_are(self):
        for level, name, read_as in (
            ("VERY BAD", "shop", ("VERY-BAD", "shop")),
            ("BAD\nX", "sh\nop", ("BAD-X", "sh op")),
            ("", "shop", ("NOTSET", "shop")),
            (20, "shop", ("20", "shop")),
        ):
            [line] = read(entry(MOMENT, level, name, "It took: long."))
            self.assertEqual((line.level, line.source, line.text), (*read_as, "It took: long."))

    def test_a_long_line_is_cut(self):
        [line] = read(entry(MOMENT, "INFO", "shop", "x" * 100_000))
        self.assertEqual((len(line.text), line.text[-1]), (LONGEST_LINE, "…"))

    def test_the_first_and_the_last_lines_are_kept_and_the_rest_is_counted(self):
        notes = Notes(1_000)
        lines = [f"line {number}" for number in range(1_000)]
        for line in lines:
            notes.add(line)
        reported = notes.text()
        self.assertLessEqual(len(reported), 1_000)
        kept = reported.split("\n")
        [mark] = [line for line in kept if line not in lines]
        self.assertEqual((kept[0], kept[-1]), ("line 0", "line 999"))
        self.assertEqual(mark, f"… {1_000 - len(kept) + 1} lines are left out here …")
        self.assertEqual([line for line in lines if line in kept], [x for x in kept if x != mark])

    def test_one_line_that_is_too_long_leaves_nothing_else_out(self):
        notes = Notes(1_000)
        for line in ("x" * 600, "end"):
            notes.add(line)
        self.assertEqual(notes.text(), "x" * 600 + "\nend")

    def test_many_threads_may_add_at_once(self):
        notes = Notes(16_384)

        def tell(name):
            for number in range(2_000):
                notes.add(f"{name} {number}")
                notes.text()

        threads = [threading.Thread(target=tell, args=[name]) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLessEqual(len(notes.text()), 16_384)
        self.assertTrue(notes.changed)


class SettingTests(SimpleTestCase):
    def test_values_that_will_not_do_are_reported(self):
        for name, value, word in (
            ("LOG_CAPTURE", "info", "Did you mean 'INFO'"),
            ("LATE_AFTER", -1, "at least 0"),
        ):
            with self.subTest(name), override_settings(PERFECTQUEUE={name: value}):
                [found] = check_settings()
                self.assertIn(word, found.msg + str(found.hint or ""))


class TellingTests(TestCase):
    """A program takes tasks by itself: no worker writes what they report."""

    def setUp(self):
        submit("k1", data={"password": "hunter22"}, now=None)
        self.task = Queue().poll()

    def journal(self):
        return Queue()["k1"].progress()

    def test_how_far_it_is_can_be_seen_from_outside(self):
        self.assertIsNone(self.journal())
        self.task.progress(0.4, "parsing")
        reported = self.journal()
        self.assertEqual((reported.progress, reported.stage, reported.number), (0.4, "parsing", 1))

    def test_what_is_not_reported_again_stays(self):
        self.task.progress(0.4, "parsing")
        self.task.progress(5, of=10)
        self.task.progress(stage="drawing")
        self.task.finish()
        reported = self.journal()
        self.assertEqual((reported.progress, reported.stage), (0.5, "drawing"))

    def test_a_million_times_cost_one_statement_an_interval(self):
        with self.assertNumQueries(3):  # in a savepoint of the test's transaction
            self.task.progress(0.0)
        with self.assertNumQueries(0):
            for number in range(1, 10_000):
                self.task.progress(number, of=10_000)
                self.task.log(number)
        self.task.notes.next_write = 0.0
        with self.assertNumQueries(3):
            self.task.progress(1.0)

    @mock.patch.object(Options, "JOURNAL_INTERVAL", 3600.0)
    def test_the_last_is_written_with_the_end(self):
        for tenths, settle in enumerate(("finish", "retry", "fail", "cancel", "release"), 1):
            with self.subTest(settle):
                submit(settle, now=None)
                task = Queue().poll()
                task.progress(0.0)
                task.progress(tenths, of=10)
                getattr(task, settle)()
                self.assertEqual(Queue()[settle].progress().progress, tenths / 10)

    def test_what_is_sensitive_is_never_stored(self):
        self.task.progress(0.1, "login as hunter22")
        self.task.log("The password is hunter22, isn't it?")
        self.task.write_notes()
        reported = self.journal()
        self.assertEqual(reported.stage, f"login as {STARS}")
        [line] = reported.log
        self.assertEqual(line.text, f"The password is {STARS}, isn't it?")

    def test_a_secret_that_is_cut_off_is_no_secret_reported(self):
        text = "x" * (LONGEST_LINE - 4) + "hunter22"
        self.task.log(text)
        self.assertNotIn("hunt", self.task.notes.text())

    def test_what_update_data_has_changed_is_hidden_as_well(self):
        self.task.update_data({"password": "next-one"})
        self.assertEqual(self.task.redacted("hunter22 next-one"), f"{STARS} {STARS}")

    def test_any_text_can_be_reported(self):
        for text in ("\x00", "\ud800", "ä" * 5_000, "", b"bytes", 7):
            with self.subTest(text):
                self.task.progress(0.1, text)
                self.task.log(text)
                self.task.write_notes()
        self.assertEqual(len(self.journal().log), 6)

    def test_that_it_can_not_be_written_harms_nobody(self):
        with (
            mock.patch.object(store.records, "write_journal", side_effect=DatabaseError("full")),
            self.assertLogs("django_perfectqueue.queue", "WARNING") as log,
        ):
            self.task.progress(0.4)
        self.assertIn("key=k1 error=full", log.output[0])
        self.task.finish()
        self.assertEqual(Queue()["k1"].metadata().status, "finished")

    def test_an_error_that_undoes_the_transaction_is_raised(self):
        """Else what was done in it would be gone, and its block be left without an error."""
        failing = mock.patch.object(store.records, "write_journal", side_effect=DatabaseError("1"))
        lost = mock.patch.object(connection, "savepoint_rollback", side_effect=DatabaseError("2"))
        with self.assertRaisesMessage(DatabaseError, "1"), transaction.atomic():
            submit("k2", now=None)
            with failing, lost:
                self.task.progress(0.4)
        self.assertEqual(len(Queue()), 1)

    def test_each_attempt_has_its_own(self):
        """
        What a preempted one still reports does not disturb that of its successor.
        """
        self.task.progress(0.9)
        self.task.retry(0)
        self.assertEqual(self.journal().progress, 0.9)
        again = Queue().poll()
        self.assertIsNone(self.journal())
        again.progress(0.1)
        self.task.progress(1.0)
        self.task.write_notes()
        self.assertEqual(self.journal().progress, 0.1)
        self.assertEqual(Journal.objects.count(), 2)

    def test_of_a_task_that_is_not_there_nothing_can_be_reported(self):
        with self.assertRaises(NotFoundError):
            Queue()["k2"].progress()

    async def test_in_an_event_loop_it_is_noted_and_written_with_the_end(self):
        await Queue().asubmit("k3", "report")
        task = await Queue().apoll()
        task.progress(0.4)
        self.assertIsNone(await Queue()["k3"].aprogress())
        await task.aprogress(0.5)
        self.assertEqual((await Queue()["k3"].aprogress()).progress, 0.5)
        task.progress(0.6)
        await task.afinish()
        self.assertEqual((await Queue()["k3"].aprogress()).progress, 0.6)


class CurrentTests(TestCase):
    def test_code_that_was_not_given_the_task_finds_it(self):
        running("k1", now=None)
        submit("k2", now=None)
        task = Queue().poll()
        with logs.about(task):
            self.assertIs(pq.current_task(), task)
            pq.progress(1, "half", of=2)
            pq.log("Here.")
        reported = Queue()["k2"].progress()
        self.assertEqual((reported.progress, reported.stage), (0.5, "half"))
        self.assertIn("INFO task: Here.", note_of(task).lines)
        self.assertIsNone(note_of(task))

    def test_outside_of_a_task_it_does_nothing_but_check(self):
        self.assertIsNone(pq.current_task())
        with self.assertNumQueries(0):
            pq.progress(0.4, "parsing")
            pq.log(json.dumps({}))
        with self.assertRaises(ValueError):
            pq.progress(40)
