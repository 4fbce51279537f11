"""Tasks that a task runs and joins: stored once, waited for without a worker, never lost."""

from contextlib import contextmanager, suppress
from datetime import timedelta
from unittest import mock

from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.application import handler
from django_perfectqueue.application.base import from_function
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    InvalidTaskError,
    NotFoundError,
    PreemptedError,
    SuspendedError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    WaitInTransactionError,
    WaitTimeoutError,
)
from django_perfectqueue.inspection.family import family
from django_perfectqueue.models import Attempt, DependencyEvent, Step, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.queue.steps import Steps
from django_perfectqueue.store.database.dialects import DIALECTS
from django_perfectqueue.test import drain, eager

from ..admin.staff import AdminTestCase
from ..deaths import run_and_die
from ..management.running import run, run_json
from ..worker.runners import runner_for

SOON = timedelta(hours=1)
DAY = timedelta(days=1)


def take(key="parent", **options):
    Queue().submit(key, "report", **options)
    return again(key)


def again(key="parent", **options):
    task = Queue().poll(**options)
    assert task is not None, "Nothing is due."
    assert task.key == key, task.key
    return task


def end(*keys, result=None):
    """Take these tasks and finish them."""
    for _key in keys:
        task = Queue().poll()
        assert task.key in keys, task.key
        task.finish(task.key if result is None else result)


def status(key="parent"):
    return Queue()[key].metadata().status


def waits(task, *joined, **options):
    """Have a task join others, and be suspended by that."""
    try:
        found = task.join(*joined, **options)
    except SuspendedError:
        return
    raise AssertionError(f"It does not wait: {found}.")


