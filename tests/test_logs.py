import json
import logging
from unittest import mock
from urllib.parse import quote, quote_plus

from django.test import SimpleTestCase

from django_perfectqueue.lib.running import running
from django_perfectqueue.logs import FIELDS, Masked, TaskContext
from django_perfectqueue.payload.context import STARS
from django_perfectqueue.queue import AcquiredTask

from .factories import lease

SECRET = "4711-0815"


def task(**data):
    facts = {"queue": "reports", "key": "k1", "type": "report.draw", "user": "ann"}
    payload = json.dumps(data or {"card": SECRET})
    held = lease(attempt=3, errors=1, payload=payload, **facts)
    return AcquiredTask(held, worker="app1:17")


def logged(message="Hello.", *args, error=None, **extra):
    """Return a record as a handler gets it."""
    trouble = (type(error), error, error.__traceback__) if error else None
    logger = logging.getLogger("shop.mail")
    return logger.makeRecord(
        logger.name, logging.ERROR, __file__, 1, message, args, trouble, extra=extra
    )


class LogTestCase(SimpleTestCase):
    def run_task(self, **data):
        token = running.set(task(**data))
        self.addCleanup(running.reset, token)


class ContextTests(LogTestCase):
    def test_a_record_tells_the_task_that_runs(self):
        self.run_task()
        record = logged()
        self.assertTrue(TaskContext().filter(record))
        reported = [getattr(record, name) for name in FIELDS]
        self.assertEqual(reported, ["reports", "k1", "report.draw", "ann", 2, "app1:17"])

    def test_outside_of_a_task_it_is_empty(self):
        """
        A format with %(pq_key)s must not fail there.
        """
        record = logged()
        TaskContext().filter(record)
        self.assertEqual([getattr(record, name) for name in FIELDS], [""] * len(FIELDS))

    def test_what_was_reported_where_it_was_logged_stays(self):
        """
        Behind a queue handler the record is seen again, in another thread.
        """
        self.run_task()
        record = logged()
        TaskContext().filter(record)
        running.set(None)
        TaskContext().filter(record)
        self.assertEqual(record.pq_key, "k1")

    def test_it_stands_in_a_logging_setting(self):
        made = logging.config.DictConfigurator({"version": 1}).configure_filter(
            {"()": "django_perfectqueue.logs.TaskContext"}
        )
        self.assertIsInstance(made, TaskContext)


class PlainTests(LogTestCase):
    def test_no_data_is_reported_with_a_task(self):
        """
        Who logs a task, or sends the locals of a traceback somewhere, shows no payload.
        """
        self.run_task()
        held = task()
        self.assertEqual(held.data, {"card": SECRET})
        line = logging.Formatter().format(logged("%r %r", held, held.lease, task=held))
        self.assertNotIn(SECRET, line)
        self.assertIn("k1", line)

    def test_a_fresh_project_sees_errors_though_it_has_no_handler(self):
        """
        Django's own settings handle its logger only: what Python does without one is enough.
        """
        with mock.patch.object(logging.lastResort, "handle") as handle:
            logger = logging.Logger("alone")
            for level in (logging.INFO, logging.WARNING, logging.ERROR):
                logger.log(level, "Task.")
        levels = [call.args[0].levelname for call in handle.call_args_list]
        self.assertEqual(levels, ["WARNING", "ERROR"])


class MaskedTests(LogTestCase):
    def masked(self, *message, **given):
        record = logged(*message, **given)
        self.assertTrue(Masked().filter(record))
        return record

    def raised(self):
        try:
            raise ValueError("bad hunter22")
        except ValueError as error:
            return error

    def test_stars_stand_for_what_is_sensitive_in_the_data(self):
        self.run_task(password="hunter22", user="ann")
        record = self.masked("%s is %s.", "hunter22", "ann", login={"token": 7}, note="hunter22")
        self.assertEqual(record.getMessage(), f"{STARS} is ann.")
        self.assertEqual((record.login, record.note), ({"token": STARS}, STARS))

    def test_what_is_nested_too_deep_to_be_looked_through_is_stars(self):
        self.run_task(password="hunter22")
        deep = ["hunter22"]
        for _layer in range(3000):
            deep = [deep]
        self.assertEqual(self.masked("Read.", rows=deep).rows, STARS)

    def test_a_traceback_has_stars_and_the_exception_is_left(self):
        """
        Who reports errors is given the exception itself, to group and to show it.
        """
        self.run_task(password="hunter22")
        error = self.raised()
        record = self.masked(error=error)
        self.assertIs(record.exc_info[1], error)
        line = logging.Formatter().format(record)
        self.assertIn(f"ValueError: bad {STARS}", line)
        self.assertIn("in raised", line)
        self.assertNotIn("hunter22", line)

    def test_what_holds_nothing_sensitive_is_left_as_it_is(self):
        for data in ({"user": "ann"}, {"password": "else-where"}):
            self.run_task(**data)
            record = self.masked("As %s.", "ann", error=self.raised())
            self.assertEqual((record.msg, record.args), ("As %s.", ("ann",)))
            self.assertIsNone(record.exc_text)

    def test_outside_of_a_task_nothing_is_masked(self):
        self.assertEqual(self.masked("hunter22").getMessage(), "hunter22")

    def test_a_secret_is_found_as_python_json_and_urls_spell_it(self):
        """
        Messages of HTTP libraries quote the URL, and errors the repr of what they were given.
        """
        secret = "a'b\n/ä c&d"
        self.run_task(token=secret)
        for message in (
            secret,
            f"{secret!r}",
            json.dumps(secret),
            quote(secret),
            quote_plus(secret),
        ):
            with self.subTest(message):
                self.assertIn(STARS, self.masked("%s", message).getMessage())

    def test_a_message_that_can_not_be_made_passes(self):
        self.run_task(password="hunter22")
        self.assertEqual(self.masked("%d", "x").args, ("x",))
