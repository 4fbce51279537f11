from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase


class InterruptionTests(WorkerTestCase):
    def test_a_running_task_can_be_cancelled(self):
        self.submit("k0")
        self.worker()
        self.wait_for_note("start")
        self.assertFalse(Queue()["k0"].cancel_request())
        self.wait_for_status("k0", "cancelled")
        self.assertEqual(len(self.notes("CancelRequestedError")), 1)

    def test_a_task_that_is_finished_by_force_is_broken_off(self):
        self.submit("k0")
        self.submit("k1", "note")
        self.worker("--processors", "1", TASK_PREFETCH=0)
        self.wait_for_note("start")
        Queue()["k0"].force_finish()
        self.wait_for_note("PreemptedError")
        self.wait_for_status("k1", "finished")
        self.assertEqual(self.status("k0"), "finished")

    def test_a_task_in_hand_that_is_cancelled_is_never_begun(self):
        self.submit("k0")
        self.submit("k1")
        self.worker(TASK_PREFETCH=1)
        self.wait_for_note("start")
        self.wait_for_status("k1", "running")
        Queue()["k1"].cancel_request()
        self.wait_for_status("k1", "cancelled")
        self.open_gate()
        self.wait_for_status("k0", "finished")
        self.assertEqual(self.notes("start")[1:], [])


class CompletionTests(WorkerTestCase):
    def test_a_short_task_is_not_kept_waiting_by_a_long_one(self):
        """
        Who waits for a result should not wait for whatever runs next in the same process.
        """
        self.submit("short", "note")
        self.submit("long")
        self.worker(TASK_PREFETCH=1)
        self.wait_for_note("start")
        self.wait_for_status("short", "finished")
        self.assertEqual(self.status("long"), "running")

    def test_nor_by_one_that_no_one_expected_to_be_long(self):
        self.open_gate()
        for number in range(10):
            self.submit(f"short{number}")
        self.submit("long", data={"until": str(self.folder / "never")})
        self.worker(TASK_PREFETCH=20)
        self.wait_for_note("start", 11)
        self.wait_for_status("short9", "finished")
        self.assertEqual(self.status("long"), "running")

    def test_others_may_run_what_waits_behind_a_long_task(self):
        """
        A processor that grew used to short tasks has taken many when a long one comes.
        """
        self.open_gate()
        for number in range(40):
            self.submit(f"before{number}", "note")
        self.submit("long", data={"until": str(self.folder / "never")})
        for number in range(40):
            self.submit(f"behind{number}", "note")
        self.worker("--processors", "2")
        for number in range(40):
            self.wait_for_status(f"behind{number}", "finished")
        self.assertEqual(self.status("long"), "running")


class ClockTests(WorkerTestCase):
    def test_the_janitor_serves_the_clock_while_all_processors_are_busy(self):
        """
        A task whose time has come is waiting, and is shown so, though no one can take it yet.
        """
        self.submit("k0")
        self.submit("later", "note", run_at=0.5)
        self.worker(PURGE_INTERVAL=0.3)
        self.wait_for_note("start")
        ticket = Queue()["later"].metadata().ticket

        def admitted():
            ticket.refresh_from_db()
            return ticket.state == 0

        wait_until(admitted)

    def test_what_has_finished_is_deleted_on_an_idle_queue(self):
        self.submit("k0", "note")
        self.worker(RETENTION={"*": 0.1}, PURGE_INTERVAL=0.2)

        def forgotten():
            return not Queue()["k0"].exists()

        wait_until(forgotten)
        self.assertEqual(len(self.notes("ran")), 1)
