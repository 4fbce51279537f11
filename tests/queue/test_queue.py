import math
from datetime import timedelta
from unittest import mock
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import connection
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyFinishedError,
    CancelRequestedError,
    ConfigError,
    InvalidTaskError,
    NotFoundError,
    PayloadError,
    PreemptedError,
)
from django_perfectqueue.models import Account, DeadLetter, Status, Task, TaskQuerySet, Ticket
from django_perfectqueue.payload import JSONCodec
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.upkeep import deletion

from ..factories import MINUTE, NOON, after, at, submit


class QueueTests(TestCase):
    """The ancestor's own acceptance tests, in this project's words."""

    def test_polling_is_first_in_first_out_and_then_none(self):
        for second, key in enumerate(("task01", "task02", "task03")):
            submit(key, now=after(second))
        queue = Queue()

        self.assertEqual(
            [queue.poll(now=after(10)).key for _number in range(3)],
            ["task01", "task02", "task03"],
        )
        self.assertIsNone(queue.poll(now=after(10)))

    def test_a_text_that_no_database_stores_is_refused_where_it_is_looked_up(self):
        for text in ("a\ud800", "a\x00"):
            for look_up in (Queue().__getitem__, Queue().batch_named):
                with self.assertRaises(InvalidTaskError):
                    look_up(text)

    def test_a_task_without_a_key_is_given_one(self):
        one, other = Queue().submit(None, "t", "one"), Queue().submit(key=None, type="t")
        self.assertEqual(Queue().submit_many([{"type": "t"}, {"key": None, "type": "t"}]), 2)
        self.assertEqual(
            len({str(UUID(key)) for key in Task.objects.values_list("key", flat=True)}), 4
        )
        self.assertEqual(one.metadata().data, "one")
        self.assertNotEqual(one.key, other.key)
        links = Queue().chain([{"type": "t"}, {"type": "t"}])
        self.assertEqual([task.metadata().status for task in links], ["waiting", "blocked"])
        with Queue().batch("nightly") as batch:
            batch.submit(None, "t")
            last = batch.then(None, "t")
        self.assertEqual(last.metadata().status, "blocked")

    def test_a_user_is_the_text_of_whatever_is_given(self):
        self.assertEqual(Queue().submit("k1", "t", user=7).metadata().user, "7")
        with self.assertRaisesMessage(
            InvalidTaskError, "The user must be a text of 1 to 255 characters"
        ):
            Queue().submit("k2", "t", user=["x" * 255])

    def test_unix_seconds_are_no_wait(self):
        for name in ("run_at", "expected_at", "expires_at"):
            for given in (1.9e9, 1_900_000_000, math.inf):
                with self.subTest(name, given=given):
                    says = f"{name} must be a datetime \\(as text ISO 8601\\), .* 1e9 seconds or"
                    with self.assertRaisesRegex(InvalidTaskError, says):
                        Queue().submit("k1", "t", **{name: given})
        Queue().submit("k1", "t", run_at=9e8)

    def test_an_option_that_there_is_not_is_refused_with_the_nearest(self):
        with self.assertRaisesMessage(TypeError, "has no 'usr'. Did you mean 'user'?"):
            Queue().submit("k1", "t", usr="ann")
        with self.assertRaisesMessage(TypeError, "Did you mean 'run_at'?"):
            Queue().submit_many([{"type": "t", "run_in": 5}])

    def test_a_lease_of_ten_seconds_ends_after_ten_seconds(self):
        submit()
        queue = Queue()
        queue.poll(alive_time=10, now=NOON)

        self.assertIsNone(queue.poll(now=after(5)))
        self.assertIsNotNone(queue.poll(now=after(10)))

    def test_a_lease_has_an_end_on_the_calendar(self):
        submit()
        for alive_time in (1e12, 1e18, math.nan, math.inf, -5):
            with self.subTest(alive_time=alive_time), self.assertRaises(InvalidTaskError):
                Queue().poll(alive_time=alive_time, now=NOON)

    def test_a_heartbeat_extends_it(self):
        submit()
        queue = Queue()
        task = queue.poll(alive_time=10, now=NOON)
        at(task, after(5)).heartbeat()

        self.assertIsNone(queue.poll(now=after(14)))
        self.assertIsNotNone(queue.poll(now=after(15)))

    def test_a_retry_waits_as_long_as_it_was_asked(self):
        submit()
        queue = Queue()
        at(queue.poll(now=NOON), NOON).retry(15)

        self.assertIsNone(queue.poll(now=after(10)))
        self.assertEqual(queue.poll(now=after(20)).attempt, 2)

    def test_a_released_task_is_delivered_again(self):
        submit()
        queue = Queue()
        at(queue.poll(now=NOON), NOON).release()

        self.assertIsNotNone(queue.poll(now=after(1)))

    def test_a_release_with_no_delay_is_no_loop_over_the_database(self):
        for delay in (0, 0.01, timedelta(0)):
            with self.subTest(delay=delay):
                task = submit()
                at(Queue().poll(now=NOON), NOON).release(delay)

                self.assertIsNone(Queue().poll(now=after(0.9)))
                self.assertEqual(Queue().poll(now=after(1)).key, task.key)

    def test_update_data_merges_survives_a_release_and_keeps_the_type(self):
        submit(type="user_task", data={"a": 1, "b": 1})
        queue = Queue()
        task = queue.poll(now=NOON)
        at(task, NOON).update_data({"b": 2, "c": 3})
        self.assertEqual(task.data, {"a": 1, "b": 2, "c": 3})
        at(task, NOON).release()

        again = queue.poll(now=after(1))
        self.assertEqual((again.type, again.data), ("user_task", {"a": 1, "b": 2, "c": 3}))

    def test_what_a_task_returned_can_be_read(self):
        task = submit()
        Queue().poll(now=after(1)).finish({"rows": 3})

        self.assertEqual(task.metadata().result, {"rows": 3})

    def test_a_settled_task_says_so(self):
        queue = Queue()
        for verb, word in (
            ("finish", "finished"),
            ("retry", "retried"),
            ("release", "released"),
            ("fail", "failed"),
            ("cancel", "cancelled"),
            ("discard", "discarded"),
        ):
            submit(verb)
            task = queue.poll(now=NOON)
            getattr(task, verb)()
            self.assertEqual(task.settled, word)
            queue.clear()

    def test_a_holder_who_was_preempted_is_notified(self):
        task = submit()
        held = Queue().poll(now=NOON)
        task.force_finish(now=after(1))

        reported = "no longer held by this attempt: finished at 2030-01-01 12:00:01 UTC, by force."
        for verb in ("heartbeat", "finish", "retry", "release", "fail", "cancel", "discard"):
            with self.subTest(verb), self.assertRaisesMessage(PreemptedError, reported):
                getattr(held, verb)()
        with self.assertRaisesMessage(PreemptedError, reported):
            held.update_data({})
        self.assertEqual(held.settled, "")

    def test_a_refusal_says_where_the_task_stands(self):
        def cancel(task):
            at(Queue().poll(now=after(400)), after(400)).cancel()

        for does, reported in (
            (lambda task: Queue().poll(now=after(400)), "another attempt has it."),
            (lambda task: Queue().poll(now=after(400)).release(), "it is in line for another"),
            (lambda task: at(Queue().poll(now=after(400)), after(400)).finish(), "finished at"),
            (cancel, "cancelled at 2030-01-01 12:06:40 UTC."),
            (lambda task: Queue().clear(), "it was deleted."),
        ):
            task = submit()
            held = Queue().poll(now=NOON)
            does(task)
            for verb in ("heartbeat", "finish", "retry", "release"):
                with (
                    self.subTest(reported, verb=verb),
                    self.assertRaisesMessage(PreemptedError, reported),
                ):
                    getattr(held, verb)()
            Queue().clear()

    def test_a_second_end_by_its_holder_is_refused_as_one(self):
        """What it asks for would be dropped, its result above all."""
        for first, error, reported in (
            ("finish", AlreadyFinishedError, "has ended: you finished it."),
            ("fail", AlreadyFinishedError, "has ended: you failed it."),
            ("cancel", AlreadyFinishedError, "has ended: it was cancelled."),
            ("release", PreemptedError, "is no longer held: you released it."),
            ("retry", PreemptedError, "is no longer held: you retried it."),
        ):
            submit("k1")
            held = Queue().poll(now=NOON)
            getattr(held, first)()
            before = held.queue["k1"].metadata()
            for second in ("finish", "retry", "release", "fail", "cancel", "discard"):
                with self.subTest(first, second=second), self.assertRaisesMessage(error, reported):
                    getattr(held, second)()
            with self.assertRaisesMessage(error, reported):
                held.update_data({"late": True})
            after_it = held.queue["k1"].metadata()
            self.assertEqual((after_it.status, after_it.data), (before.status, before.data))
            Queue().clear()

    def test_a_holder_who_is_to_stop_is_notified(self):
        task = submit()
        held = Queue().poll(now=NOON)
        self.assertFalse(task.cancel_request())

        with self.assertRaises(CancelRequestedError):
            at(held, after(1)).heartbeat()

    def test_a_broken_payload_is_no_empty_one(self):
        submit("k1")
        Task.objects.update(payload="{broken")
        held = Queue().poll(now=NOON)

        with self.assertRaises(PayloadError):
            _data = held.data
        with self.assertRaises(PayloadError):
            _data = Task.objects.get().data

    def test_long_data_can_be_stored_compressed(self):
        data, queue = {"rows": ["ü"] * 1000}, Queue()
        with override_settings(PERFECTQUEUE={"CODECS": [JSONCodec(compress_above=100)]}):
            submit("long", data=data)
            submit("short", data={"a": 1}, now=after(1))
        held = queue.poll(now=after(2))

        stored = dict(Task.objects.values_list("key", "payload"))
        self.assertTrue(stored["long"].startswith("gzip:"))
        self.assertLess(len(stored["long"]), 200)
        self.assertEqual(stored["short"], '{"a":1}')
        self.assertEqual((held.data, queue["long"].metadata().data), (data, data))
        with override_settings(PERFECTQUEUE={"CODECS": [JSONCodec(compress_above=100)]}):
            held.finish(data)
        self.assertEqual(queue["long"].metadata().result, data)

    def test_compressed_data_that_is_broken_is_reported(self):
        submit("k1")
        for broken in ("gzip:", "gzip:!", "gzip:AAAA", "gzip:H4sIAAAAAAAC/w=="):
            Task.objects.update(payload=broken)
            with self.subTest(broken), self.assertRaises(PayloadError):
                _data = Task.objects.get().data

    def test_a_call_that_settles_it_can_be_seen(self):
        for name in ("finish", "retry", "release", "fail", "cancel"):
            submit(name)
            held, seen = Queue().poll(now=after(1)), []

            def note(*given, name=name, held=held, seen=seen, **more):
                seen.append(held.is_settling)
                return [] if name == "finish" else {held.lease: "settled"}

            verb = "finish" if name == "finish" else "settle"
            with self.subTest(name), mock.patch.object(store, verb, note):
                getattr(held, name)()
                self.assertEqual((seen, held.is_settling), ([True], False))

    def test_its_length_is_what_has_yet_to_end(self):
        for key in ("a", "b", "c"):
            submit(key)
        queue = Queue()
        queue.poll(now=NOON).finish()
        submit("d", queue="other")

        self.assertEqual(len(queue), 2)
        self.assertTrue(Queue("empty"))

    def test_iterating_takes_what_is_due(self):
        Queue().submit_many({"key": f"k{n}", "type": "report"} for n in range(5))
        taken = []
        for task in Queue():
            taken.append(task.key)
            task.finish()

        self.assertEqual(taken, [f"k{n}" for n in range(5)])

    def test_a_name_may_stand_for_no_task(self):
        task = Queue()["nobody"]

        self.assertFalse(task.exists())
        for read in (task.metadata, task.cancel_request, task.force_finish, task.retry):
            with self.assertRaisesMessage(NotFoundError, "nobody"):
                read()

    def test_a_finished_task_exists_as_long_as_it_is_retained(self):
        task = submit()
        Queue().poll(now=NOON).finish()

        self.assertTrue(task.exists())

    def test_a_queue_is_named_by_the_settings_unless_it_is_named(self):
        with override_settings(PERFECTQUEUE={"DEFAULT_QUEUE": "mail"}):
            self.assertEqual(Queue().name, "mail")
        with self.assertRaises(InvalidTaskError):
            Queue("q" * 101)

    def test_the_list_has_every_status_and_can_be_narrowed(self):
        submit("later", run_at=timezone.now() + timedelta(days=1), now=None)
        submit("now", now=None)
        rows = dict(Queue().list().values_list("key", "status"))

        self.assertEqual(rows, {"later": "scheduled", "now": "waiting"})
        self.assertEqual(Task.objects.filter(status="scheduled").get().key, "later")
        self.assertEqual(Task.objects.in_status("waiting").get().key, "now")

    def test_five_situations_of_a_live_task_are_distinguished(self):
        queue = Queue()
        submit("retrying")
        at(queue.poll(now=NOON), NOON).retry(3600)
        submit("stalled")
        queue.poll(alive_time=1, now=NOON)
        submit("running")
        queue.poll(alive_time=3600, now=NOON)
        submit("scheduled", run_at=3600)
        submit("waiting")

        rows = queue.list().with_status(NOON + MINUTE).values_list("key", "status")
        for key, status in rows:
            self.assertEqual(key, status)
        self.assertEqual(len(rows), 5)

    def test_rows_are_not_deleted_past_the_store(self):
        """What belongs to them would be left behind."""
        task, failed = submit(), submit("failed")
        failed.cancel_request()
        for delete in (
            task.queue.list().delete,
            task.metadata().delete,
            task.metadata().ticket.delete,
            Ticket.objects.all().delete,
            failed.metadata().dead_letter.delete,
            DeadLetter.objects.all().delete,
        ):
            with self.subTest(delete), self.assertRaisesMessage(TypeError, "pq_queue purge"):
                delete()
        self.assertTrue(task.exists())
        self.assertEqual(failed.metadata().status, "cancelled")