class RunTests(TransactionTestCase):
    """A child is stored once, with what is kept of it."""

    def test_each_attempt_gets_the_same_child(self):
        task = take(user="ann")
        child = task.run("mail", "mail", {"to": "bob"})
        row = child.metadata()
        self.assertEqual(
            (row.type, row.data, row.user, row.queue), ("mail", {"to": "bob"}, "ann", "default")
        )
        task.retry(0)
        end(child.key)
        task = again()
        self.assertEqual(task.run("mail", "mail", {"to": "eve"}), child)
        self.assertEqual(Queue().list().count(), 2)

    def test_it_takes_what_a_submit_takes_and_a_queue(self):
        child = take().run(
            "mail", "mail", key="m1", queue="slow", user="bob", priority=3, tags=["x"]
        )
        self.assertEqual((child.queue, child.key), (Queue("slow"), "m1"))
        row = child.metadata()
        self.assertEqual((row.user, row.priority, child.tags), ("bob", 3, ["x"]))
        other = again("m2") if Queue().submit("m2", "report") else None
        later = other.run("later", "mail", run_at="1h", after=[child.id])
        self.assertEqual(later.metadata().status, "blocked")
        with self.assertRaisesMessage(TypeError, "no 'prio'"):
            other.run("bad", "mail", prio=3)

    def test_a_key_that_is_taken_is_an_error_and_keeps_nothing(self):
        task = take()
        Queue().submit("m1", "mail", run_at="1h")
        with self.assertRaises(AlreadyExistsError):
            task.run("mail", "mail", key="m1")
        self.assertEqual(task.run("mail", "mail", key="m2").key, "m2")
        self.assertEqual(Step.objects.count(), 1)

    def test_an_error_after_its_commit_stores_it_once(self):
        errors, together = [OperationalError("gone")], store.database.together

        @contextmanager
        def lost_after_commit(**terms):
            with together(**terms):
                yield
            if errors:
                raise errors.pop()

        task, dialect = take(), type(DIALECTS[connection.vendor])
        with (
            mock.patch.object(store.database, "together", lost_after_commit),
            mock.patch.object(dialect, "lost", return_value=True),
        ):
            child = task.run("mail", "mail")
        self.assertEqual((Queue().list().count(), Step.objects.count()), (2, 1))
        self.assertEqual(child.metadata().type, "mail")

    def test_who_has_lost_the_lease_stores_none(self):
        frozen = take()
        again(now=timezone.now() + SOON)
        with self.assertRaises(PreemptedError):
            frozen.run("mail", "mail")
        self.assertEqual((Queue().list().count(), Step.objects.count()), (1, 0))

    def test_in_ones_own_transaction_it_is_stored_with_that(self):
        task = take()
        for number in range(2):
            with suppress(KeyError), transaction.atomic():
                task.run("mail", "mail", key="m1")
                if not number:
                    raise KeyError
        self.assertEqual((Queue().list().count(), Step.objects.count()), (2, 1))
        with self.assertRaisesMessage(InvalidTaskError, "has run a step 'mail' already"):
            task.run("mail", "mail")

    def test_with_a_handler_that_is_atomic_or_not_at_all(self):
        def create(task):
            Group.objects.create(name="g")
            task.run("mail", "mail")
            if not task.lease.errors:
                raise ValueError
            return "done"

        handler = runner_for(from_function(create, atomic=True))
        self.addCleanup(handler.wakeup.close)
        self.addCleanup(handler.event_loop.close)
        with self.assertLogs("django_perfectqueue"):
            self.assertEqual(handler.run(take()).word, "retried")
        self.assertEqual((Queue().list().count(), Step.objects.count()), (1, 0))
        Queue()["parent"].retry()
        self.assertEqual(handler.run(again()).word, "finished")
        self.assertEqual((Queue().list().count(), Step.objects.count()), (2, 1))

    async def test_a_coroutine_runs_one(self):
        await Queue().asubmit("parent", "report", user="ann")
        task = await Queue().apoll()
        child = await task.arun("mail", "mail", {"n": 1})
        self.assertEqual((await child.ametadata()).user, "ann")
        with self.assertRaises(SuspendedError):
            await task.ajoin(child)
        self.assertEqual((await Queue()["parent"].ametadata()).status, "blocked")

    def test_it_is_kept_until_its_parent_has_finished(self):
        task = take()
        child = task.run("mail", "mail", key="child")
        end("child")
        self.assertEqual(Queue().purge(0), 0)
        self.assertEqual(task.join(child), ["child"])
        self.assertEqual(Queue().purge(0), 0)
        task.finish()
        self.assertEqual(Queue().purge(0), 2)

    def test_the_family_shows_it(self):
        task = take()
        child = task.run("mail", "mail", key="child")
        found = family(task.lease.task_id, using="default")
        self.assertEqual(
            [(one.key, link.mode, link.state) for one, link in found.parents],
            [("child", "joined", "met")],
        )
        waits(task, child)
        found = family(child.id, using="default")
        self.assertEqual(
            [(one.key, link.mode) for one, link in found.children], [("parent", "joined")]
        )


class DeathTests(TransactionTestCase):
    """The parent's process is killed just before the commit of a child, and just after."""

    def dies(self, where, name):
        """Return how many children are there after a death behind a call."""
        Queue().submit("parent", "report")
        task = Queue().poll()
        run_and_die(lambda: task.run("mail", "mail"), where, name)
        before = Queue().list().count() - 1
        task = self.parent_again()
        handle = task.run("mail", "mail")
        self.assertEqual(Queue().list().count(), 2)
        self.assertTrue(handle.exists())
        return before

    def parent_again(self):
        while (task := Queue().poll(now=timezone.now() + SOON)).key != "parent":
            pass
        return task

    def test_before_the_commit_it_is_stored_by_the_next_attempt(self):
        self.assertEqual(self.dies(store.steps, "keep_step"), 0)

    def test_after_the_commit_it_is_there_and_the_next_attempt_has_it(self):
        self.assertEqual(self.dies(store.database, "with_retries"), 1)


