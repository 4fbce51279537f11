import logging
import os
import signal
import time
from unittest import mock

from django.test import SimpleTestCase

from django_perfectqueue import logs
from django_perfectqueue.exceptions import TimeLimitError
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.payload.journal import read
from django_perfectqueue.worker.attempt import surroundings
from django_perfectqueue.worker.attempt.interrupts import SIGNAL, MainThreadInterrupter
from django_perfectqueue.worker.process.child import fork

from ...test_logs import task
from ...waiting import wait_until


class CaptureTests(SimpleTestCase):
    def setUp(self):
        self.root = logging.getLogger()
        others = self.root.handlers[:]
        self.root.handlers[:] = []
        self.addCleanup(self.root.handlers.extend, others)
        self.addCleanup(surroundings.end)
        printing = mock.patch.object(logging.lastResort, "handle")
        self.printed = printing.start()
        self.addCleanup(printing.stop)
        self.task = task(password="hunter22")

    def lines(self):
        return list(read(self.task.notes.text())) if self.task.notes else []

    def log(self, level, *message, name="shop.mail", **options):
        logger = logging.getLogger(name)
        before = logger.level
        logger.setLevel(logging.DEBUG)
        try:
            with logs.about(self.task):
                logger.log(level, *message, **options)
        finally:
            logger.setLevel(before)

    def test_what_is_logged_while_a_task_runs_is_kept(self):
        surroundings.begin("INFO")
        self.log(logging.INFO, "Sent %d to %s.", 3, "ann")
        self.log(logging.DEBUG, "Too low.")
        try:
            raise ValueError("no such file")
        except ValueError:
            self.log(logging.ERROR, "It failed.", exc_info=True)
        first, second = self.lines()
        self.assertEqual((first.level, first.source), ("INFO", "shop.mail"))
        self.assertEqual(first.text, "Sent 3 to ann.")
        self.assertRegex(
            second.text, r"^It failed\.\nValueError: no such file \(test_log_capture\.py:\d+\)$"
        )

    def test_the_next_record_is_the_same_tasks(self):
        surroundings.begin("INFO")
        with logs.about(self.task):
            for number in range(2):
                logging.getLogger("shop.mail").warning("Number %d.", number)
        self.assertEqual([line.text for line in self.lines()], ["Number 0.", "Number 1."])

    def test_outside_of_a_task_nothing_is_kept(self):
        surroundings.begin("INFO")
        logging.getLogger("shop.mail").warning("Nobody's.")
        self.assertEqual(self.lines(), [])

    def test_what_the_queue_and_django_tell_of_tasks_is_not_the_handlers(self):
        surroundings.begin("INFO")
        for name in ("django_perfectqueue.runner", "django_perfectqueue", "django.tasks"):
            self.log(logging.INFO, "Task finished.", name=name)
        self.log(logging.INFO, "Mine.", name="django_perfectqueue_reports")
        self.assertEqual([line.text for line in self.lines()], ["Mine."])

    def test_what_is_sensitive_is_not_kept(self):
        surroundings.begin("INFO")
        self.log(logging.INFO, "As %s.", "hunter22")
        self.assertEqual([line.text for line in self.lines()], [f"As {STARS}."])

    def test_it_is_there_once_and_not_at_all_with_none(self):
        for _time in range(2):
            surroundings.begin("INFO")
        self.log(logging.INFO, "Once.")
        self.assertEqual(len(self.lines()), 1)
        surroundings.begin(None)
        self.assertEqual(self.root.handlers, [])

    def test_what_nobody_else_handles_is_printed_as_without_it(self):
        """
        Python prints warnings where no handler is; ours must not pass for one.
        """
        surroundings.begin("ERROR")
        with mock.patch.object(logging.lastResort, "handle") as handle:
            self.log(logging.INFO, "Never printed.")
            self.log(logging.WARNING, "Printed.")
            self.root.addHandler(logging.NullHandler())
            self.log(logging.WARNING, "Handled.")
        self.assertEqual(
            [call.args[0].getMessage() for call in handle.call_args_list], ["Printed."]
        )
        self.assertEqual(self.lines(), [])

    def test_a_message_that_can_not_be_made_is_left_to_others(self):
        surroundings.begin("INFO")
        self.log(logging.INFO, "%d", "no number")
        self.assertEqual(self.lines(), [])

    def test_an_attempt_that_is_broken_off_while_it_logs_is_broken_off(self):
        surroundings.begin("INFO")
        self.addCleanup(signal.signal, SIGNAL, signal.getsignal(SIGNAL))
        interrupter = MainThreadInterrupter()
        interrupter.install()

        class Slow:
            def __str__(self):
                interrupter.interrupt("token", TimeLimitError("Now."))
                time.sleep(0)
                return ""

        def work():
            self.log(logging.INFO, Slow())
            interrupter.remind()
            time.sleep(0)

        with self.assertRaises(TimeLimitError):
            interrupter.call("token", work)

    def test_what_is_logged_to_read_the_data_does_not_go_round(self):
        surroundings.begin("INFO")

        def decode(text):
            logging.getLogger("shop.vault").warning("Opened.")
            return {"password": "hunter22"}

        with mock.patch("django_perfectqueue.payload.codecs.decode", decode):
            self.log(logging.INFO, "hunter22")
        self.assertEqual([line.text for line in self.lines()], [STARS])

    def test_a_process_that_a_handler_forks_keeps_nothing(self):
        surroundings.begin("INFO")

        def live():
            self.log(logging.INFO, "From the child.")
            os._exit(len(self.lines()))

        child, codes = fork(live), []
        wait_until(lambda: codes.append(child.reap()) or codes[-1] is not None)
        self.assertEqual(codes[-1], 0)
