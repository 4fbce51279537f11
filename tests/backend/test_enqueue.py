import pickle
import uuid
from dataclasses import dataclass
from datetime import timedelta
from unittest import skipUnless

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.connection import ConnectionDoesNotExist

from . import case, jobs  # isort: skip
from django_perfectqueue import backend, compat
from django_perfectqueue.application import Dispatch
from django_perfectqueue.backend import DummyBackend, PerfectQueueBackend, QueueTask
from django_perfectqueue.compat import InvalidTask, TaskResultDoesNotExist, task_backends
from django_perfectqueue.exceptions import AlreadyExistsError, InvalidTaskError
from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules.terms import signals_of
from django_perfectqueue.test import drain
from django_perfectqueue.worker import discovery


class Derived(PerfectQueueBackend):
    """What a project may make of the backend."""


class EnqueueTests(TestCase):
    def test_a_call_becomes_a_row(self):
        result = jobs.later.using(run_after=case.LATER, priority=-3).enqueue("x")
        row = Queue()[result.id].metadata()

        self.assertEqual(str(uuid.UUID(result.id, version=4)), result.id)
        self.assertEqual((row.type, row.priority), ("tests.backend.jobs.later", -3))
        self.assertEqual((row.run_at, row.status), (case.LATER, "scheduled"))
        self.assertEqual((row.data["args"], row.data["kwargs"]), (["x"], {}))

    def test_what_is_read_back_equals_what_was_returned(self):
        for task in (
            jobs.add,
            jobs.later.using(run_after=case.LATER, priority=7),
            jobs.twice.using(max_attempts=9, time_limit=5, user="ann", limits=["mail"]),
            jobs.nothing.using(expires_at=timedelta(minutes=5), expected_at=case.LATER, key="mine"),
        ):
            with self.subTest(task):
                result = task.enqueue(1, 2)
                self.assertEqual(task.get_result(result.id), result)
                self.assertEqual(pickle.loads(pickle.dumps(result.args)), [1, 2])

    def test_limits_are_filled_from_the_arguments(self):
        for args, kwargs in (((17,), {}), ((), {"account": 17, "amount": 2})):
            result = jobs.charge.enqueue(*args, **kwargs)
            self.assertEqual(Queue()[result.id].metadata().limits, "each:ann,stripe:17")
        with Queue().batch("b", user="eve") as batch:
            result = jobs.charge.using(batch=batch, user=None).enqueue(17)
        self.assertEqual(Queue()[result.id].metadata().limits, "each:eve,stripe:17")
        result = jobs.charge.using(limits=["a{b}"]).enqueue(17)
        self.assertEqual(Queue()[result.id].metadata().limits, "a{b}")
        for args in (([],), (None,), ()):
            with self.subTest(args), self.assertRaises(InvalidTask):
                jobs.charge.enqueue(*args)

    def test_tasks_join_a_batch_with_all_their_words(self):
        with Queue().batch("july", user="ann") as batch:
            limited = jobs.add.using(batch=batch, limits=["mail"], priority=4)
            limited.enqueue(1, 2)
            limited.enqueue_many([((3, 4), {}), ((5, 6), {})])
            jobs.add.using(batch=batch, user="bob").enqueue(7, 8)
        rows = Task.objects.order_by("id")

        self.assertEqual([row.user for row in rows], ["ann", "ann", "ann", "bob"])
        self.assertEqual([(row.limits, row.priority) for row in rows[:3]], [("mail", 4)] * 3)
        drain()
        self.assertEqual(sorted(value for _key, value in batch.results()), [3, 7, 11, 15])

    def test_a_batch_in_another_queue_is_refused(self):
        with Queue("mail").batch("july") as batch:
            for enqueue in (
                lambda task: task.enqueue(1, 2),
                lambda task: task.enqueue_many([((1, 2), {})]),
            ):
                with self.assertRaisesMessage(InvalidTask, "is in queue 'mail'"):
                    enqueue(jobs.add.using(batch=batch))

        self.assertFalse(Task.objects.exists())

    def test_a_key_is_free_as_soon_as_its_task_starts(self):
        unique = jobs.add.using(key="sum", unique="waiting")
        first = unique.enqueue(1, 2)
        with self.assertRaises(AlreadyExistsError):
            unique.enqueue(1, 2)
        self.assertEqual(unique.using(on_conflict="ignore").enqueue(3, 4).id, first.id)
        running = Queue().poll()
        second = unique.enqueue(5, 6)
        self.assertNotEqual(second.id, first.id)
        self.assertEqual(jobs.add.get_result(second.id), second)
        running.finish(3)
        self.assertEqual(jobs.add.get_result(first.id).return_value, 3)
        self.assertEqual(unique.using(on_conflict="ignore").enqueue(3, 4).id, second.id)

    def test_a_key_is_made_of_arguments(self):
        once = jobs.add.using(unique_by=["b"])
        first = once.enqueue(1, 2)
        with self.assertRaises(AlreadyExistsError):
            once.enqueue(3, b=2)
        self.assertEqual(once.using(on_conflict="ignore").enqueue(b=2, a=0).id, first.id)
        for by in (True, []):
            self.assertNotEqual(jobs.add.using(unique_by=by, unique_for="1h").enqueue(1, by).id, "")
        with self.assertRaises(AlreadyExistsError):
            jobs.add.using(unique_by=True).enqueue(b=[], a=1)
        jobs.number.using(unique_by=True).enqueue()
        for wrong in ({"unique_by": ["c"]}, {"unique_by": True, "key": "a"}, {"unique": "soon"}):
            with self.subTest(wrong), self.assertRaises(InvalidTask):
                jobs.add.using(**wrong).enqueue(1, 2)
        with self.assertRaisesMessage(InvalidTask, "enqueue_many"):
            jobs.add.using(unique="live", key="a").enqueue_many([((1, 2), {})])
        once.enqueue_many([((1, 7), {}), ((1, 8), {})])
        with self.assertRaises(AlreadyExistsError):
            once.enqueue_many([((9, 8), {})])

    def test_enqueues_are_merged(self):
        merged = jobs.add.using(unique_by=["a"], debounce="2m", at_most=timedelta(minutes=10))
        for number in range(3):
            merged.enqueue(1, number)
        merged.using(leading=True).enqueue_many([((2, 3), {}), ((2, 4), {}), ((2, 5), {})])
        drain()
        rows = sorted(Task.objects.order_by("pk"), key=lambda row: row.data["args"][0])
        self.assertEqual([row.merged for row in rows], [3, 1, 2])
        self.assertEqual([row.data["args"] for row in rows], [[1, 2], [2, 3], [2, 5]])
        self.assertEqual(jobs.add.get_result(rows[1].key).return_value, 5)
        self.assertEqual(rows[2].status, "scheduled")
        for wrong in ({"debounce": "soon"}, {"leading": 7}, {"at_most": "10m"}):
            with self.subTest(wrong), self.assertRaises(InvalidTask):
                jobs.add.using(key="a", **wrong).enqueue(1, 2)

    def test_what_goes_by_the_key_is_refused_without_one(self):
        for word in ({"debounce": "2m"}, {"unique": "waiting"}, {"unique_for": "1h"}):
            with self.subTest(word), self.assertRaisesMessage(InvalidTask, "give key or unique_by"):
                jobs.add.using(**word).enqueue(1, 2)

    def test_a_batch_is_not_its_name(self):
        with self.assertRaisesMessage(InvalidTask, "batch must be a batch"):
            jobs.add.using(batch="nightly").enqueue(1, 2)

    def test_a_time_that_is_none_is_refused(self):
        for wrong in (3, timedelta(hours=1), "1h"):
            with self.subTest(wrong), self.assertRaisesMessage(InvalidTask, "a time with a zone"):
                jobs.add.using(run_after=wrong).enqueue(1, 2)

    def test_a_task_waits_for_others_given_by_their_results(self):
        first = jobs.add.enqueue(1, 2)
        many = jobs.add.enqueue_many([((3, 4), {}), ((5, 6), {})])
        task = jobs.number.using(after=[first, *many], if_failed="run")
        last = task.enqueue()
        other = Queue("other").submit("k1", "report")
        jobs.nothing.using(after=[other, last.id]).enqueue()

        self.assertEqual(Queue()[last.id].metadata().status, "blocked")
        self.assertEqual(list(Queue()[last.id].parents), [one.id for one in (first, *many)])
        self.assertEqual(drain(types=[jobs.add, jobs.number]).keys[-1], last.id)

    def test_a_wrong_task_to_wait_for_is_refused(self):
        for options, words in (
            ({"after": ["nope"]}, "no task with the key 'nope'"),
            ({"after": [1.5]}, "keys, tasks, results and ids"),
            ({"if_failed": "stop"}, "'wait', 'cancel', 'run'"),
        ):
            with self.subTest(options), self.assertRaisesMessage(InvalidTask, words):
                jobs.add.using(**options).enqueue(1, 2)

    @skipUnless(hasattr(compat.Task, "_reconstruct"), "Tasks can be pickled since Django 6.1.")
    def test_a_task_and_its_result_can_be_pickled(self):
        result = jobs.patient.using(user="ann").enqueue("x")
        self.assertEqual(pickle.loads(pickle.dumps(result)), result)
        self.assertEqual(pickle.loads(pickle.dumps(jobs.report)), jobs.report)

    async def test_it_can_be_awaited(self):
        result = await jobs.add.aenqueue(1, 2)
        self.assertEqual(await jobs.add.aget_result(result.id), result)
        await result.arefresh()
        self.assertEqual(result.status, "READY")
        results = await jobs.add.aenqueue_many([((1, 2), {}), ((3, 4), {})])
        self.assertEqual(len({one.id for one in results}), 2)

    def test_ids_are_made_by_the_function_of_the_options(self):
        """
        As django-tasks-db does.
        """
        for function in ("uuid.uuid1", uuid.uuid1):
            with override_settings(TASKS=case.tasks_with(OPTIONS={"id_function": function})):
                result = jobs.add.enqueue(1, 2)
                self.assertEqual(uuid.UUID(result.id).version, 1)
                self.assertEqual(jobs.add.using(key="mine").enqueue(1, 2).id, "mine")
            self.assertEqual(jobs.add.get_result(result.id), result)
            Queue().clear()
        tasks, words = case.tasks_with(OPTIONS={"id_function": int}), "a UUID or a text, not 0"
        with override_settings(TASKS=tasks), self.assertRaisesMessage(InvalidTask, words):
            jobs.add.enqueue(1, 2)

    def test_it_is_rolled_back_with_the_callers_transaction(self):
        with transaction.atomic():
            result = jobs.add.enqueue(1, 2)
            self.assertTrue(Queue()[result.id].exists())
            transaction.set_rollback(True)
        with self.assertRaises(TaskResultDoesNotExist):
            jobs.add.get_result(result.id)

    def test_reading_costs_one_statement_and_enqueuing_what_a_submit_does(self):
        """
        django-tasks-db takes one for each.
        """
        expected = {"postgresql": 1, "sqlite": 2, "mysql": 1}[connection.vendor]
        with CaptureQueriesContext(connection) as enqueued:
            result = jobs.add.enqueue(1, 2)
        self.assertEqual(statements(enqueued), expected)
        with self.assertNumQueries(1):
            jobs.add.get_result(result.id)
        with self.assertNumQueries(1):
            result.refresh()

    def test_many_cost_no_more_statements_than_one(self):
        with CaptureQueriesContext(connection) as few:
            jobs.add.enqueue_many([((1, 2), {})] * 2)
        with CaptureQueriesContext(connection) as many:
            results = jobs.add.enqueue_many([((1, 2), {})] * 100)
        self.assertEqual(statements(many), statements(few))
        self.assertEqual(len({result.id for result in results}), 100)

    def test_many_are_stored_or_none(self):
        jobs.report.enqueue("bob")
        with case.listening("task_enqueued") as heard, self.assertRaises(AlreadyExistsError):
            jobs.report.enqueue_many([(("ann",), {}), (("bob",), {})])
        self.assertFalse(Queue()["report-ann"].exists())
        self.assertEqual(heard, [])

    def test_the_signal_comes_once_for_each(self):
        with case.listening("task_enqueued") as heard:
            jobs.add.enqueue(1, 2)
            jobs.add.enqueue_many([((1, 2), {}), ((3, 4), {})])
        self.assertEqual(heard, [("task_enqueued", PerfectQueueBackend, "READY")] * 3)

    def test_the_log_tells_what_was_enqueued(self):
        with self.assertLogs(case.LOGGER, "DEBUG") as log:
            result = jobs.add.enqueue(1, 2)
        self.assertIn(f"id={result.id} path=tests.backend.jobs.add enqueued", log.output[0])

    def test_what_can_not_be_stored_is_refused_in_the_contracts_words(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            jobs.add.enqueue(case.LATER, 2)
        with self.assertRaisesMessage(InvalidTask, "can't be written as JSON"):
            jobs.add.enqueue(float("nan"), 2)
        with (
            override_settings(PERFECTQUEUE={"MAX_PAYLOAD_SIZE": 1000}),
            self.assertRaisesMessage(InvalidTask, "at most 1000 bytes"),
        ):
            jobs.add.enqueue("x" * 1000, 2)
        self.assertFalse(Task.objects.exists())


def statements(captured):
    """Return how many there were, but for the look at the limits that is due now and then."""
    return sum("perfectqueue_limit" not in query["sql"] for query in captured)


class MergedTests(TransactionTestCase):
    def test_a_result_is_that_of_the_run_that_its_enqueue_is_merged_into(self):
        merged = jobs.add.using(key="sum", debounce="2m")
        with transaction.atomic():
            first = merged.using(on_conflict="ignore").enqueue(1, 2)
        self.assertEqual(jobs.add.get_result(first.id).args, [1, 2])
        drain(ahead="5m")
        [second] = merged.enqueue_many([((5, 6), {})])
        self.assertEqual(jobs.add.get_result(second.id).args, [5, 6])
        with transaction.atomic():
            merged.using(on_conflict="ignore").enqueue(7, 8)
        self.assertEqual(jobs.add.get_result(second.id).args, [7, 8])


class WordTests(TestCase):
    """What ``@task`` and ``using()`` know beside Django's own words."""

    def test_a_user_and_a_key_can_be_made_of_the_arguments(self):
        result = jobs.report.enqueue("ann")
        row = Queue()["report-ann"].metadata()
        self.assertEqual((result.id, row.user, row.limits), ("report-ann", "ann", "reports"))
        self.assertAlmostEqual((row.expires_at - row.created_at).total_seconds(), 3600, delta=60)

    def test_using_changes_them_for_one_call(self):
        jobs.report.using(user="eve", key="once", limits=()).enqueue("ann")
        row = Queue()["once"].metadata()
        self.assertEqual((row.user, row.limits), ("eve", ""))

    def test_a_sequence_is_a_name_or_made_of_the_arguments(self):
        first = jobs.add.using(sequence="2").enqueue(1, 2)
        made = jobs.add.using(sequence=lambda args, kwargs: str(args[0]))
        results = [first, made.enqueue(2, 2), made.enqueue(3, 2)]

        due = {task.key for task in Queue().acquire(9)}
        self.assertEqual([result.id in due for result in results], [True, False, True])

    def test_a_key_that_is_taken_is_refused_ignored_or_replaced(self):
        first = jobs.report.enqueue("ann")
        with self.assertRaises(AlreadyExistsError):
            jobs.report.enqueue("ann")
        with case.listening("task_enqueued") as heard:
            again = jobs.report.using(on_conflict="ignore").enqueue("ann")
        self.assertEqual((again.enqueued_at, heard), (first.enqueued_at, []))
        new = jobs.report.using(on_conflict="replace").enqueue("ann")
        self.assertEqual(jobs.report.get_result("report-ann").enqueued_at, new.enqueued_at)
        with case.listening("task_enqueued") as heard:
            jobs.report.using(on_conflict="ignore").enqueue("bob")
        self.assertEqual(len(heard), 1)

    def test_a_value_that_will_not_do_is_refused(self):
        for words, message in (
            ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, not 0"),
            ({"time_limit": -1}, "time_limit must be a number of seconds above 0"),
            ({"kill_wait": -1}, "kill_wait must be a number of seconds of at least 0"),
            ({"kill_wait": False}, "kill_wait must be a number of seconds of at least 0"),
            ({"backoff": 5}, "backoff must be a function"),
            ({"user": 5}, "user must be a text"),
            ({"key": ""}, "key must be a text"),
            ({"limits": "mail"}, "limits must be a list"),
            ({"on_conflict": "no"}, "on_conflict must be"),
            ({"atomic": 1}, "atomic must be True or False, not 1"),
            ({"signals": {"approved": 1}}, "signals must be a dict from names of signals"),
        ):
            with self.subTest(words), self.assertRaisesMessage(InvalidTask, message):
                jobs.add.using(**words)

    def test_a_coroutine_can_not_be_atomic(self):
        with self.assertRaisesMessage(InvalidTask, "A coroutine can't be atomic"):
            jobs.later.using(atomic=True)

    def test_what_the_queue_refuses_is_an_invalid_task(self):
        for words in ({"expires_at": "soon"}, {"user": "*"}, {"limits": ["a,b"]}):
            with self.subTest(words), self.assertRaises(InvalidTask):
                jobs.add.using(**words).enqueue(1, 2)

    def test_a_row_can_not_keep_a_function(self):
        with self.assertRaisesMessage(InvalidTask, "backoff can't be changed by using()"):
            jobs.add.using(backoff=lambda exception, result: 1).enqueue(1, 2)

    def test_signals_belong_to_the_definition(self):
        self.assertEqual({**signals_of(jobs.approve.module_path)}, {"approved": "Approve"})
        self.assertEqual(signals_of(jobs.add.module_path), {})
        with self.assertRaisesMessage(InvalidTask, "signals can't be changed by using()"):
            jobs.add.using(signals={"approved": "Approve"}).enqueue(1, 2)

    def test_a_word_that_there_is_not(self):
        reported = "Did you mean 'max_attempts'?"
        for name in ("max_attempt", "max_retries", "retries"):
            with self.subTest(name):
                with self.assertRaisesMessage(TypeError, reported):
                    jobs.add.using(**{name: 5})
                with self.assertRaisesMessage(TypeError, reported):
                    compat.task(**{name: 5})(jobs.add.func)

    def test_the_words_of_celery(self):
        words = {"countdown": "run_after", "rate_limit": "limits", "task_id": "key"}
        for name, ours in {**words, "bind": "takes_context"}.items():
            with self.subTest(name), self.assertRaises(TypeError) as caught:
                compat.task(**{name: 5})(jobs.add.func)
            self.assertIn(f"Did you mean '{ours}'? There is after,", str(caught.exception))

    def test_a_task_is_no_type(self):
        path = "tests.backend.jobs.add"
        with self.assertRaisesMessage(InvalidTaskError, f"of Django's tasks: give '{path}'."):
            Queue().submit("k1", jobs.add)


class DecoratorTests(TestCase):
    def test_what_type_checkers_know_is_what_runs(self):
        known = backend.task(max_attempts=2, user="ann")(jobs.nothing.func)
        self.assertIsInstance(known, backend.QueueTask)
        known.using(user="bob").enqueue(1)
        self.assertEqual((known.max_attempts, Task.objects.get().user), (2, "bob"))


class BackendTests(TestCase):
    def test_it_does_all_that_the_contract_knows(self):
        backend = task_backends["default"]
        for flag in ("defer", "async_task", "get_result", "priority"):
            with self.subTest(flag):
                self.assertIs(getattr(backend, f"supports_{flag}"), True)

    def test_an_id_that_is_none(self):
        for nothing in ("123", "", "\x00", "\ud800", "x" * 300, 5, None):
            with self.subTest(nothing), self.assertRaises(TaskResultDoesNotExist):
                jobs.add.get_result(nothing)

    def test_a_task_of_another_kind_has_no_result(self):
        Queue().submit("k1", "report", {})
        with self.assertRaisesMessage(TaskResultDoesNotExist, "no task of Django"):
            jobs.add.get_result("k1")

    @override_settings(TASKS=case.tasks_with(QUEUES=["mail"]))
    def test_a_definition_that_other_settings_allowed_is_refused_each_time(self):
        for _ in range(2):
            with self.assertRaisesMessage(InvalidTask, "Queue 'default' is not valid"):
                jobs.add.enqueue(1, 2)

    @override_settings(TASKS=case.tasks_with(QUEUES=[]))
    def test_any_queue_may_be_named_where_queues_is_empty(self):
        results = [jobs.add.using(queue_name=name).enqueue(1, 2) for name in ("q1", "q3", "q2")]
        for result in results:
            self.assertEqual(jobs.add.get_result(result.id), result)
        with self.assertNumQueries(5):
            jobs.add.get_result(results[0].id)

    @override_settings(TASKS={"default": {"BACKEND": f"{__name__}.Derived"}})
    def test_it_works_when_it_is_subclassed(self):
        with case.listening("task_enqueued") as heard:
            result = jobs.add.enqueue(1, 2)
        self.assertEqual(heard, [("task_enqueued", Derived, "READY")])
        self.assertEqual(jobs.add.get_result(result.id), result)

    @override_settings(
        TASKS={
            **case.tasks_with(),
            "mail": {"BACKEND": case.BACKEND, "QUEUES": ["mail"]},
        }
    )
    def test_several_aliases_may_share_a_database(self):
        result = jobs.add.using(backend="mail", queue_name="mail").enqueue(1, 2)
        self.assertEqual(Queue("mail").list().count(), 1)
        self.assertEqual(result.backend, "mail")
        self.assertEqual(task_backends["mail"].get_result(result.id), result)
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)

    @override_settings(
        TASKS={
            **case.tasks_with(),
            "mail": {
                "BACKEND": case.BACKEND,
                "QUEUES": ["mail", "more"],
                "OPTIONS": {"database": "elsewhere"},
            },
        }
    )
    def test_each_alias_may_have_a_database_of_its_own(self):
        task = jobs.add.using(backend="mail", queue_name="mail")
        self.assertEqual(task_backends["mail"].target(task), Queue("mail", using="elsewhere"))
        for asked in (lambda: task.enqueue(1, 2), lambda: task.get_result("k1")):
            with self.assertRaises(ConnectionDoesNotExist):
                asked()
        for using, queues in (("default", ["default"]), ("elsewhere", ["mail", "more"])):
            self.assertEqual(discovery.with_django_tasks(Dispatch, using)[1], queues)