class JoinTests(TransactionTestCase):
    """A join returns the results once all have ended, and holds no worker until then."""

    def children(self, task, *keys):
        return [task.run(key, "mail", key=key) for key in keys]

    def test_all_had_ended_before(self):
        task = take()
        children = self.children(task, "a", "b")
        end("a", "b")
        self.assertEqual(task.join(*children), ["a", "b"])
        self.assertEqual(task.join(*reversed(children)), ["b", "a"])
        self.assertEqual(status(), "running")
        self.assertEqual(task.join(), [])

    def test_they_end_while_it_waits(self):
        task = take(user="ann")
        children = self.children(task, "a", "b")
        waits(task, *children)
        self.assertEqual(status(), "blocked")
        ticket = Ticket.objects.get(task__key="parent")
        self.assertEqual((ticket.holder, ticket.errors, ticket.crashes), (None, 0, 0))
        end("a")
        self.assertEqual(status(), "blocked")
        why = Queue()["parent"].why_waiting()
        self.assertEqual((why.code, why.name, why.parents), ("blocked", "b", 1))
        end("b")
        self.assertEqual(status(), "waiting")
        self.assertFalse(Attempt.objects.exists())
        task = again()
        children = self.children(task, "a", "b")
        self.assertEqual(task.join(*children), ["a", "b"])
        task.retry(0)
        task = again()
        self.assertEqual(task.join(*self.children(task, "a", "b")), ["a", "b"])
        self.assertFalse(DependencyEvent.objects.exists())

    def test_one_ends_after_it_has_looked(self):
        for where, name in ((store.dependencies, "begin_join"), (store, "settle")):
            Queue().clear()
            task = take()
            [child] = self.children(task, "a")
            real, ended = getattr(where, name), []

            def late(*args, real=real, ended=ended, **options):
                if not ended:
                    ended.append(True)
                    end("a")
                return real(*args, **options)

            with self.subTest(name), mock.patch.object(where, name, late):
                waits(task, child)
            self.assertEqual(status(), "waiting")
            self.assertEqual(again().join(child), ["a"])

    def test_a_death_after_the_links_before_the_wait_and_then_other_code(self):
        for second in ("signal", "join"):
            Queue().clear()
            Queue("slow").clear()
            task = take()
            child, other = [task.run(key, "mail", key=key, queue="slow") for key in ("a", "b")]
            died = mock.patch.object(Steps, "look", side_effect=KeyboardInterrupt)
            with died, self.assertRaises(KeyboardInterrupt):
                task.join(child)
            task = again(now=timezone.now() + DAY)
            if second == "signal":
                with self.assertRaises(SuspendedError):
                    task.wait_for("go")
                self.assertEqual(status(), "blocked")
                Queue()["parent"].signal("go", 1)
            else:
                waits(task, other)
                self.assertEqual(status(), "blocked")
                one = Queue("slow").poll()
                (one if one.key == "b" else Queue("slow").poll()).finish("b")
            with self.subTest(second):
                self.assertEqual(status(), "waiting")

    def test_one_that_has_not_finished_raises(self):
        for number, (act, kind, said) in enumerate(
            (
                (
                    lambda task: task.fail("ValueError", "no paper"),
                    TaskFailedError,
                    "Task 'c0' is failed. ValueError: no paper",
                ),
                (lambda task: task.cancel(), TaskCancelledError, "Task 'c1' is cancelled"),
            )
        ):
            task = take(f"p{number}")
            child = task.run("child", "mail", key=f"c{number}")
            good = task.run("good", "mail", key=f"g{number}")
            waits(task, good, child)
            for _count in range(2):
                one = Queue().poll()
                act(one) if one.key == child.key else one.finish(7)
            task = again(f"p{number}")
            for _count in range(2):
                with self.subTest(kind), self.assertRaisesMessage(kind, said):
                    task.join(good, child)
            result, ended = task.join(good, child, errors="return")
            self.assertEqual(
                (result, ended.key, ended.status),
                (7, child.key, kind("", "").status or ended.status),
            )
            with self.assertRaises(kind):
                ended.result()
            task.finish()

    def test_one_that_has_expired_raises(self):
        task = take()
        child = task.run("child", "mail", expires_at="1h")
        waits(task, child)
        drain(now=timezone.now() + 2 * SOON, types=["fail"])
        with self.assertRaises(TaskExpiredError):
            again(now=timezone.now() + 3 * SOON).join(child)

    def test_one_that_was_deleted_raises(self):
        task = take()
        child = task.run("child", "mail", queue="slow")
        waits(task, child)
        Queue("slow").clear()
        task = again()
        with self.assertRaisesMessage(NotFoundError, f"Task '{child.key}' was deleted"):
            task.join(child)
        [ended] = task.join(child, errors="return")
        self.assertEqual(ended.status, "deleted")
        # What was never there, too.
        with self.assertRaises(NotFoundError):
            task.join(Queue()["never"])

    def test_what_was_decided_stays(self):
        task = take()
        [child] = self.children(task, "a")
        waits(task, child)
        Queue().poll().fail("ValueError")
        task = again()
        with self.assertRaises(TaskFailedError):
            task.join(child)
        task.retry(0)
        child.retry()
        for _count in range(2):
            if (one := Queue().poll()).key == "a":
                one.finish("late")
            else:
                task = one
        with self.assertRaises(TaskFailedError):
            task.join(child)

    def test_tasks_of_others_too(self):
        other, slow = (
            Queue().submit("other", "mail", run_at="1h"),
            Queue("slow").submit("x", "mail"),
        )
        task = take()
        waits(task, other, slow)
        Queue("slow").poll().finish(1)
        other.retry()
        end("other", result=2)
        self.assertEqual(again().join(other, slow), [2, 1])
        with self.assertRaisesMessage(InvalidTaskError, "in the database 'elsewhere'"):
            take("p2").join(Queue(using="elsewhere")["a"])

    def test_one_that_was_moved_meanwhile(self):
        task = take()
        [child] = self.children(task, "a")
        waits(task, child)
        child.move("slow")
        Queue("slow").poll().finish("moved")
        task = again()
        self.assertEqual(task.join(*self.children(task, "a")), ["moved"])

    def test_who_would_wait_for_each_other_is_refused(self):
        parent = take()
        [child] = self.children(parent, "child")
        waits(parent, child)
        task = again("child")
        with self.assertRaisesMessage(InvalidTaskError, "would wait for one another"):
            task.join(Queue()["parent"])
        with self.assertRaisesMessage(InvalidTaskError, "would wait for one another"):
            task.join(Queue()["child"])
        task.finish("went on")
        self.assertEqual(again().join(child), ["went on"])

    def test_in_a_transaction_it_is_refused(self):
        task = take()
        [child] = self.children(task, "a")
        with transaction.atomic(), self.assertRaises(WaitInTransactionError):
            task.join(child)

    def test_bad_terms_are_refused(self):
        task = take()
        [child] = self.children(task, "a")
        for options, kind in (
            ({"errors": "ignore"}, ValueError),
            ({"timeout": "soon"}, InvalidTaskError),
        ):
            with self.subTest(options), self.assertRaises(kind):
                task.join(child, **options)
        with self.assertRaises(InvalidTaskError):
            task.join(None)

    def test_the_old_holder_waits_for_nothing_and_keeps_nothing(self):
        frozen = take()
        [child] = self.children(frozen, "a")
        task = DeathTests.parent_again(self)
        with self.assertRaises(PreemptedError):
            frozen.join(child)
        self.assertEqual(status(), "running")
        for one in Queue():
            one.finish("done")
        with self.assertRaises(PreemptedError):
            frozen.join(child)
        self.assertFalse(Step.objects.filter(kind=Step.Kind.JOIN).exists())
        self.assertEqual(task.join(child), ["done"])