class CountTests(TestCase):
    """Live tasks of a queue are counted by their tickets, whatever has become of their lanes."""

    def setUp(self):
        for number in range(3):
            for queue in ("default", "other"):
                submit(f"now-{number}", queue=queue, user=f"u{number % 2}")
                submit(f"later-{number}", queue=queue, run_at=after(60))
        self.queue = Queue()
        self.running = self.queue.poll(alive_time=10, now=NOON)
        # As after a commit, before the hook that makes lanes.
        Account.objects.filter(user="u1").delete()

    def expected(self, status, now):
        tasks = TaskQuerySet(Task).filter(queue="default").with_status(now)
        return sum(task.status == status for task in tasks)

    def test_each_status_is_counted_right(self):
        at(self.queue.acquire(1, now=NOON)[0], NOON).retry(wait=30)
        self.queue["now-2"].cancel_request(now=NOON)
        for now in (NOON, after(20), after(100)):
            for status in Status.values:
                with self.subTest(status, now=now):
                    found = self.queue.list().in_status(status, now)
                    self.assertEqual(found.count(), self.expected(status, now))
                    self.assertEqual(found.count(), len(found))
        self.assertEqual(len(self.queue), 5)

    def test_no_wide_row_is_joined(self):
        for count in (self.queue.list().in_status("waiting").count, self.queue.__len__):
            with CaptureQueriesContext(connection) as captured:
                count()
            [query] = captured.captured_queries
            self.assertRegex(query["sql"], r"^\s*SELECT COALESCE\(SUM\(number\), 0\) FROM \(")

    def test_a_query_made_from_it_counts_its_own_tasks(self):
        waiting = self.queue.list().in_status("waiting", NOON)
        one = min({"now-0", "now-1", "now-2"} - {self.running.key})
        self.assertEqual(waiting.count(), 2)
        self.assertEqual(waiting.filter(key=one).count(), 1)
        self.assertEqual(waiting.exclude(key=one).count(), 1)
        self.assertEqual(waiting[:1].count(), 1)
        self.assertEqual(waiting.none().count(), 0)
        self.assertEqual(self.queue.list().filter(key=one).in_status("waiting", NOON).count(), 1)

    def test_clear_takes_all_batches(self):
        with mock.patch.object(deletion, "BATCH", 2):
            self.assertEqual(self.queue.clear(), 6)
        self.assertEqual((len(self.queue), len(Queue("other"))), (0, 6))


