"""What a submit says of the attempts of its task, through the doors that programs use."""

import json
import time
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

from django.test import TestCase, override_settings

from django_perfectqueue.application import Registry, handler
from django_perfectqueue.backoff import Exponential, Fixed, Steps, kept, restored
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.models import Attempt, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain
from django_perfectqueue.verdicts import Retry

from ..management.running import json_lines, refused, run, run_json, typed
from ..worker.forked import ForkedWorkerTestCase

NEVER = Fixed("40d", jitter=0)


@handler("attempts.two", max_attempts=2, backoff=NEVER)
def two(task):
    raise ValueError("as it should")


@handler("attempts.ruled", retry_on={ValueError: NEVER}, fail_on=OSError)
def ruled(task):
    raise OSError if task.data == "final" else ValueError


@handler("attempts.asks", max_attempts=2)
def asks(task):
    raise Retry("2m")


@handler("attempts.fails-async", max_attempts=2, backoff=NEVER)
async def fails_async(task):
    raise ValueError("as it should")


@handler("attempts.sleeps")
def sleeps(task):
    """Go on for ever, and let no interrupt end it."""
    while True:
        with suppress(BaseException):
            time.sleep(60)


def waits(key, type_="attempts.two", data=None, **options):
    """Submit a task and run it to its end; return the seconds between its attempts."""
    Queue().submit(key, type_, data, **options)
    return waits_of(key)


def waits_of(key):
    drain(ahead="30d", raise_errors=False)
    starts = Attempt.objects.filter(task__key=key).order_by("number")
    times = list(starts.values_list("started_at", flat=True))
    return [round((later - earlier) / timedelta(seconds=1)) for earlier, later in pairwise(times)]


EXACT = {"backoff": Steps(10, "1m", jitter=0)}


class AttemptsTests(TestCase):
    def test_it_says_how_many_and_how_long(self):
        self.assertEqual(waits("k", max_attempts=4, **EXACT), [10, 60, 60])
        self.assertEqual(Queue()["k"].metadata().status, "failed")

    def test_each_goes_alone(self):
        self.assertEqual(waits("k", backoff=Fixed(5, jitter=0)), [5])
        self.assertEqual(waits("l", max_attempts=1), [])
        self.assertEqual(Queue()["l"].metadata().status, "failed")

    def test_none_is_what_the_handler_says(self):
        Queue().submit("k", "attempts.two", max_attempts=None, backoff=None)
        self.assertIsNone(Queue()["k"].metadata().context)
        drain(raise_errors=False)
        self.assertEqual(Queue()["k"].metadata().status, "retrying")

    @override_settings(PERFECTQUEUE={"MAX_ATTEMPTS": 2})
    def test_more_than_the_setting_is_more(self):
        self.assertEqual(
            waits("k", "attempts.ruled", max_attempts=3, backoff=Fixed(7, jitter=0)), [7, 7]
        )

    def test_coroutines_keep_to_it(self):
        self.assertEqual(waits("k", "attempts.fails-async", max_attempts=3, **EXACT), [10, 60])

    def test_a_rule_that_ends_a_task_ends_it(self):
        self.assertEqual(waits("k", "attempts.ruled", "final", max_attempts=9), [])
        self.assertEqual(Queue()["k"].metadata().status, "failed")

    def test_a_wait_that_is_asked_for_goes_before_and_counts(self):
        self.assertEqual(waits("k", "attempts.asks", max_attempts=3, **EXACT), [120, 120])
        self.assertEqual(waits("l", "attempts.asks", max_attempts=1, **EXACT), [])

    def test_every_door_takes_it(self):
        queue, terms = Queue(), {"max_attempts": 3, **EXACT}
        one = {"type": "attempts.two", **terms}
        queue.submit_many([{"key": "many", **one}])
        with queue.batch("night") as batch:
            batch.submit("batch", "attempts.two", **terms)
        queue["many"].copy("copy")
        queue.submit("merged", "attempts.two", debounce=1, max_attempts=9)
        queue.submit("merged", "attempts.two", debounce=1, **terms)
        for key in ("many", "batch", "copy", "merged"):
            with self.subTest(key):
                self.assertEqual(waits_of(key), [10, 60])

    def test_the_context_goes_along(self):
        with override_settings(PERFECTQUEUE={"CONTEXT": ["django_perfectqueue.payload.language"]}):
            context = {"django_perfectqueue.payload.language": "de"}
            Queue().submit("k", "attempts.two", context=context, max_attempts=1)
            [task] = Queue().acquire(1)
        self.assertEqual(task.context, {**context, "max_attempts": 1})
        # What another task has said of its own attempts is not for this one.
        Queue().submit("l", "attempts.two", context={"max_attempts": 7})
        self.assertIsNone(Queue()["l"].metadata().context)

    def test_what_can_not_be_is_refused(self):
        class Own(Fixed):
            pass

        for options, message in (
            ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
            ({"max_attempts": True}, "max_attempts must be a whole number from 1"),
            ({"max_attempts": 2**31}, "max_attempts must be a whole number from 1"),
            ({"backoff": "soon"}, "backoff can't be 'soon': a step must be a timedelta"),
            ({"backoff": -1}, "backoff can't be -1: a step must be a timedelta"),
            ({"backoff": []}, "backoff can't be []: Steps needs at least one wait"),
            ({"backoff": {}}, "backoff can't be {}: a step must be"),
            ({"backoff": len}, "a step must be a timedelta, seconds or a span"),
            ({"backoff": Own(1)}, "must be one of Fixed, Exponential, Steps, not Own"),
            ({"backoff": [1] * 9000}, "The context (backoff) may have at most 8192 bytes"),
        ):
            with self.subTest(options), self.assertRaisesMessage(InvalidTaskError, message):
                Queue().submit("k", "attempts.two", **options)
        self.assertEqual(Task.objects.count(), 0)

    def test_a_row_that_another_program_has_spoilt_has_the_usual_wait(self):
        Queue().submit("k", "attempts.ruled", max_attempts=2, backoff=1)
        Task.objects.update(context='{"max_attempts": 2, "backoff": ["os.system", {}]}')
        with self.assertLogs("django_perfectqueue.runner", "ERROR"):
            [wait] = waits_of("k")
        self.assertGreater(wait, 0)
        self.assertIn("max_attempts", run("pq_task", "show", "k", "--json"))


