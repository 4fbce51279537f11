import json

from django_perfectqueue.queue import Queue

from ..worker.workers import WorkerTestCase
from .running import refused


class StressTests(WorkerTestCase):
    def stress(self, *arguments):
        data = json.dumps({"diary": str(self.diary), "until": str(self.gate)})
        worker = self.worker(*arguments[:1], data, *arguments[1:], command="pq_stress")
        self.assertEqual(worker.wait(60), 0, worker.errors)
        return worker.output

    def test_tasks_of_many_users_run_are_measured_and_deleted(self):
        lines = self.stress("echo", "--tasks", "40", "--users", "3").splitlines()

        self.assertEqual(lines[0], "40 tasks: 40 finished")
        for line, words in zip(
            lines[1:], ("submitted in ", "run in ", "waited ", "took "), strict=True
        ):
            self.assertIn(words, line)
        self.assertFalse(Queue("stress").list().exists())

    def test_a_program_gets_the_figures_as_json(self):
        reported = json.loads(self.stress("echo", "--tasks", "4", "--keep", "--json"))

        self.assertEqual((reported["tasks"], reported["ended"]), (4, {"finished": 4}))
        self.assertEqual([*reported["waited"]], ["p50", "p95", "p99", "max"])
        self.assertGreaterEqual(reported["waited"]["max"], reported["waited"]["p50"])
        self.assertEqual(
            {task.user for task in Queue("stress").list()}, {str(user) for user in range(4)}
        )

    def test_tasks_that_do_not_end_are_counted_and_deleted(self):
        self.assertEqual(
            self.stress("nobody", "--tasks", "2").splitlines()[0], "2 tasks: 2 scheduled"
        )
        self.assertFalse(Queue("stress").list().exists())

    def test_a_queue_with_tasks_is_left_alone(self):
        Queue("mail").submit("k1", "echo")
        self.assertIn(
            "Queue 'mail' has tasks", refused(self, "pq_stress", "echo", "--queue", "mail")
        )
        self.assertTrue(Queue("mail").list().exists())

    def test_bad_data_are_refused(self):
        self.assertIn("The data are not JSON", refused(self, "pq_stress", "echo", "{bad"))
