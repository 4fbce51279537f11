from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.queue import Queue
from tests.factories import submit

from .running import refused, run, run_json


def nightly():
    """Have a batch of four tasks in two, one of which has failed, and one runs; and a callback."""
    with Queue().batch("nightly", user="ann") as batch:
        for key in ("a", "b", "c"):
            batch.submit(key, "report")
        with batch.batch("inner") as inner:
            inner.submit("d", "report")
        batch.then("mail", "report", when="finished")
    Queue().poll().fail()
    Queue().poll()
    store.records.follow(using="default")
    return batch


def status(key):
    return Queue()[key].metadata().status


class BatchTests(TestCase):
    def test_they_are_listed_with_their_counts(self):
        self.assertIn("There are no batches.", run("pq_batch", "list"))
        nightly()
        with Queue("other").batch("empty"):
            pass
        store.records.follow(using="default")
        out = run("pq_batch", "list")
        self.assertRegex(out, r"nightly +default +ann +open +4 +0 +1 ")
        self.assertRegex(out, r"empty +other +- +finished +0 +0 +0 ")
        self.assertNotIn("other", run("pq_batch", "list", "--queue", "default"))
        self.assertIn("There are more", run("pq_batch", "list", "--first", "1"))
        found = run_json("pq_batch", "list")
        self.assertEqual([one["name"] for one in found], ["empty", "inner", "nightly"])
        self.assertEqual(
            (found[2]["total"], found[2]["dead"], found[2]["status"]), (4, 1, "running")
        )

    def test_one_is_shown_with_its_bar_members_and_callbacks(self):
        nightly()
        out = run("pq_batch", "show", "nightly")
        self.assertIn("Batch 'nightly' in queue 'default'\n", out)
        self.assertIn("progress    [######", out)
        self.assertIn("25%, 0 of 4 finished, 1 dead, 3 open\n", out)
        self.assertIn("statuses    2 waiting, 1 running, 1 failed\n", out)
        self.assertIn("has batch   inner: 0 of 1 finished, 0 dead, 1 open\n", out)
        self.assertIn("callback    mail (blocked, when=finished)\n", out)
        self.assertRegex(out, r"\n  a +failed +report +ann\n")
        [facts] = run_json("pq_batch", "show", "nightly")
        self.assertEqual(facts["statuses"], {"waiting": 2, "running": 1, "failed": 1})
        self.assertEqual([one["name"] for one in facts["batches"]], ["inner"])
        self.assertEqual([one["key"] for one in facts["callbacks"]], ["mail"])
        self.assertFalse(facts["ended"])

    def test_a_wrong_name_is_refused_with_the_nearest(self):
        nightly()
        said = refused(self, "pq_batch", "show", "nigtly")
        self.assertIn("Queue 'default' has no batch called 'nigtly'. Did you mean 'nightly'?", said)
        self.assertIn(
            "has no batch", refused(self, "pq_batch", "cancel", "inner", "--queue", "x", "--yes")
        )

    def test_a_dry_run_of_cancel_changes_nothing(self):
        nightly()
        out = run("pq_batch", "cancel", "nightly", "--dry-run")
        self.assertIn("3 tasks would be cancelled or asked to stop.\n", out)
        self.assertIn("By status: waiting 2, running 1\n", out)
        self.assertRegex(out, r"\n  d +waiting")
        [facts] = run_json("pq_batch", "cancel", "nightly", "--dry-run")
        self.assertEqual(facts["total"], 3)
        self.assertEqual([one["key"] for one in facts["sample"]], ["b", "c", "d"])
        self.assertEqual(
            [status(key) for key in "abcd"], ["failed", "running", "waiting", "waiting"]
        )
        Queue().batch_named("nightly").submit("e", "report")

    def test_cancel(self):
        nightly()
        out = run("pq_batch", "cancel", "nightly", "--yes")
        self.assertIn(
            "2 tasks are cancelled. 1 is held by a processor, and is asked to stop.\n", out
        )
        self.assertEqual([status(key) for key in "cd"], ["cancelled", "cancelled"])
        self.assertRegex(run("pq_task", "show", "c"), r"by +\S+@\S+: cancel requested")
        self.assertRegex(run("pq_batch", "list"), r"nightly .* cancelled ")

    def test_retry(self):
        nightly()
        self.assertIn(
            "1 task would be tried again.\n", run("pq_batch", "retry", "nightly", "--dry-run")
        )
        self.assertEqual(status("a"), "failed")
        self.assertIn("1 task will be tried again.\n", run("pq_batch", "retry", "nightly", "--yes"))
        self.assertEqual(status("a"), "waiting")
        [facts] = run_json("pq_batch", "retry", "nightly", "--yes")
        self.assertEqual(facts, {"name": "nightly", "done": "retried", "tasks": 0})


