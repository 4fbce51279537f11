"""A task is followed from change to change, and watched by people in the admin."""

import threading
import time
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TransactionTestCase

from django_perfectqueue.exceptions import (
    NotFoundError,
    WaitInTransactionError,
    WaitTimeoutError,
)
from django_perfectqueue.inspection.results import Snapshot
from django_perfectqueue.models import Watch
from django_perfectqueue.queue import Queue

from ..admin.staff import LIST, VIEW, AdminTestCase, staff

HOUR = timedelta(hours=1)


def submit(key="k1", **options):
    return Queue().submit(key, "report", **options)


class WatchTests(TransactionTestCase):
    def test_each_change_is_seen_until_the_end(self):
        changes = submit().watch(timeout=30)
        self.assertEqual(next(changes), Snapshot(status="waiting", attempt=0))
        task = Queue().poll()
        self.assertEqual(next(changes), Snapshot(status="running", attempt=1))
        task.progress(0.5, "halfway")
        self.assertEqual(
            next(changes), Snapshot(status="running", attempt=1, progress=0.5, stage="halfway")
        )
        task.retry(HOUR)
        self.assertEqual(next(changes).status, "retrying")
        Queue()["k1"].retry()
        self.assertEqual(next(changes).status, "waiting")
        task = Queue().poll()
        self.assertEqual(next(changes), Snapshot(status="running", attempt=2))
        task.finish()
        self.assertEqual(next(changes), Snapshot(status="finished", attempt=2))
        self.assertEqual(list(changes), [])

    def test_one_that_has_ended_is_seen_once(self):
        for verb in ("finish", "fail", "cancel"):
            handle = submit(verb)
            getattr(Queue().poll(), verb)()
            [seen] = handle.watch()
            self.assertTrue(seen.has_ended)

    def test_who_watches_hears_the_end_from_another_process(self):
        handle = submit()
        task = Queue().poll()
        began = threading.Event()

        def finish():
            began.wait(10)
            task.finish("done")
            connection.close()

        thread = threading.Thread(target=finish)
        thread.start()
        words = []
        for seen in handle.watch(timeout=30):
            words.append(seen.status)
            began.set()
        thread.join()
        self.assertEqual(words, ["running", "finished"])

    def test_a_task_in_its_place_is_watched_on_and_a_deleted_one_is_not(self):
        changes = submit(run_at=HOUR).watch(timeout=30)
        self.assertEqual(next(changes).status, "scheduled")
        submit(on_conflict="replace")
        self.assertEqual(next(changes).status, "waiting")
        Queue().clear()
        with self.assertRaises(NotFoundError):
            next(changes)
        with self.assertRaises(NotFoundError):
            next(submit("other").queue["nope"].watch())

    def test_it_ends_after_its_time(self):
        changes = submit().watch(timeout=0.1)
        began = time.monotonic()
        self.assertEqual(next(changes).status, "waiting")
        with self.assertRaises(WaitTimeoutError):
            next(changes)
        self.assertGreaterEqual(time.monotonic() - began, 0.1)
        with self.assertRaises(ValueError):
            submit("k2").watch(timeout="soon")

    async def test_a_coroutine_watches_too(self):
        await Queue().asubmit("k1", "report")
        words = []
        async for seen in Queue()["k1"].watch_async(timeout=30):
            words.append((seen.status, seen.progress))
            if seen.status == "waiting":
                task = await Queue().apoll()
            elif seen.progress is None and seen.status == "running":
                await sync_to_async(task.progress)(0.25)
            elif seen.status == "running":
                await task.afinish()
        expected = [("waiting", None), ("running", None), ("running", 0.25), ("finished", None)]
        self.assertEqual(words, expected)

    def test_in_a_transaction_nothing_can_change(self):
        handle = submit()
        with transaction.atomic():
            changes = handle.watch()
            next(changes)
            with self.assertRaises(WaitInTransactionError):
                next(changes)


class ListTests(AdminTestCase):
    def watch(self, task, **data):
        return self.client.post(f"{LIST}{task.id}/watch/", {"back": LIST, **data})

    def test_each_person_has_a_list(self):
        first, second = submit("a"), submit("b")
        submit("c")
        self.assertContains(self.story(first), '<button type="submit" class="button">Watch')
        for _twice in range(2):
            self.assertRedirects(self.watch(first), LIST)
        self.watch(second)
        self.assertContains(self.story(first), "Stop watching")
        self.assertEqual(self.keys(watched="me"), ["b", "a"])
        self.assertEqual(self.keys(watched="me", queue="default", status="waiting"), ["b", "a"])

        self.client.force_login(staff(*VIEW))
        self.assertEqual(self.keys(watched="me"), [])
        self.watch(second)
        self.assertEqual(self.keys(watched="me"), ["b"])
        self.client.force_login(self.boss)
        for _twice in range(2):
            self.watch(second, stop="")
        self.assertEqual(self.keys(watched="me"), ["a"])
        self.assertEqual(Watch.objects.count(), 2)

    def test_only_who_may_see_tasks_may_watch_them_and_only_by_a_button(self):
        task = submit("a")
        url = f"{LIST}{task.id}/watch/"
        self.assertEqual(self.client.get(url).status_code, 405)
        self.assertEqual(self.client.post(f"{LIST}{task.id + 1}/watch/").status_code, 404)
        away = self.client.post(url, {"back": "https://example.com/"})
        self.assertRedirects(away, LIST)
        self.client.force_login(staff(name="nobody"))
        self.assertEqual(self.client.post(url).status_code, 403)
        self.client.logout()
        self.assertEqual(self.client.post(url).status_code, 302)
        self.assertEqual(Watch.objects.count(), 1)

    def test_it_goes_with_the_task(self):
        task = submit("a")
        self.watch(task)
        Queue().poll().finish()
        self.assertEqual(self.keys(watched="me"), ["a"])
        Queue().purge(0)
        self.assertEqual(Watch.objects.count(), 0)