class PurgeTests(TestCase):
    def test_what_has_ended_long_enough_ago_goes(self):
        queue = Queue()
        for key in ("old", "young"):
            submit(key)
        at(queue.poll(now=NOON), NOON).finish()
        at(queue.poll(now=NOON), NOON + MINUTE).finish()
        submit("waits")
        submit("other", queue="reports").cancel_request(now=NOON)

        self.assertEqual(queue.purge("30s", now=NOON + MINUTE), 1)
        self.assertFalse(queue["old"].exists())
        self.assertEqual(queue.purge(now=NOON + MINUTE), 0)
        self.assertEqual(async_to_sync(queue.apurge)(0, now=NOON + MINUTE), 1)
        self.assertTrue(queue["waits"].exists())
        self.assertTrue(Queue("reports")["other"].exists())

    def test_failed_tasks_go_by_what_ended_them(self):
        queue = Queue()
        for key, error, user in (("a", "Down", "ann"), ("b", "Down", "bob"), ("c", "Up", "ann")):
            submit(key, user=user)
            at(queue.poll(now=NOON), NOON).fail(error)
        later = {"status": "failed", "now": NOON + MINUTE}

        self.assertEqual(queue.purge(0, now=NOON + MINUTE), 0)
        self.assertEqual(queue.purge(0, group="Nothing", **later), 0)
        self.assertEqual(queue.purge(0, group="Down", user="ann", **later), 1)
        self.assertEqual(sorted(row.key for row in queue.list()), ["b", "c"])

    def test_what_would_keep_everything_is_refused(self):
        with self.assertRaisesMessage(ConfigError, "for ever"):
            Queue().purge(status="failed")
        for wrong in ({"status": "nosuch"}, {"older_than": "yesterday"}):
            with self.subTest(wrong), self.assertRaises(ValueError):
                Queue().purge(**wrong)


class AsyncTests(TestCase):
    def test_every_method_has_its_twin(self):
        async def story():
            queue = Queue()
            task = await queue.asubmit("k1", "report", {"a": 1})
            self.assertTrue(await task.aexists())
            await queue.asubmit_many([{"key": "k2", "type": "report"}])
            self.assertEqual(await queue.alen(), 2)
            held = await queue.apoll()
            await held.aheartbeat()
            await held.aupdate_data({"b": 2})
            await held.afinish({"ok": True})
            self.assertEqual((await task.ametadata()).result, {"ok": True})
            [other] = await queue.aacquire(5)
            await other.aretry(0)
            async for again in queue:
                await again.afail("boom")
            await queue["k2"].aretry()
            self.assertTrue(await queue["k2"].acancel_request())
            await queue["k2"].aretry()
            await (await queue.apoll()).arelease()
            await queue["k2"].aforce_finish()
            self.assertEqual(await queue.aclear(), 2)

        async_to_sync(story)()
