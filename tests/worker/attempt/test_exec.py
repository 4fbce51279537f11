import os
import shlex
import signal

from django.test import tag

from django_perfectqueue.models import Attempt
from django_perfectqueue.queue import Queue

from ...waiting import wait_until
from ..workers import WorkerTestCase, is_alive

ECHO = """
cat
case $PERFECTQUEUE_TYPE in
  broken) echo "No page $2." >&2; exit 3 ;;
  later) exit 75 ;;
  hopeless) exit 127 ;;
esac
"""

WAIT = """
echo start $2 $$ >> $1/diary
while [ ! -e $1/gate ]; do sleep 0.02; done
echo end $2 $$ >> $1/diary
"""


def program(script, *arguments):
    return shlex.join(["/bin/sh", "-c", script, "sh", *arguments])


@tag("any-database")
class ExecTests(WorkerTestCase):
    def test_a_program_runs_tasks_of_every_type(self):
        for type_ in ("report", "echo", "tests.backend.jobs.add", "broken", "later", "hopeless"):
            Queue().submit(type_, type_, {"page": 7}, user="ann")
        Queue("other").submit("k1", "report")
        worker = self.burst("--exec", program(ECHO, "first"), "--processors", "2")

        for type_ in ("report", "echo", "tests.backend.jobs.add"):
            row = Queue()[type_].metadata()
            self.assertEqual((row.status, row.result), ("finished", {"page": 7}), type_)
        self.assertEqual(self.status("hopeless"), "failed")
        later = Queue()["later"].metadata()
        self.assertEqual((later.status, later.ticket.errors), ("scheduled", 0))
        self.assertEqual(self.status("broken"), "retrying")
        message = Attempt.objects.get(task__key="broken").message
        self.assertEqual(message, "'/bin/sh' ended with exit code 3: No page broken.")
        self.assertEqual(len(Queue("other")), 1)
        self.assertIn("Every task is run by: /bin/sh -c ", worker.output)

    def test_it_goes_on_through_a_restart_and_leaves_no_program_behind(self):
        """
        Leases last for five minutes here, and programs would run until the gate is open.
        """
        command = ("--exec", program(WAIT, str(self.folder)))
        worker = self.worker(*command, "--processor-type", "thread", "--concurrency", "2")
        self.submit("killed")
        killed = self.wait_for_note("start")
        os.kill(worker.processors()[-1], signal.SIGKILL)
        again = self.wait_for_note("start", 2)
        wait_until(lambda: not is_alive(killed))

        self.submit("cancelled")
        cancelled = self.wait_for_note("start", 3)
        Queue()["cancelled"].cancel_request()
        self.wait_for_status("cancelled", "cancelled")
        self.assertFalse(is_alive(cancelled))

        worker.send(signal.SIGUSR1)
        wait_until(lambda: worker.output.count("Every task is run by") == 2)
        self.submit("after")
        self.wait_for_note("start", 4)
        self.assertTrue(is_alive(again))

        worker.send(signal.SIGQUIT)
        self.assertEqual(worker.wait(), 0, worker.errors)
        self.assert_gone(worker)
        self.assertEqual(self.notes("end"), [])
        self.assertEqual({self.status("killed"), self.status("after")}, {"waiting"})
