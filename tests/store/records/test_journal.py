from unittest import mock, skipUnless

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from django_perfectqueue import store
from django_perfectqueue.models import Journal, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.records.journal import CHARACTERS, KEPT, ROWS
from django_perfectqueue.store.values import Note

from ...factories import NOON, acquire, after, finish, purge, running, submit_many

keys = {}
"""The keys of the tasks by their ids."""


def note(task_id, attempt=1, **reported):
    return Note(task_id=task_id, key=keys.get(task_id, ""), attempt=attempt, **reported)


class TellTests(TestCase):
    def setUp(self):
        keys.update((Queue()[key].id, key) for key in submit_many(3))
        self.addCleanup(keys.clear)
        self.ids = list(keys)

    def tell(self, *notes, now=NOON):
        store.records.write_journal(notes, using="default", now=now)

    def rows(self):
        columns = ("task_id", "number", "progress", "stage", "lines")
        return list(Journal.objects.values_list(*columns))

    def test_what_many_tell_is_one_statement(self):
        first, second, third = self.ids
        with self.assertNumQueries(1):
            self.tell(
                note(third, progress=0.5, stage="drawing", lines="%s ä\n'\""),
                note(first),
                note(second, attempt=7, progress=1),
            )
        self.assertEqual(
            self.rows(),
            [
                (first, 1, None, "", ""),
                (second, 7, 1.0, "", ""),
                (third, 1, 0.5, "drawing", "%s ä\n'\""),
            ],
        )

    def test_what_is_reported_later_takes_its_place(self):
        first = self.ids[0]
        self.tell(note(first, progress=0.5, stage="drawing", lines="one"))
        self.tell(note(first, stage="done", lines="one\ntwo"), now=after(5))
        self.assertEqual(self.rows(), [(first, 1, None, "done", "one\ntwo")])
        self.assertEqual(Journal.objects.get().updated_at, after(5))

    def test_it_is_not_reported_of_another_task_that_got_the_id(self):
        """A standby that lacks the last commits gives their ids out again."""
        first = self.ids[0]
        Task.objects.filter(id=first).update(key="another")
        self.tell(note(first, lines="not for all eyes"), note(self.ids[1]))
        self.assertEqual([row[0] for row in self.rows()], [self.ids[1]])

    def test_no_statement_is_longer_than_a_server_takes(self):
        lines = "ä" * (CHARACTERS // 2)
        with self.assertNumQueries(2):
            self.tell(*(note(task_id, lines=lines) for task_id in self.ids))
        self.assertEqual([len(row[-1]) for row in self.rows()], [len(lines)] * 3)
        with self.assertNumQueries(2):
            self.tell(*(note(number) for number in range(2 * ROWS)))

    def test_what_is_no_text_is_kept_to_its_end(self):
        self.tell(note(self.ids[0], lines="\x00\ud800\ud800 end"))
        self.assertTrue(self.rows()[0][-1].endswith(" end"))

    def test_of_a_task_that_is_gone_nothing_is_kept(self):
        gone = Task.objects.filter(id=self.ids[0])
        gone._raw_delete(gone.db)
        self.tell(*map(note, self.ids))
        self.assertEqual([row[0] for row in self.rows()], self.ids[1:])

    def test_only_the_last_attempts_of_a_task_are_kept(self):
        """
        One that gives itself back every minute must not fill the table.
        """
        first, second, _third = self.ids
        for attempt in (1, 2, KEPT, KEPT + 1):
            self.tell(note(first, attempt, is_first=True), note(second))
        self.assertEqual(
            [row[:2] for row in self.rows()],
            [(first, 2), (first, KEPT), (first, KEPT + 1), (second, 1)],
        )
        with self.assertNumQueries(1):
            self.tell(note(first, KEPT + 1, progress=0.5))

    def test_it_goes_with_its_task(self):
        self.tell(*map(note, self.ids))
        finish(*acquire(2))
        purge({"finished": 0.0}, now=after(1))
        self.assertEqual([row[0] for row in self.rows()], self.ids[2:])
        Queue().clear()
        self.assertEqual(self.rows(), [])

    def test_it_goes_with_a_task_that_is_replaced(self):
        self.tell(*map(note, self.ids))
        key = Task.objects.get(id=self.ids[0]).key
        Queue().submit(key, "report", on_conflict="replace")
        self.assertEqual([row[0] for row in self.rows()], self.ids[1:])


@skipUnless(connection.vendor == "postgresql", "Only PostgreSQL has commits that wait for no disk.")
class QuickCommitTests(TransactionTestCase):
    def test_it_waits_for_no_disk_unless_it_is_part_of_your_transaction(self):
        task, _held = running(now=None)
        for callers, expected in ((True, "on"), (False, "off")):
            with (
                transaction.atomic(),
                mock.patch(
                    "django_perfectqueue.store.records.journal.is_callers", return_value=callers
                ),
                connection.cursor() as cursor,
            ):
                cursor.execute("SET LOCAL synchronous_commit TO on")
                store.records.write_journal([note(task.id)], using="default")
                cursor.execute("SHOW synchronous_commit")
                self.assertEqual(cursor.fetchone()[0], expected)
