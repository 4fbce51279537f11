import os
import signal
import time

from django.test import tag

from django_perfectqueue.models import Attempt, DeadLetter, Step
from django_perfectqueue.queue import Queue

from ...databases.lifetime import children
from ...management.running import run
from ...waiting import wait_until
from ..workers import WorkerTestCase, is_alive


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class CrashTests(WorkerTestCase):
    """Leases last for five minutes here: whatever comes back within seconds was given back."""

    def test_a_processor_that_is_killed_gives_its_tasks_back_at_once(self):
        for number in range(3):
            self.submit(f"k{number}")
        worker = self.worker(TASK_PREFETCH=2)
        pid = self.wait_for_note("start")
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("start", 2)

        self.open_gate()
        for number in range(3):
            self.wait_for_status(f"k{number}", "finished")
        attempt = Attempt.objects.get()
        self.assertEqual(
            (attempt.task.key, attempt.ending, attempt.message),
            ("k0", "lost", "Its processor was ended by SIGKILL."),
        )
        self.assertTrue(attempt.worker.endswith(f":{pid}"))
        self.assertIn("A processor died", worker.errors)

    def test_a_task_whose_processor_is_killed_goes_on_after_its_steps(self):
        self.submit("k0", "steps"), self.submit("k1", "steps-in-a-loop")
        self.worker("--processor-type", "async", "--concurrency", "4")
        pid = self.wait_for_note("between", 2)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("between", 4)
        self.open_gate()
        for key in ("k0", "k1"):
            self.wait_for_status(key, "finished")
            kept = Step.objects.filter(task__key=key).order_by("pk")
            self.assertEqual(list(kept.values_list("name", flat=True)), ["first", "second"])
        self.assertEqual({noted for _key, noted in self.notes("first")}, {pid})
        self.assertEqual(len(self.notes("first")), 2)
        self.assertEqual(len(self.notes("second")), 2)

    def test_all_that_ran_at_once_in_a_processor_that_is_killed_come_back(self):
        types = ("wait-in-a-loop", "wait-in-a-loop", "wait")
        for number, type_ in enumerate(types):
            self.submit(f"k{number}", type_)
        worker = self.worker("--processor-type", "async", "--concurrency", "4")
        pid = self.wait_for_note("start", 3)
        self.assertEqual({noted for _key, noted in self.notes("start")}, {pid})
        os.kill(pid, signal.SIGKILL)
        self.wait_for_note("start", 6)
        self.assertEqual(
            {Queue()[f"k{number}"].metadata().ticket.crashes for number in range(3)}, {1}
        )

        worker.send(signal.SIGTERM)
        self.open_gate()
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assertEqual(len(self.notes("end")), 3)
        self.assertIn("1 processor (async): 4 tasks at once in each", worker.output)

    def test_what_a_handler_started_goes_with_its_processor(self):
        """
        Left alone, it would go on beside the next attempt.
        """
        pid_file = self.folder / "pid"
        self.submit("k0", "offspring", data={"pid": str(pid_file)})
        self.worker()
        pid = self.wait_for_note("start")
        child = int(pid_file.read_text())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(child))

    def test_a_janitor_that_dies_is_replaced(self):
        """
        It is what deletes old tasks; nobody would notice for days.
        """
        worker = self.worker(RETENTION={"*": 0.1}, PURGE_INTERVAL=0.2).ready()
        os.kill(worker.helper(), signal.SIGKILL)
        wait_until(lambda: "The helper died" in worker.errors)
        self.submit("k0", "note")
        wait_until(lambda: self.notes("ran") and not Queue()["k0"].exists())

    def test_a_helper_that_stands_still_is_replaced(self):
        """
        Nobody would hear of tasks, purge, or fire timers; and nothing would have died.
        """
        worker = self.worker(CHILD_HEARTBEAT_LIMIT=1).ready()
        before = worker.helper()
        os.kill(before, signal.SIGSTOP)
        wait_until(lambda: not is_alive(before))
        self.assertNotEqual(worker.helper(), before)
        self.assertIn("The helper is silent; it is killed", worker.errors)

    @tag("thorough")
    def test_the_supervisor_keeps_no_file_of_those_that_have_died(self):
        """
        At the limit of open files it could start no other, and nothing would run any more.
        """
        soon = {"CHILD_FORK_FREQUENCY_LIMIT": 0, "CHILD_HEARTBEAT_LIMIT": 2, "TASK_KILL_WAIT": 0.1}
        once = {"MAX_ATTEMPTS": 1, "MAX_CRASHES": 1, "RECYCLE": {"tasks": 2}}
        worker = self.worker(**soon, **once).ready()
        worker.helper()
        before = open_files(worker.supervisor)
        for number in range(8):
            self.submit(f"killed{number}", "die")
            self.submit(f"recycled{number}", "note")
        self.submit("ended", "exit-once", data={"code": 9})
        self.submit("forced", "deaf", data={"pid": str(self.folder / "pid")}, time_limit=3)
        self.submit("silent", "stand-still")
        wait_until(lambda: len(Queue()) == 0)
        wait_until(lambda: len(worker.processors()) >= 12)

        def is_as_before():
            settled = len(children(worker.supervisor)) == 2
            return settled and open_files(worker.supervisor) == before

        # The last one that has died is still being buried.
        wait_until(is_as_before)

    def test_a_processor_that_is_ended_quietly_has_died_all_the_same(self):
        """
        Its exit code may be that of a processor which leaves as asked.
        """
        for code in (0, 3):
            self.submit(f"exit-{code}", "exit-once", data={"code": code})
        self.submit("after", "note")
        worker = self.burst()

        for key in ("exit-0", "exit-3", "after"):
            self.assertEqual(self.status(key), "finished")
        self.assertEqual(worker.errors.count("A processor died"), 2)
        why = "A task crashed: Its processor ended with exit code 3. queue=default key=exit-3"
        self.assertIn(why, worker.errors)
        self.assertRegex(worker.output, r"crashed   exit-3 type=exit-once attempt=1 \d")
        self.assertIn("3 finished, 0 retried, 0 failed, 2 crashed in ", worker.output)

    def test_what_is_ended_by_force_is_reported_with_its_end(self):
        self.submit("forced", "deaf", data={"pid": str(self.folder / "pid")}, time_limit=1)
        worker = self.burst(MAX_ATTEMPTS=1, TASK_KILL_WAIT=0.1)
        line = r"failed    forced type=deaf attempt=1 \d\.\d+s error=TimeLimitError"
        self.assertRegex(worker.output, line)
        self.assertIn("0 finished, 0 retried, 0 failed, 1 killed in ", worker.output)

    def test_a_crash_is_reported_as_one(self):
        """The second one is followed by a wait, as a release is that a handler asks for."""
        self.submit("poison", "die")
        worker = self.burst(MAX_CRASHES=3, RETRY_WAIT=60)
        self.assertEqual(worker.output.count("crashed   poison type=die"), 2)
        story = run("pq_task", "show", "poison")
        self.assertRegex(story, r"errors +0\n  crashes +2\n")
        self.assertNotIn("gave it back", story)
        [task] = Queue().list()
        self.assertEqual(
            run("pq_task", "show", str(task.id)).splitlines()[0], story.splitlines()[0]
        )

    def test_a_process_that_a_handler_has_forked_works_on_no_tasks(self):
        self.submit("k0", "fork")
        self.submit("k1", "note")
        self.burst()

        self.assertEqual((self.status("k0"), self.status("k1")), ("finished", "finished"))
        self.assertEqual([key for key, _pid in self.notes("ran")], ["k0", "k0", "k1"])

    def test_a_task_that_kills_its_processor_is_set_aside(self):
        self.submit("poison", "die")
        self.submit("once", "die-once")
        worker = self.burst(MAX_CRASHES=3, RETRY_WAIT=0)

        self.assertEqual(self.status("poison"), "failed")
        letter = DeadLetter.objects.get()
        self.assertEqual((letter.group, letter.crashes, letter.errors), ("crashed", 3, 0))
        self.assertEqual(letter.message, "Its processor was ended by SIGKILL.")
        self.assertEqual(self.status("once"), "finished")
        self.assertEqual(len(worker.processors()), 5)

    def test_processors_leave_when_their_supervisor_is_killed(self):
        """
        The running task ends under its lease; what waits behind it is given back.
        """
        self.submit("k0")
        self.submit("k1")
        worker = self.worker(TASK_PREFETCH=1)
        self.wait_for_note("start")
        os.kill(worker.supervisor, signal.SIGKILL)
        self.assertEqual(worker.wait(), 128 + signal.SIGKILL)
        self.wait_for_status("k1", "waiting")

        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assert_gone(worker)
        self.assertEqual(len(self.notes("start")), 1)
        self.assertIn("The supervisor is gone", worker.errors)

    def test_a_supervisor_stops_when_its_launcher_is_killed(self):
        self.submit("k0")
        worker = self.worker()
        self.wait_for_note("start")
        worker.send(signal.SIGKILL)
        wait_until(lambda: "The launcher is gone" in worker.errors)

        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assert_gone(worker)

    def test_a_processor_that_is_silent_is_replaced(self):
        self.submit("k0")
        worker = self.worker(CHILD_HEARTBEAT_LIMIT=1)
        frozen = self.wait_for_note("start")
        os.kill(frozen, signal.SIGSTOP)
        self.wait_for_note("start", 2)
        self.assertFalse(is_alive(frozen))
        self.assertIn("The processor 1 is silent", worker.errors)
        self.assertEqual(Queue()["k0"].metadata().ticket.crashes, 1)
        self.assertIn("Its processor was silent for 1 s", Attempt.objects.get().message)

    @tag("thorough")
    def test_a_processor_that_was_frozen_past_its_lease_begins_nothing_more(self):
        """
        What it still holds in hand belongs to others by then.
        """
        for number in range(3):
            self.submit(f"k{number}")
        self.worker(TASK_PREFETCH=2, ALIVE_TIME=1)
        frozen = self.wait_for_note("start")
        os.kill(frozen, signal.SIGSTOP)
        taken = []

        def all_taken():
            taken.extend(Queue().acquire(3))
            return len(taken) == 3

        wait_until(all_taken)
        os.kill(frozen, signal.SIGCONT)
        self.wait_for_note("PreemptedError")

        for task in taken:
            task.finish("by another")
        self.assertEqual({key for key, _pid in self.notes("start")}, {"k0"})
        self.assertEqual(Queue()["k0"].metadata().result, "by another")

    def test_long_tasks_keep_their_lease(self):
        self.submit("k0")
        self.submit("k1")
        self.worker(TASK_PREFETCH=1, ALIVE_TIME=1)
        self.wait_for_note("start")
        until = time.monotonic() + 2.5
        wait_until(lambda: time.monotonic() > until or self.status("k1") != "running")
        self.assertEqual((self.status("k0"), self.status("k1")), ("running", "running"))
        self.open_gate()
        self.wait_for_status("k1", "finished")
        self.assertEqual(len(self.notes("start")), 2)