class TimeoutTests(TransactionTestCase):
    """What has not ended in time is late, whatever becomes of it later."""

    def setUp(self):
        self.now = timezone.now()
        terms = {"child": "children.part", "timeout": "1h"}
        self.submit = lambda **more: Queue().submit("parent", "children.joins", {**terms, **more})

    def drained(self, hours=0.0, **options):
        return drain(now=self.now + timedelta(hours=hours), raise_errors=False, **options)

    def test_it_raises_a_timeout_and_stays_so(self):
        self.submit()
        self.assertEqual(self.drained().words, ["suspended"])
        self.assertEqual(self.drained(0.9).words, [])
        [run] = self.drained(1.1)
        self.assertEqual(run.word, "retried")
        self.assertIsInstance(run.error, WaitTimeoutError)
        self.assertIsInstance(run.error, TimeoutError)
        self.assertIn("Task 'child' has not ended in the time", str(run.error))
        self.assertEqual(status("child"), "scheduled")
        Queue()["child"].retry()
        runs = {run.key: run for run in self.drained(1.2)}
        self.assertEqual(runs["child"].word, "finished")
        self.assertIsInstance(runs["parent"].error, WaitTimeoutError)

    def test_or_says_so(self):
        self.submit(errors="return")
        self.drained()
        [run] = self.drained(1.1)
        self.assertEqual(run.result, ["late"])

    def test_the_time_runs_from_when_it_was_reached_first(self):
        self.submit(errors="return")
        self.drained()
        Queue()["parent"].cancel_request()
        Queue()["parent"].retry()
        [run] = self.drained(0.5)
        self.assertEqual((run.word, run.wait), ("suspended", 1800.0))
        self.assertEqual(self.drained(1.1).results, [["late"]])

    def test_one_that_ended_before_the_time_was_over_counts(self):
        self.submit()
        self.drained()
        Queue()["child"].retry()
        end("child", result=10)
        self.assertEqual(self.drained(24).results, [[10]])

    def test_after_it_the_task_waits_for_others(self):
        self.submit(errors="return", then="30d")
        self.drained()
        self.assertEqual(self.drained(1.1).words, ["suspended"])
        Queue()["then"].retry()
        runs = self.drained(1.2)
        self.assertEqual([(run.key, run.word) for run in runs][-1], ("parent", "finished"))
        self.assertEqual(status("child"), "scheduled")


