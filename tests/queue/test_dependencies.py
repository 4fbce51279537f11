"""Tasks that wait for other tasks, through the door that programs use."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from threading import Barrier

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    TaskFailedError,
)
from django_perfectqueue.models import DeadLetter, Dependency, DependencyEvent, Task, Ticket
from django_perfectqueue.queue import Queue

from ..factories import elsewhere


def submit(key, *after, **options):
    return Queue().submit(key, "report", {}, after=after, **options)


def status(key, queue="default"):
    return Queue(queue)[key].metadata().status


def statuses(*keys):
    return [status(key) for key in keys]


def take(key):
    """Take the next task, which is to have this key."""
    task = Queue().poll()
    assert task is not None, f"Nothing is due, not even '{key}'."
    assert task.key == key, f"'{task.key}' is due before '{key}'."
    return task


def finish(key, result=None):
    take(key).finish(result)


def replace_alone(key):
    try:
        submit(key, on_conflict="replace")
    finally:
        connection.close()


class Cases(TransactionTestCase):
    def tearDown(self):
        self.assertEqual(list(DependencyEvent.objects.all()), [])


class SubmitTests(Cases):
    def test_a_task_runs_once_those_that_it_waits_for_have_finished(self):
        submit("a"), submit("b"), submit("c", "a", "b")

        self.assertEqual(statuses("a", "b", "c"), ["waiting", "waiting", "blocked"])
        finish("a")
        self.assertEqual(status("c"), "blocked")
        finish("b")
        self.assertEqual(status("c"), "waiting")
        finish("c")
        self.assertIsNone(Queue().poll())

    def test_a_parent_that_has_finished_already_holds_up_nothing(self):
        submit("a")
        finish("a")
        submit("b", "a")

        finish("b")

    def test_parents_are_keys_tasks_rows_and_ids_of_any_queue(self):
        other = Queue("other").submit("a", "report")
        submit("b"), submit("c"), submit("d")
        submit("e", other, "b", Queue()["c"].metadata(), Queue()["d"].id)

        self.assertEqual(Dependency.objects.count(), 4)
        for key in "bcd":
            finish(key)
        self.assertEqual(status("e"), "blocked")
        Queue("other").poll().finish()
        finish("e")

    def test_a_parent_that_was_acquired_is_named_by_what_acquired_it(self):
        submit("a")
        task = take("a")
        submit("b", task)

        task.finish()
        finish("b")

    def test_an_unknown_parent_is_refused_and_nothing_is_stored(self):
        for wrong, words in (
            ("nope", "no task with the key 'nope'"),
            (77, "with the id 77"),
            (0, "with the id 0"),
            (-(2**63), f"with the id {-(2**63)}"),
        ):
            with self.assertRaisesMessage(NotFoundError, words):
                submit("b", wrong)

        self.assertFalse(Queue()["b"].exists())

    def test_what_is_no_task_is_refused(self):
        for wrong in (1.5, None, True, {}, b"a", ""):
            with self.subTest(wrong), self.assertRaises(InvalidTaskError):
                submit("b", wrong)
        with self.assertRaises(InvalidTaskError):
            Queue().submit("b", "report", after="a")
        with self.assertRaisesMessage(InvalidTaskError, "one of 'wait', 'cancel', 'run'"):
            submit("b", if_failed="stop")

    def test_a_child_that_is_due_later_waits_for_both(self):
        submit("a")
        submit("b", "a", run_at=timedelta(hours=1))

        self.assertEqual(status("b"), "blocked")
        finish("a")
        self.assertEqual(status("b"), "scheduled")
        later = timezone.now() + timedelta(hours=2)
        self.assertEqual(Queue().poll(now=later).key, "b")

    def test_a_transaction_that_is_rolled_back_leaves_nothing(self):
        submit("a")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            submit("b", "a")
            raise ZeroDivisionError

        self.assertEqual(Dependency.objects.count(), 0)
        finish("a")
        self.assertIsNone(Queue().poll())

    def test_its_parent_may_be_one_whose_key_is_taken(self):
        submit("a")
        given = [{"key": "a", "type": "step"}, {"key": "b", "type": "step", "after": ["a"]}]
        self.assertEqual(Queue().submit_many(given, on_conflict="ignore"), 1)
        self.assertEqual(Queue()["b"].metadata().status, "blocked")
        Queue().poll().finish()
        self.assertEqual(Queue().poll().key, "b")
        given[1]["key"] = "c"
        self.assertEqual(Queue().submit_many(given, on_conflict="ignore"), 1)
        self.assertEqual(Queue().poll().key, "c")

    def test_the_same_key_again_is_refused_and_adds_no_dependency(self):
        submit("a"), submit("b")
        submit("c", "a")
        with self.assertRaises(AlreadyExistsError):
            submit("c", "b")
        submit("c", "b", on_conflict="ignore")

        self.assertEqual(Dependency.objects.count(), 1)


class ManyTests(Cases):
    def test_several_of_which_one_is_taken_add_no_dependency(self):
        submit("parent")
        given = [{"key": key, "type": "report", "after": ["parent"]} for key in ("new", "taken")]
        submit("taken")

        with self.assertRaisesMessage(AlreadyExistsError, "'taken'"):
            Queue().submit_many(given)
        self.assertFalse(Dependency.objects.exists())
        self.assertEqual(Task.objects.count(), Ticket.objects.count())

    def test_a_graph_in_one_call_runs_in_its_order(self):
        tasks = [
            {"key": "a", "type": "report"},
            {"key": "b", "type": "report", "after": ["a"]},
            {"key": "c", "type": "report", "after": ["a"]},
            {"key": "d", "type": "report", "after": ["b", "c"]},
        ]
        self.assertEqual(Queue().submit_many(tasks), 4)

        finish("a")
        self.assertEqual(statuses("b", "c", "d"), ["waiting", "waiting", "blocked"])
        finish("b"), finish("c"), finish("d")

    def test_a_parent_comes_before_its_children(self):
        tasks = [
            {"key": "b", "type": "report", "after": ["a"]},
            {"key": "a", "type": "report"},
        ]
        with self.assertRaisesMessage(InvalidTaskError, "give parents first"):
            Queue().submit_many(tasks)
        self.assertEqual(len(Queue()), 0)

    def test_a_circle_is_refused_in_clear_words(self):
        tasks = [
            {"key": "a", "type": "report", "after": ["c"]},
            {"key": "b", "type": "report", "after": ["a"]},
            {"key": "c", "type": "report", "after": ["b"]},
        ]
        with self.assertRaisesMessage(InvalidTaskError, "'c' is given after a task that waits"):
            Queue().submit_many(tasks)
        with self.assertRaisesMessage(InvalidTaskError, "can't wait for one another"):
            Queue().submit_many([{"key": "x", "type": "report", "after": ["x"]}])

    def test_a_chain_runs_one_after_the_other(self):
        submit("first")
        given = [{"key": key, "type": "report"} for key in "abc"]
        given[0]["after"] = ["first"]
        handles = Queue().chain(given)

        self.assertEqual([handle.key for handle in handles], ["a", "b", "c"])
        for key in ("first", "a", "b", "c"):
            finish(key)

    def test_the_letters_of_a_key_are_not_what_a_chain_waits_for(self):
        submit("a")
        for after in ("a", None):
            with self.assertRaisesRegex(InvalidTaskError, "must be a list"):
                Queue().chain([{"key": "b", "type": "report", "after": after}])

    def test_a_chain_is_stored_as_a_whole_or_not_at_all(self):
        submit("1500")
        with self.assertRaises(AlreadyExistsError):
            Queue().chain({"key": str(number), "type": "report"} for number in range(1501))

        self.assertEqual(len(Queue()), 1)

    def test_more_children_than_are_read_at_once_are_all_released(self):
        submit("a")
        Queue().submit_many(
            {"key": f"b{number}", "type": "report", "after": ["a"]} for number in range(2_300)
        )
        finish("a")

        self.assertEqual(Queue().list().in_status("waiting").count(), 2_300)

    def test_more_parents_than_are_read_at_once_are_all_waited_for(self):
        keys = [f"a{number}" for number in range(2_300)]
        Queue().submit_many({"key": key, "type": "report"} for key in keys)
        submit("b", *keys)
        left = len(keys)
        while left:
            self.assertEqual(status("b"), "blocked")
            leases = [task.lease for task in Queue().acquire(500)]
            store.finish([store.Completion(one, None, 0, 0) for one in leases], using="default")
            left -= len(leases)

        finish("b")


class EndTests(Cases):
    """Whatever ends a parent releases or stops what waits for it, once."""

    def fail_parent(self, if_failed):
        submit("a")
        submit("b", "a", if_failed=if_failed)
        take("a").fail("ValueError", "no such file")

    def test_by_default_a_failed_parent_blocks_and_a_retry_goes_on(self):
        self.fail_parent("wait")

        self.assertEqual(status("b"), "blocked")
        Queue()["a"].retry()
        finish("a")
        finish("b")

    def test_a_parent_that_fails_again_blocks_again(self):
        self.fail_parent("wait")
        for _time in range(2):
            Queue()["a"].retry()
            take("a").fail()
            self.assertEqual(status("b"), "blocked")
        Queue()["a"].retry()
        finish("a")
        finish("b")

    def test_a_failed_parent_cancels_all_that_wait_for_it_if_they_say_so(self):
        submit("a")
        submit("b", "a", if_failed="cancel")
        submit("c", "b", if_failed="cancel")
        submit("d", "c", if_failed="run")
        take("a").fail()

        self.assertEqual(statuses("b", "c", "d"), ["cancelled", "cancelled", "waiting"])
        letter = Queue()["b"].metadata().dead_letter
        self.assertEqual(letter.group, "dependency")
        self.assertEqual(
            letter.message, f"Task #{Queue()['a'].id}, for which it waited, is failed."
        )

    def test_a_chain_of_any_length_is_cancelled(self):
        Queue().chain(
            ({"key": str(number), "type": "report"} for number in range(1_200)), if_failed="cancel"
        )
        take("0").fail()

        self.assertEqual(Queue().list().in_status("cancelled").count(), 1_199)

    def test_a_cancelled_child_that_is_put_back_waits_for_its_parent(self):
        self.fail_parent("cancel")
        Queue()["b"].retry()
        self.assertEqual(status("b"), "blocked")
        Queue()["a"].retry()
        take("a").fail()
        self.assertEqual(status("b"), "cancelled")

        Queue()["b"].retry()
        Queue()["a"].retry()
        finish("a")
        finish("b")

    def test_a_child_may_run_though_its_parent_failed(self):
        self.fail_parent("run")

        finish("b")

    def test_a_parent_that_is_cancelled_before_it_runs_has_failed(self):
        for mode, expected in (("wait", "blocked"), ("cancel", "cancelled"), ("run", "waiting")):
            parent, child = f"a-{mode}", f"b-{mode}"
            submit(parent, run_at=60)
            submit(child, parent, if_failed=mode)
            store.cancel_each([Queue()[parent].id], using="default")
            self.assertEqual(status(child), expected)

    def test_a_parent_that_is_cancelled_while_it_runs_has_failed(self):
        submit("a")
        submit("b", "a", if_failed="cancel")
        take("a").cancel()

        self.assertEqual(status("b"), "cancelled")

    def test_a_parent_that_expires_has_failed(self):
        submit("a", expires_at=60)
        submit("b", "a", if_failed="run")
        later = timezone.now() + timedelta(minutes=2)
        self.assertEqual(Queue().poll(now=later).key, "b")

        self.assertEqual(status("a"), "expired")

    def test_a_parent_that_is_closed_by_force_has_finished(self):
        submit("a")
        submit("b", "a")
        take("a")
        Queue()["a"].force_finish()

        finish("b")

    def test_a_parent_that_crashes_too_often_has_failed(self):
        submit("a")
        submit("b", "a", if_failed="cancel")
        moment = timezone.now()
        while status("a") != "failed":
            Queue().poll(now=moment)
            moment += timedelta(days=2)

        self.assertEqual(status("b"), "cancelled")

    def test_a_parent_that_is_put_off_or_retried_is_waited_for(self):
        submit("a")
        submit("b", "a")
        moment = timezone.now()
        for put_off in ("release", "retry"):
            getattr(Queue().poll(now=moment), put_off)()
            self.assertEqual(status("b"), "blocked")
            moment += timedelta(hours=1)
        Queue().poll(now=moment).finish()

        finish("b")

    def test_a_parent_whose_queue_is_cleared_cancels_what_waits_or_lets_it_run(self):
        for mode, expected in (("wait", "cancelled"), ("cancel", "cancelled"), ("run", "waiting")):
            parent = Queue("other").submit("a", "report")
            dead = Queue("other").submit("dead", "report", run_at=60)
            submit(f"b-{mode}", parent, if_failed=mode)
            submit(f"c-{mode}", dead, if_failed=mode)
            store.cancel_each([dead.id], using="default")
            Queue("other").clear()
            self.assertEqual(status(f"b-{mode}"), expected)
            self.assertEqual(status(f"c-{mode}"), expected)

    def test_clearing_parents_and_children_leaves_nothing(self):
        submit("a")
        submit("b", "a")
        Queue().clear()

        self.assertEqual((Task.objects.count(), Ticket.objects.count()), (0, 0))
        self.assertEqual(Dependency.objects.count(), 0)

    def test_a_parent_is_kept_until_its_children_have_finished(self):
        submit("a")
        finish("a")
        submit("b", "a")
        self.assertEqual(Queue().purge(older_than=0), 0)
        with self.assertRaisesMessage(NotSupportedError, "kept until the tasks that wait for it"):
            store.upkeep.delete_ended(Queue()["a"].id, using="default")
        finish("b")
        self.assertEqual(Queue().purge(older_than=0), 2)
        self.assertEqual(Dependency.objects.count(), 0)

    def test_a_failed_parent_is_not_purged_under_what_waits_for_it(self):
        self.fail_parent("wait")

        self.assertEqual(Queue().purge(older_than=0, status="failed"), 0)
        self.assertEqual(status("b"), "blocked")

    def test_several_that_end_in_one_statement_release_what_waits_for_all(self):
        submit("a"), submit("b")
        submit("c", "a", "b")
        leases = [task.lease for task in Queue().acquire(2)]
        store.finish([store.Completion(one, None, 0, 0) for one in leases], using="default")

        finish("c")

    def test_an_end_that_is_rolled_back_releases_nothing(self):
        submit("a")
        submit("b", "a")
        task = take("a")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            task.finish()
            raise ZeroDivisionError

        self.assertEqual(status("b"), "blocked")
        task.finish()
        finish("b")


class ResultTests(Cases):
    def test_a_handler_reads_what_its_parents_returned(self):
        submit("a"), submit("b"), submit("c", "a", "b")
        finish("a", {"rows": 3})
        finish("b")
        task = take("c")

        self.assertEqual(task.parents["a"].result(), {"rows": 3})
        self.assertIsNone(task.parents["b"].result())
        self.assertEqual(list(task.parents), ["a", "b"])
        self.assertEqual(len(task.parents), 2)
        with self.assertRaises(KeyError):
            task.parents["c"]

    def test_the_result_of_a_parent_that_failed_is_its_error(self):
        submit("a")
        submit("b", "a", if_failed="run")
        take("a").fail("ValueError", "no such file")

        with self.assertRaisesMessage(TaskFailedError, "no such file"):
            take("b").parents["a"].result()

    def test_a_parent_that_was_put_back_has_no_result(self):
        submit("a")
        submit("b", "a", if_failed="run")
        take("a").fail()
        task = take("b")
        Queue()["a"].retry()

        with self.assertRaisesMessage(NotSupportedError, "Task 'a' has yet to end"):
            task.parents["a"]


class ChangeTests(Cases):
    """What qless does with dependencies."""

    def test_a_task_submitted_again_has_the_new_dependencies_and_keeps_its_children(self):
        submit("a"), submit("b")
        submit("c", "a")
        submit("d", "c")
        submit("c", "b", on_conflict="replace")

        finish("a")
        self.assertEqual(status("c"), "blocked")
        finish("b")
        finish("c")
        finish("d")

    def test_a_task_submitted_again_can_not_wait_for_its_own_children(self):
        submit("a")
        submit("b", "a")
        with self.assertRaisesMessage(InvalidTaskError, "wait for one another"):
            submit("a", "b", on_conflict="replace")

        finish("a")
        finish("b")

    def test_a_failed_parent_that_is_submitted_again_goes_on(self):
        submit("a")
        submit("b", "a")
        take("a").fail()
        submit("a", on_conflict="replace")

        finish("a")
        finish("b")

    def test_a_task_is_cancelled_with_those_that_wait_for_it_or_not_at_all(self):
        submit("a")
        submit("b", "a")
        submit("c", "b")
        task = Queue()["a"]
        self.assertEqual(task.dependents(), ((Queue()["c"].id, Queue()["b"].id), ("b", "c")))
        for refused in (
            task.cancel_request,
            lambda: store.dependencies.cancel_request(task.id, using="default"),
        ):
            with self.assertRaisesMessage(NotSupportedError, "2 tasks wait for task 'a'"):
                refused()
        self.assertEqual(statuses("a", "b", "c"), ["waiting", "blocked", "blocked"])
        self.assertTrue(Queue()["a"].cancel_request(together=True))

        self.assertEqual(statuses("a", "b", "c"), ["cancelled"] * 3)

    def test_those_that_wait_are_cancelled_before_what_they_wait_for(self):
        """Else one of them would be released, or say that another's end has cancelled it."""
        submit("a")
        submit("b", "a")
        submit("c", "b", if_failed="cancel")
        submit("d", "c", if_failed="run")
        Queue()["a"].cancel_request(together=True)

        self.assertEqual(statuses("a", "b", "c", "d"), ["cancelled"] * 4)
        self.assertEqual(DeadLetter.objects.values("group", "message").distinct().count(), 1)

    def test_a_task_for_which_only_ended_ones_waited_is_cancelled_alone(self):
        submit("a")
        submit("b", "a")
        Queue()["b"].cancel_request()
        self.assertEqual(Queue()["a"].dependents().ids, ())
        self.assertTrue(Queue()["a"].cancel_request())

    def test_a_blocked_task_is_made_to_wait_for_more(self):
        submit("a"), submit("b")
        submit("c", "a")
        Queue()["c"].wait_for(["b"])

        finish("a")
        self.assertEqual(status("c"), "blocked")
        finish("b")
        finish("c")

    def test_a_blocked_task_is_made_to_wait_for_less(self):
        submit("a"), submit("b")
        submit("c", "a", "b", run_at=timedelta(hours=1))
        submit("d")
        for unknown, message in (("d", "Task 'c' does not wait for task 'd'"), ("nope", "nope")):
            with self.assertRaisesMessage(NotFoundError, message):
                Queue()["c"].wait_no_longer_for(["a", unknown])
        self.assertEqual(len(Queue()["c"].parents), 2)
        Queue()["c"].wait_no_longer_for(["a"])
        self.assertEqual(status("c"), "blocked")
        Queue()["c"].wait_no_longer_for()

        self.assertEqual(status("c"), "scheduled")

    def test_only_a_blocked_task_can_be_changed_so_and_only_without_a_circle(self):
        submit("a")
        submit("b", "a")
        submit("c", "b")
        for change in (
            lambda: Queue()["a"].wait_for(["c"]),
            lambda: Queue()["a"].wait_no_longer_for(),
        ):
            with self.assertRaisesMessage(NotSupportedError, "Task 'a' is not blocked"):
                change()
        with self.assertRaisesMessage(InvalidTaskError, "wait for one another"):
            Queue()["b"].wait_for(["c"])
        with self.assertRaises(NotFoundError):
            Queue()["b"].wait_for(["nope"])

        for key in "abc":
            finish(key)

    def test_a_blocked_task_is_not_hastened_and_can_be_closed_by_force(self):
        submit("a")
        submit("b", "a")
        with self.assertRaisesMessage(NotSupportedError, "blocked"):
            Queue()["b"].retry()
        Queue()["b"].force_finish()

        self.assertEqual(status("b"), "finished")
        finish("a")
        self.assertIsNone(Queue().poll())