class TolerantTests(SimpleTestCase):
    """Modules with our words can be imported under Django's own backends."""

    @override_settings(
        TASKS={
            "default": {"BACKEND": "django_perfectqueue.backend.ImmediateBackend"},
            "dummy": {"BACKEND": "django_perfectqueue.backend.DummyBackend"},
        }
    )
    def test_the_words_do_nothing(self):
        task = compat.task(max_attempts=5, user="ann", key="k")(jobs.add.func)
        self.assertEqual(task.enqueue(1, 2).return_value, 3)
        self.assertEqual(task.enqueue_many([((1, 2), {})])[0].return_value, 3)
        kept = task.using(backend="dummy", max_attempts=2)
        kept.enqueue(1, 2)
        async_to_sync(kept.aenqueue_many)([((3, 4), {})])
        self.assertIsInstance(kept.get_backend(), DummyBackend)
        self.assertEqual([one.args for one in kept.get_backend().results], [[1, 2], [3, 4]])


@dataclass(frozen=True, slots=True, kw_only=True)
class OfShop(QueueTask):
    """A task of a project's own class, with a word of its own."""

    shop: str = ""


class SubclassTests(SimpleTestCase):
    def test_a_subclass_may_have_fields_of_its_own(self):
        made = OfShop(
            priority=0, func=jobs.add.func, backend="default", queue_name="default",
            run_after=None, shop="north", max_attempts=3,
        )  # fmt: skip
        self.assertEqual((made.shop, made.max_attempts), ("north", 3))
        self.assertEqual(made.using(shop="south").shop, "south")
        with self.assertRaisesMessage(TypeError, "Did you mean 'shop'"):
            made.using(shopp="south")
