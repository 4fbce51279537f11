from collections import Counter
from pathlib import Path

from django.core.management import CommandError, call_command
from django.test import tag

from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.queue import Queue

from ..workers import WorkerTestCase


class BurstTests(WorkerTestCase):
    def test_it_runs_what_is_due_and_leaves(self):
        for number in range(3):
            self.submit(f"k{number}", "echo", data={"n": number}, user="ann")
        worker = self.burst()

        self.assertEqual(Queue()["k2"].metadata().result["n"], 2)
        for text in (
            "django-perfectqueue ",
            "Queues: default",
            "(tasks modules)",
            "Processor 1 started, pid ",
            "finished  k1 type=echo user=ann attempt=1 ",
            "3 finished, 0 retried, 0 failed in ",
        ):
            self.assertIn(text, worker.output)
        self.assertNotIn("diary", worker.output)
        self.assertEqual(worker.errors, "")

    def test_the_row_tells_which_process_ran_the_task(self):
        self.submit("k1", "note")
        self.burst()
        [(_key, pid)] = self.notes("ran")
        self.assertTrue(Queue()["k1"].metadata().worker.endswith(f":{pid}"))

    def test_what_is_scheduled_for_later_is_left(self):
        self.submit("later", "echo", run_at=3600)
        self.burst()
        self.assertEqual(self.status("later"), "scheduled")

    def test_errors_are_tried_again_until_the_attempts_are_spent(self):
        self.submit("once", "fail-once")
        self.submit("always", "fail")
        self.submit("exit", "leave")
        self.submit("reported", "tell", data={"password": "hunter22"})
        worker = self.burst(MAX_ATTEMPTS=1)

        self.assertEqual(self.status("once"), "failed")
        self.assertEqual(self.status("always"), "failed")
        self.assertEqual(self.status("exit"), "failed")
        self.assertIn("retried   always type=fail attempt=1 ", worker.output)
        self.assertIn("error=ValueError", worker.output)
        self.assertIn("Task failed. queue=default key=always", worker.errors)
        self.assert_reported("reported", worker)

    def assert_reported(self, key, worker):
        """What the handler reported is kept, and is printed as it would be without that."""
        reported = Queue()[key].progress()
        self.assertEqual((reported.progress, reported.stage), (0.5, "counting"))
        [line] = reported.log
        self.assertEqual(line[2:], ("WARNING", "tests.tasks"))
        self.assertEqual(line.text, "Nearly there, ********.")
        self.assertIn("Nearly there, hunter22.", worker.errors)
        self.assertIn("ValueError: no ********", worker.errors)
        self.assertNotIn("no hunter22", worker.errors)

    def test_a_processor_is_replaced_after_exactly_so_many_tasks(self):
        """
        The ancestor ran one more than its limit.
        """
        for number in range(10):
            self.submit(f"k{number}", "note")
        self.burst("--max-requests", "3")
        counts = Counter(pid for _key, pid in self.notes("ran"))
        self.assertEqual(sorted(counts.values()), [1, 3, 3, 3])

    def test_several_processors_share_the_work(self):
        for number in range(200):
            self.submit(f"k{number}", "note")
        worker = self.burst("--processors", "3")
        self.assertEqual(len(worker.processors()), 3)
        self.assertEqual(len({key for key, _pid in self.notes("ran")}), 200)
        self.assertEqual(len(self.notes("ran")), 200)

    def test_only_the_queues_that_were_named_are_served(self):
        for name in ("first", "second", "third"):
            Queue(name).submit("k1", "echo")
        self.burst("--queue", "first", "--queue", "second")
        counts = [len(Queue(name)) for name in ("first", "second", "third")]
        self.assertEqual(counts, [0, 0, 1])

    def test_a_dispatch_decides_what_is_known(self):
        """
        A type that no route knows waits for a release that knows it, and counts no attempt.
        """
        for number in range(3):
            self.submit(f"strange{number}", "fail")
        self.submit("known", "late.report")
        worker = self.burst("tests.tasks.SampleDispatch")

        self.assertEqual(self.status("known"), "finished")
        row = Queue()["strange1"].metadata()
        self.assertEqual((row.status, row.ticket.errors), ("scheduled", 0))
        self.assertEqual(worker.errors.count("No handler for tasks of this type"), 1)
        self.assertIn("Handlers: echo, wait, ^import\\., ", worker.output)

    def test_a_limit_that_there_is_not_is_named_once(self):
        set_limit("family:*", max_running=5)
        for number in range(4):
            limits = [f"family:{number}", "confirmations"]
            Queue().submit(f"k{number}", "echo", limits=limits)
        worker = self.burst()
        said = "A task lists a limit that does not exist, so it is not limited. limit="
        self.assertEqual(worker.errors.count(said), 1)
        self.assertIn(f"{said}confirmations", worker.errors)

    def test_hooks_are_called_where_they_belong(self):
        """
        What a processor must not share with its siblings is made after the fork.
        """
        self.submit("k0", "report")
        worker = self.burst(DISPATCH="tests.tasks.HookedDispatch")
        lines = Path(f"{worker.settings}.hooks").read_text().split()
        words, pids = lines[::2], [int(pid) for pid in lines[1::2]]
        self.assertEqual(words, ["before_fork", "after_fork", "after_child_end"])
        [child] = worker.processors()
        self.assertEqual(pids[1:], [child, child])
        self.assertNotEqual(pids[0], child)
        self.assertEqual(Queue()["k0"].metadata().result, child)

    def test_silence_is_silent(self):
        self.submit("k1", "echo")
        worker = self.burst("--verbosity", "0")
        self.assertEqual((worker.output, worker.errors), ("", ""))

    def test_more_words_tell_where_and_when(self):
        self.submit("k1", "note")
        worker = self.burst("--verbosity", "2")
        [(_key, pid)] = self.notes("ran")
        self.assertRegex(worker.output, rf"\d\d:\d\d:\d\d {pid} finished  k1 .* queue=default")

    def test_a_program_that_calls_the_command_is_told_what_to_do(self):
        with self.assertRaisesMessage(CommandError, "start manage.py pq_worker"):
            call_command("pq_worker", "--burst")