class FamilyTests(TestCase):
    def test_a_task_is_shown_with_its_family(self):
        nightly()
        submit("z", now=None, after=["a", "c"], if_failed="run")
        store.records.follow(using="default")
        out = run("pq_task", "show", "z")
        self.assertRegex(
            out, r"waits for +c \(waiting, if_failed=run\), a \(failed, if_failed=run\)\n"
        )
        self.assertRegex(out, r"why +It waits for task 'c'\.\n")
        out = run("pq_task", "show", "c")
        self.assertRegex(out, r"followed by +z \(blocked, if_failed=run\)\n")
        self.assertRegex(out, r"batch +nightly: 0 of 4 finished, 1 dead, 3 open\n")
        self.assertRegex(
            run("pq_task", "show", "mail"), r"waits for +batch nightly \(open, when=finished\)\n"
        )
        [facts] = run_json("pq_task", "show", "z")
        self.assertEqual(
            [(one["key"], one["state"]) for one in facts["parents"]],
            [("c", "awaited"), ("a", "met")],
        )
        self.assertEqual((facts["children"], facts["batch"]), ([], None))
        [facts] = run_json("pq_task", "show", "d")
        self.assertEqual((facts["batch"]["name"], facts["batch"]["total"]), ("inner", 1))

    def test_a_task_alone_has_none(self):
        submit("alone")
        self.assertNotIn("waits for", run("pq_task", "show", "alone"))


class TogetherTests(TestCase):
    def setUp(self):
        Queue().chain([{"key": key, "type": "report", "if_failed": "cancel"} for key in "abc"])
        submit("d", queue="other", now=None, after=[Queue()["b"]])
        store.records.follow(using="default")

    def test_a_task_is_cancelled_with_all_that_wait_for_it(self):
        self.assertIn("tasks wait for task 'b'", refused(self, "pq_task", "cancel", "b"))
        out = run("pq_task", "cancel", "b", "--with-dependents", "--dry-run")
        self.assertIn("3 tasks would be cancelled or asked to stop.\n", out)
        self.assertRegex(out, r"(?s)  d +blocked.*  c +blocked.*  b +blocked")
        self.assertEqual(status("c"), "blocked")
        self.assertEqual(
            run("pq_task", "cancel", "b", "--with-dependents", "--yes"), "3 tasks are cancelled.\n"
        )
        self.assertEqual([status(key) for key in "abc"], ["waiting", "cancelled", "cancelled"])
        self.assertEqual(Queue("other")["d"].metadata().status, "cancelled")

    def test_a_task_is_retried_with_those_that_were_cancelled_for_it(self):
        Queue().poll().fail()
        store.records.follow(using="default")
        self.assertEqual([status(key) for key in "abc"], ["failed", "cancelled", "cancelled"])
        [dry] = run_json("pq_task", "retry", "a", "--with-dependents", "--dry-run")
        self.assertEqual([one["key"] for one in dry["sample"]], ["c", "b", "a"])
        self.assertEqual(
            run_json("pq_task", "retry", "a", "--with-dependents", "--yes"), [{"retried": 3}]
        )
        store.records.follow(using="default")
        self.assertEqual([status(key) for key in "abc"], ["waiting", "blocked", "blocked"])

    def test_wrong_options_are_refused(self):
        self.assertIn(
            "is for keys", refused(self, "pq_task", "retry", "--with-dependents", "--all", "--yes")
        )
        self.assertIn("is for keys", refused(self, "pq_task", "cancel", "--with-dependents"))
        self.assertIn("no task", refused(self, "pq_task", "retry", "--with-dependents", "zz"))