class SteerTests(TransactionTestCase):
    """Who cancels one of them leaves the others."""

    def setUp(self):
        self.task = take()
        self.child = self.task.run("child", "mail", key="child")
        waits(self.task, self.child)

    def test_the_children_of_a_parent_that_is_cancelled_go_on(self):
        self.assertTrue(Queue()["parent"].cancel_request())
        self.assertEqual((status(), status("child")), ("cancelled", "waiting"))
        end("child")
        Queue()["parent"].retry()
        self.assertEqual(again().join(self.child), ["child"])

    def test_a_parent_that_is_put_back_joins_them_again(self):
        Queue()["parent"].cancel_request()
        Queue()["parent"].retry()
        for _count in range(2):
            if (one := Queue().poll()).key == "parent":
                waits(one, self.child)
            else:
                child = one
        self.assertEqual(status(), "blocked")
        child.finish("child")
        self.assertEqual(again().join(self.child), ["child"])

    def test_a_child_is_cancelled_alone(self):
        self.assertEqual(self.child.dependents().ids, ())
        self.assertTrue(self.child.cancel_request())
        self.assertEqual(status(), "waiting")
        with self.assertRaises(TaskCancelledError):
            again().join(self.child)

    def test_a_force_finished_child_is_joined(self):
        self.child.force_finish()
        self.assertEqual(again().join(self.child), [None])

    def test_a_copy_has_the_same_children(self):
        end("child")
        task = again()
        task.step("after", lambda: 1)
        task.run("later", "mail", key="later", run_at="1h")
        copy = Queue()["parent"].copy("copy", from_step="after")
        found = family(copy.id, using="default").parents
        self.assertEqual([(one.key, link.state) for one, link in found], [("child", "met")])
        Queue()["parent"].force_finish()
        self.assertEqual(Queue().purge(0), 1)
        task = again("copy")
        self.assertEqual(task.run("child", "mail"), self.child)
        self.assertEqual(task.join(self.child), ["child"])