@tag("any-database")
class MistakeTests(WorkerTestCase):
    """What can't work is said in one line, before anything is started."""

    def assert_refused(self, message, *arguments, code=1, **settings):
        worker = self.worker(*arguments, **settings)
        self.assertEqual(worker.wait(), code, worker.errors)
        self.assertIn(message, worker.errors)
        self.assertNotIn("Traceback", worker.errors)
        self.assertEqual(worker.output, "")

    def test_an_unknown_dispatch(self):
        self.assert_refused("'tests.tasks.Nothing' can't be imported", "tests.tasks.Nothing")

    def test_a_path_to_something_else(self):
        self.assert_refused("'tests.tasks.Wait' is not a subclass of Dispatch", "tests.tasks.Wait")

    def test_a_route_that_leads_nowhere(self):
        self.assert_refused("WrongDispatch.routes['report'] names", "tests.tasks.WrongDispatch")

    def test_an_unknown_setting(self):
        self.assert_refused("Did you mean 'PROCESSORS'?", PROCESSOR=3)

    def test_a_value_that_will_not_do(self):
        self.assert_refused("must be a number of seconds above 0", "--poll-interval", "0")

    def test_a_type_of_processor_that_there_is_not(self):
        self.assert_refused("'process', 'thread', 'async', not", "--processor-type", "gevent")

    def test_a_number_of_processors_that_is_none(self):
        self.assert_refused("must be a whole number from 1", "--processors", "0", code=2)

    def test_tasks_at_once_in_a_processor_that_runs_them_one_by_one(self):
        self.assert_refused("runs one task at a time", "--concurrency", "5")

    def test_an_unknown_database(self):
        self.assert_refused("'nowhere'", "--database", "nowhere")

    def test_a_queue_without_a_name(self):
        self.assert_refused("The queue must be a text of 1 to 100", "--queue", "")