class TestCaseTests(TestCase):
    """In a transaction whose commit never comes."""

    def test_a_child_is_released_when_a_task_is_looked_for(self):
        submit("a")
        submit("b", "a")
        finish("a")
        finish("b")


class CircleTests(TransactionTestCase):
    """Programs that close a circle at the same moment."""

    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other sees what it has stored.")
        submit("root")
        for key in "abcdef":
            submit(key, "root")

    def change(self, key, *parents, barrier=None):
        """Return whether it is refused as a circle."""
        try:
            if barrier:
                barrier.wait(10)
            Queue()[key].wait_for(parents)
        except InvalidTaskError:
            return True
        finally:
            connection.close()
        return False

    def replace(self, key, *parents):
        try:
            submit(key, *parents, on_conflict="replace")
        except InvalidTaskError:
            return True
        finally:
            connection.close()
        return False

    def test_the_one_that_commits_last_is_refused(self):
        Queue()["a"].wait_for(["b"])
        Queue()["c"].wait_for(["d"])
        cases = (
            ("e", "f", self.change, "f", "e"),
            ("b", "c", self.change, "d", "a"),
            ("b", "c", self.replace, "d", "a"),
        )
        for child, parent, act, other_child, other_parent in cases:
            with self.subTest(child, act=act.__name__), ThreadPoolExecutor(1) as pool:
                with transaction.atomic():
                    Queue()[child].wait_for([parent])
                    other = pool.submit(act, other_child, other_parent)
                    self.assertFalse(wait([other], timeout=0.5).done)
                self.assertTrue(other.result(10))
                Queue()[child].wait_no_longer_for([parent])

    def test_one_that_is_rolled_back_refuses_none(self):
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                Queue()["a"].wait_for(["b"])
                other = pool.submit(self.change, "b", "a")
                transaction.set_rollback(True)
            self.assertFalse(other.result(10))

    def test_what_closes_no_circle_waits_for_nobody(self):
        submit("alone")
        with transaction.atomic():
            Queue()["a"].wait_for(["b"])
            self.assertFalse(elsewhere(lambda: self.change("c", "alone")))
            elsewhere(lambda: submit("d2", "b"))

    def test_of_many_at_once_none_is_left_in_a_circle(self):
        with ThreadPoolExecutor(4) as pool:
            for keys in ("abcd", "bcda", "acbd", "cfae"):
                barrier = Barrier(4)
                pairs = zip(keys, keys[1:] + keys[0], strict=True)
                changes = [pool.submit(self.change, *pair, barrier=barrier) for pair in pairs]
                results = [one.result(30) for one in changes]
                self.assertTrue(any(results))
        for _count in range(7):
            Queue().poll().finish()