@handler("children.part")
def part(task):
    if task.data["n"] < 0:
        task.fail("Negative", "as it should")
        return None
    return task.data["n"] * 10


@handler("children.whole", max_attempts=3, retry_wait=0)
def whole(task):
    parts = [task.run(f"part {n}", "children.part", {"n": n}) for n in task.data["parts"]]
    task.step("between", lambda: None)
    found = task.join(*parts, errors="return")
    return [one if isinstance(one, int) else one.error for one in found]


@handler("children.joins", retry_wait=60)
def joins(task):
    terms = {"timeout": task.data["timeout"], "errors": task.data.get("errors", "raise")}
    child = task.run("child", task.data["child"], {"n": 1}, key="child", run_at="30d")
    found = [getattr(one, "status", one) for one in task.join(child, **terms)]
    if later := task.data.get("then"):
        task.join(task.run("then", task.data["child"], {"n": 2}, key="then", run_at=later))
    return found


@handler("children.in-a-loop")
async def whole_in_a_loop(task):
    part = await task.arun("part", "children.part", {"n": 4})
    return await task.ajoin(part)


class ShownTests(AdminTestCase):
    def test_the_pages_and_the_command_show_them(self):
        task = take(user="ann")
        child = task.run("child", "children.part", {"n": 1}, key="child")
        # It waits for its parent: of these two none is to the right.
        task.run("later", "mail", key="later", after=[Queue()["parent"]])
        waits(task, child)
        pages = [
            f"/admin/perfectqueue/task/{Queue()[key].id}/change/" for key in ("parent", "child")
        ]
        for page in pages:
            self.assertContains(self.client.get(page), "has run it, or joins it")
        self.assertContains(self.client.get(pages[0]), "waits for these tasks")
        # Who cancels the child does not cancel its parent.
        self.assertNotContains(self.client.get(pages[1]), "with all that wait for it")
        shown = run("pq_task", "show", "parent")
        self.assertIn("runs or joins", shown)
        self.assertRegex(shown, r"child \(waiting\), later \(blocked\)")
        self.assertIn("followed by", run("pq_task", "show", "child"))
        [facts] = run_json("pq_task", "show", "parent")
        self.assertEqual({one["if_failed"] for one in facts["parents"]}, {"joined"})

    def test_what_children_have_returned_is_not_shown_with_the_join(self):
        task = take()
        child = task.run("child", "mail", key="child")
        end("child", result={"password": "hunter2"})
        self.assertEqual(task.join(child), [{"password": "hunter2"}])
        page = self.client.get(f"/admin/perfectqueue/task/{task.lease.task_id}/change/")
        self.assertContains(page, "has waited for these tasks")
        self.assertNotContains(page, "hunter2")
        for options in ((), ("--json",)):
            self.assertNotIn("hunter2", run("pq_task", "show", "parent", *options))


class HelperTests(TransactionTestCase):
    """In tests children run in place."""

    def test_drain_runs_them(self):
        Queue().submit("parent", "children.whole", {"parts": [1, -1, 2]})
        words = drain().words
        self.assertEqual(words, ["suspended", "finished", "failed", "finished", "finished"])
        self.assertEqual(Queue()["parent"].metadata().result, [10, "Negative", 20])

    def test_a_coroutine_is_drained(self):
        Queue().submit("parent", "children.in-a-loop", {})
        drain()
        self.assertEqual(Queue()["parent"].metadata().result, [40])

    def test_eager_runs_them(self):
        with eager():
            Queue().submit("parent", "children.whole", {"parts": [1, 2]})
        self.assertEqual(Queue()["parent"].metadata().result, [10, 20])