class WorkerTests(ForkedWorkerTestCase):
    def ends_after(self, most, processors):
        self.worker(Registry, PROCESSOR_TYPE=processors)
        for type_ in ("attempts.two", "attempts.fails-async"):
            key = f"{type_}-{processors}"
            self.submit(key, type_, max_attempts=most, backoff=Fixed(0))
            self.wait_for_status(key, "failed")
            self.assertEqual(Attempt.objects.filter(task__key=key).count(), most)

    def test_processes_keep_to_it(self):
        self.ends_after(3, "process")

    def test_threads_keep_to_it(self):
        self.ends_after(3, "thread")

    def test_event_loops_keep_to_it(self):
        self.ends_after(3, "async")

    def test_an_attempt_that_was_killed_counts(self):
        self.worker(Registry, TASK_KILL_WAIT=0.2)
        self.submit("k", "attempts.sleeps", time_limit=0.2, max_attempts=2, backoff=Fixed(0))
        self.wait_for_status("k", "failed")
        self.assertEqual(Attempt.objects.filter(task__key="k").count(), 2)


class FormTests(TestCase):
    def test_a_backoff_is_the_same_after_it_was_kept(self):
        for backoff in (
            Fixed(5, jitter=0),
            Exponential("1m", 600, 3, jitter=0.5),
            Steps(1, "10s", "5m"),
        ):
            with self.subTest(backoff):
                again = restored(*json.loads(json.dumps(kept(backoff))))
                self.assertIs(type(again), type(backoff))
                for errors in (1, 2, 3, 50):
                    self.assertEqual(again.usual(errors), backoff.usual(errors))
                self.assertEqual((again.jitter, again.longest), (backoff.jitter, backoff.longest))

    def test_waits_may_be_written_in_short(self):
        for short, steps in (
            ("30s", [30]),
            ("10s, 1m,5m", [10, 60, 300]),
            ([1, timedelta(minutes=1)], [1, 60]),
            (2.5, [2.5]),
        ):
            with self.subTest(short):
                self.assertEqual(list(restored(*kept(short)).waits), steps)


class CommandTests(TestCase):
    def test_the_command_gives_and_shows_it(self):
        run("pq_submit", "k", "attempts.two", "--max-attempts", "3", "--backoff", "10s,1m")
        shown = run("pq_task", "show", "k")
        self.assertRegex(shown, r"most attempts +3")
        self.assertRegex(shown, r"backoff +Steps\(jitter=0.25, waits=\[10.0, 60.0\]\)")
        [facts] = run_json("pq_task", "show", "k")
        self.assertEqual(facts["max_attempts"], 3)
        self.assertEqual(len(waits_of("k")), 2)
        tasks = json_lines(
            {"key": "m", "type": "attempts.two", "max_attempts": 4, "backoff": [1, "5s"]}
        )
        with typed(tasks):
            run("pq_submit", "--file", "-")
        self.assertEqual(len(waits_of("m")), 3)
        with typed(json_lines({"key": "n", "type": "t", "max_attempts": 0})):
            self.assertIn("Line 1: max_attempts must", refused(self, "pq_submit", "--file", "-"))
        self.assertIn("a step must be", refused(self, "pq_submit", "l", "t", "--backoff", "soon"))