class ConcurrentTests(TransactionTestCase):
    """Who submits a child and who ends its parent, on two connections."""

    def setUp(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one writer: the other waits.")

    def test_a_parent_may_end_before_the_transaction_of_its_child_commits(self):
        submit("a")
        task = take("a")
        with transaction.atomic():
            submit("b", task)
            elsewhere(task.finish)
            self.assertEqual(status("a"), "finished")

        finish("b")

    def test_a_parent_is_not_purged_before_the_transaction_of_its_child_commits(self):
        submit("old")
        finish("old")
        parent = submit("a").id
        task = take("a")
        with transaction.atomic():
            submit("b", "a", "old")
            elsewhere(lambda: task.finish({"rows": 3}))
            self.assertEqual(elsewhere(lambda: Queue().purge(older_than=0)), 0)
            with self.assertRaises(NotSupportedError):
                elsewhere(lambda: store.upkeep.delete_ended(parent, using="default"))

        self.assertEqual(take("b").parents["a"].result(), {"rows": 3})

    def test_a_parent_is_not_replaced_before_the_transaction_of_its_child_commits(self):
        submit("a"), submit("c")
        with ThreadPoolExecutor() as pool:
            with transaction.atomic():
                submit("b", "a")
                replacing = pool.submit(replace_alone, "a")
                done, _waiting = wait([replacing], timeout=0.3)
                self.assertFalse(done)
                # Others are not held up by who waits for this transaction.
                elsewhere(lambda: finish("c"))
            replacing.result()
        self.assertEqual(status("b"), "blocked")
        finish("a")
        finish("b")

    def test_who_submits_a_child_holds_up_no_other_child_of_a_failed_parent(self):
        submit("a"), submit("b", "a", if_failed="run")
        task = take("a")
        with transaction.atomic():
            submit("c", "a", if_failed="run")
            elsewhere(task.fail)
            self.assertEqual(elsewhere(lambda: status("b")), "waiting")
        finish("b")
        finish("c")

    def test_a_child_is_released_though_the_end_of_its_parent_commits_after_it(self):
        submit("a")
        task = take("a")
        with transaction.atomic():
            task.finish()
            elsewhere(lambda: submit("b", "a"))
        store.records.follow(using="default")

        finish("b")

    def test_two_parents_that_end_at_the_same_moment_release_their_child_once(self):
        for number in range(10):
            a, b, c = (f"{key}{number}" for key in "abc")
            # Two users: else the end of one would hold the other's account.
            submit(a, user="1"), submit(b, user="2"), submit(c, a, b)
            first, second = Queue().acquire(2)
            with transaction.atomic():
                first.finish()
                elsewhere(second.finish)
            finish(c)
        self.assertIsNone(Queue().poll())

    def test_of_many_at_once_each_is_released_once_and_none_is_left(self):
        def work(name):
            try:
                for number in range(15):
                    key = f"{name}-{number}"
                    near = [f"{name}-{number - 1}"] if number else []
                    far = [f"{other}-{number - 2}" for other in range(4) if number > 1]
                    while missing(far):
                        run_one()
                    submit(key, *near, *far, user=str(name))
                    run_one()
            finally:
                connection.close()

        def missing(names):
            return Queue().list().filter(key__in=names).count() < len(names)

        def run_one():
            if task := Queue().poll():
                ran.append((task.key, [end.status for end in task.parents.values()]))
                task.finish()

        ran = []
        with ThreadPoolExecutor() as pool:
            list(pool.map(work, range(4)))
        store.records.follow(using="default")
        for _task in range(60):
            run_one()

        self.assertEqual(sorted(Counter(key for key, _ends in ran).values()), [1] * 60)
        self.assertEqual({end for _key, ends in ran for end in ends}, {"finished"})

    def test_a_parent_is_put_back_while_a_child_of_it_is_submitted(self):
        submit("a")
        take("a").fail()
        with transaction.atomic():
            submit("b", "a")
            elsewhere(Queue()["a"].retry)
        finish("a")
        finish("b")
