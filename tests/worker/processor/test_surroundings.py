"""Each task has surroundings of its own, and leaves none: in all types of processors."""

import asyncio
import contextlib
import functools
import itertools
import os
import threading
from contextvars import copy_context

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection, connections, transaction
from django.test import override_settings, tag

from django_perfectqueue.application import Application, Decider
from django_perfectqueue.models import Task
from django_perfectqueue.payload import Provider
from django_perfectqueue.queue import Queue

from .. import tenants
from ..crews import ConcurrentTestCase
from ..tenants import TENANTS, alook, look, seen, tenant

TYPES = ("process", "thread", "async")
HERE = "tests.worker.processor.test_surroundings"
SESSION, BLOCK = "tests.worker.tenants.in_session", "tests.worker.tenants.in_block"
VARIABLE = "tests.worker.tenants.tenant"
ACTS = (None, "submit", "leave", "raise", "sleep", "leave open")

events = []


def captured_event():
    return tenant.get()


class Block:
    """A context manager that notes who enters and leaves it, and how."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        events.append(("enter", self.name, None))

    def __exit__(self, kind, error, trace):
        events.append(("leave", self.name, kind and kind.__name__))


noting = Provider(captured_event, Block)


def as_tenant(name, act):
    """Do something as a request of this tenant would."""

    def run():
        tenant.set(name)
        return act()

    return copy_context().run(run)


class Handler(Application):
    max_attempts = 3
    retry_wait = 0
    kill_wait = 30

    def perform(self):
        return look(self.task)


class Coroutine(Handler):
    async def perform(self):
        return await alook(self.task)


class Atomic(Handler):
    atomic = True


ROUTES = {"look": Handler, "alook": Coroutine, "atomic": Atomic}


class SurroundingsTestCase(ConcurrentTestCase):
    @contextlib.contextmanager
    def subTest(self, *name, **values):  # noqa: N802
        Queue().clear()
        with super().subTest(*name, **values):
            yield

    def run_in(self, type_, routes=ROUTES, **options):
        options = {"CONCURRENCY": 6, "RETRY_WAIT": 0, **options}
        processor = self.processor(type_, routes, **options)
        self.work(processor)
        return processor

    def submit_for(self, names, key, type_, act=None, **options):
        for number, name in enumerate(names):
            data = {"tenant": name, "act": act}

            def submit(number=number, data=data):
                Queue().submit(f"{key}-{number}", type_, data, **options)

            as_tenant(name, submit)

    def assert_nobody_saw_another(self, count):
        tasks = list(Task.objects.all())
        self.assertEqual(len(tasks), count)
        for task in tasks:
            self.assertEqual(task.status, "finished", f"{task.key} {task.result}")
            own = [task.data["tenant"]] * 2
            self.assertEqual(task.result, [own, own], f"{task.key} {task.data}")


class NobodySeesAnotherTests(SurroundingsTestCase):
    def test_tasks_of_two_tenants_and_of_none_see_their_own(self):
        for type_, path in itertools.product(TYPES, (SESSION, BLOCK)):
            with (
                self.subTest(f"{type_} {path}"),
                override_settings(PERFECTQUEUE={"CONTEXT": [path]}),
            ):
                count = 0
                for kind, act in itertools.product(("look", "alook"), ACTS):
                    self.submit_for(TENANTS * 2, f"{kind}-{act}", kind, act)
                    count += 6 * (2 if act == "submit" else 1)
                with self.assertLogs("django_perfectqueue"):
                    self.run_in(type_)
                self.assert_nobody_saw_another(count)

    def test_nor_do_atomic_handlers(self):
        for type_, path in itertools.product(("process", "thread"), (SESSION, BLOCK)):
            with (
                self.subTest(f"{type_} {path}"),
                override_settings(PERFECTQUEUE={"CONTEXT": [path]}),
            ):
                for act in (None, "submit", "leave", "sleep"):
                    self.submit_for(TENANTS * 2, f"{act}", "atomic", act)
                self.run_in(type_, {**ROUTES, "look": Atomic})
                self.assert_nobody_saw_another(6 * 5)

    def test_a_task_without_context_sees_what_none_has_set(self):
        """CONTEXT is empty: what handlers set is gone with them all the same."""
        for type_, kind in itertools.product(TYPES, ("look", "alook")):
            with self.subTest(f"{type_} {kind}"):
                for act in ("leave", None, "leave open", None):
                    self.submit_for([None] * 3, f"{act}-{len(Queue())}", kind, act)
                with self.assertLogs("django_perfectqueue"):
                    self.run_in(type_)
                self.assert_nobody_saw_another(12)

    def test_a_time_limit_leaves_nothing(self):
        for type_, path in itertools.product(TYPES, (SESSION, BLOCK)):
            with (
                self.subTest(f"{type_} {path}"),
                override_settings(PERFECTQUEUE={"CONTEXT": [path]}),
            ):
                for kind in ("look", "alook"):
                    self.submit_for(TENANTS, f"over-{kind}", kind, "overrun", time_limit=0.3)
                    self.submit_for(TENANTS * 4, kind, kind)
                with self.assertLogs("django_perfectqueue"):
                    self.run_in(type_)
                self.assert_nobody_saw_another(30)

    def test_calls_in_other_threads_of_a_loop_leave_nothing(self):
        opened = []

        def call(function, *arguments):
            # A loop ends its threads without waiting: the test closes what they have opened.
            connection.inc_thread_sharing()
            opened.append(connections["default"])
            return function(*arguments)

        async def leave(task):
            await asyncio.to_thread(call, tenants.set_session, "stranger")

        async def see(task):
            found = [asyncio.to_thread(call, tenants.session_tenant) for _call in range(8)]
            return await asyncio.gather(*found)

        for type_ in TYPES:
            with self.subTest(type_):
                self.submit(*["leave", "see"] * 8)
                self.run_in(type_, {"leave": leave, "see": see})
                for task in Task.objects.filter(type="see"):
                    self.assertEqual(task.result, [None] * 8)
        for one in opened:
            one.close()


@tag("thorough")
class ManyTests(SurroundingsTestCase):
    """Errors and time limits among them; PERFECTQUEUE_TEST_TENANTS says how many tasks."""

    COUNT = int(os.environ.get("PERFECTQUEUE_TEST_TENANTS", "300"))

    def run_many(self, type_):
        with override_settings(PERFECTQUEUE={"CONTEXT": [SESSION]}):
            for name in TENANTS:
                as_tenant(name, functools.partial(Queue().submit_many, self.tasks_of(name)))
            with self.assertLogs("django_perfectqueue"):
                self.run_in(type_)
        children = Task.objects.filter(key__startswith="child").count()
        self.assert_nobody_saw_another(self.COUNT + children)

    def test_none_sees_another_in_processes(self):
        self.run_many("process")

    def test_none_sees_another_in_threads(self):
        self.run_many("thread")

    def test_none_sees_another_in_an_event_loop(self):
        self.run_many("async")

    def tasks_of(self, name):
        acts = (None,) * 12 + ACTS
        mixed = itertools.cycle(itertools.product(("look", "alook"), acts))
        numbers = range(self.COUNT)[TENANTS.index(name) :: len(TENANTS)]
        for number, (kind, act) in zip(numbers, mixed, strict=False):
            task = {"key": f"task-{number}", "type": kind, "data": {"tenant": name, "act": act}}
            if number % 500 < len(TENANTS):
                task["data"]["act"] = "overrun"
                task["time_limit"] = 0.2
            yield task


class CoroutineTests(SurroundingsTestCase):
    def test_a_middleware_of_coroutines_sets_the_connection_of_its_own(self):
        class AsTenant:
            async def aaround_perform(self, handler, perform):
                await sync_to_async(tenants.set_session)(handler.task.data["tenant"])
                return await perform()

        class Nested:
            async def aaround_perform(self, handler, perform):
                async with ThreadSensitiveContext():
                    await sync_to_async(tenants.set_session)(handler.task.data["tenant"])
                    return await perform()

        for layer in (AsTenant(), Nested()):
            with self.subTest(type(layer).__name__):

                class Reader(Application):
                    middleware = [layer]

                    async def perform(self):
                        await asyncio.sleep(0.01)
                        return await sync_to_async(tenants.session_tenant)()

                names = ("acme", "blue") * 6
                self.submit_for(names, "task", "read")
                self.run_in("async", {"read": Reader})
                for task in Task.objects.all():
                    self.assertEqual(task.result, task.data["tenant"])

    def test_transactions_of_coroutines_do_not_meet(self):
        async def hold(task):
            block = transaction.atomic()
            await sync_to_async(block.__enter__)()
            await asyncio.sleep(0.01)
            depth = await sync_to_async(lambda: len(connection.savepoint_ids))()
            await sync_to_async(block.__exit__)(None, None, None)
            return depth

        if connection.vendor == "sqlite":
            self.skipTest("One transaction writes at a time.")
        self.submit(*["hold"] * 6)
        self.run_in("async", {"hold": hold})
        self.assertEqual({task.result for task in Task.objects.all()}, {0})

    def test_threads_are_used_again(self):
        async def which(task):
            await asyncio.sleep(0.001)
            return await sync_to_async(threading.get_ident)()

        for type_, most in (("process", 1), ("thread", 6), ("async", 6)):
            with self.subTest(type_):
                self.submit(*["which"] * 60)
                self.run_in(type_, {"which": which})
                self.assertLessEqual(len({task.result for task in Task.objects.all()}), most)

    def test_what_goes_on_after_its_task_has_no_thread_of_another(self):
        late, threads = [], set()

        async def go_on(task):
            async def background():
                await asyncio.sleep(0.05)
                await sync_to_async(tenants.set_session)("stranger")
                late.append(await sync_to_async(threading.current_thread)())
                await sync_to_async(connections.close_all)()

            await sync_to_async(seen)()
            late.append(asyncio.create_task(background()))

        async def which(task):
            await asyncio.sleep(0.01)
            threads.add(await sync_to_async(threading.current_thread)())
            return await sync_to_async(tenants.session_tenant)()

        self.submit("go_on", *["which"] * 40)
        self.run_in("async", {"go_on": go_on, "which": which}, CONCURRENCY=2)
        self.assertEqual({task.result for task in Task.objects.filter(type="which")}, {None})
        self.assertEqual(len(late), 2)
        self.assertNotIn(late[-1], threads)

    def test_kill_has_a_thread_of_its_own(self):
        found = {}

        class Killed(Application):
            max_attempts = 1

            async def perform(self):
                found["perform"] = await sync_to_async(threading.get_ident)()
                await asyncio.sleep(20)

            async def kill(self, reason):
                found["kill"] = await sync_to_async(threading.get_ident)()
                await sync_to_async(tenants.set_session)("stranger")
                self.interrupt(reason)

        async def read(task):
            return await sync_to_async(tenants.session_tenant)()

        for type_ in ("process", "async"):
            with self.subTest(type_):
                self.submit("killed", *["read"] * 6, time_limit=0.2)
                with self.assertLogs("django_perfectqueue.runner"):
                    self.run_in(type_, {"killed": Killed, "read": read}, CONCURRENCY=1)
                self.assertNotEqual(found["kill"], found["perform"])
                self.assertEqual({t.result for t in Task.objects.filter(type="read")}, {None})


class ProviderTests(SurroundingsTestCase):
    def setUp(self):
        super().setUp()
        events.clear()

    def test_a_context_manager_is_left_however_the_handler_ends(self):
        class Ends(Application):
            max_attempts = 1

            def perform(self):
                if self.task.data["act"] == "raise":
                    raise ValueError
                while self.task.data["act"] == "overrun":
                    threading.Event().wait(0.005)

        class AEnds(Ends):
            async def perform(self):
                if self.task.data["act"] == "raise":
                    raise ValueError
                while self.task.data["act"] == "overrun":
                    await asyncio.sleep(0.005)

        for type_, kind in itertools.product(TYPES, (Ends, AEnds)):
            with (
                self.subTest(f"{type_} {kind.__name__}"),
                override_settings(PERFECTQUEUE={"CONTEXT": [f"{HERE}.noting"]}),
            ):
                events.clear()
                self.submit_for(["acme", None], "ok", "end")
                self.submit_for(["acme", None], "raise", "end", "raise")
                self.submit_for(["blue"], "over", "end", "overrun", time_limit=0.2)
                with self.assertLogs("django_perfectqueue"):
                    self.run_in(type_, {"end": kind})
                left = sorted(
                    (name or "", how or "") for word, name, how in events if word == "leave"
                )
                cancelled = "CancelledError" if kind is AEnds else "TimeLimitError"
                expected = [("acme", ""), ("acme", "ValueError"), ("blue", cancelled)]
                # A decider is asked within it, too.
                for word in [("", ""), ("", "ValueError"), *expected]:
                    self.assertIn(word, left)
                entered = [event for event in events if event[0] == "enter"]
                self.assertEqual(len(entered), len(left))

    def test_a_decider_and_a_backoff_have_them_too(self):
        heard = []

        class Hears(Decider):
            def unexpected_error_raised(self, **options):
                heard.append(("decider", seen()))
                return super().unexpected_error_raised(**options)

        class Raises(Application):
            decider = Hears
            max_attempts = 2

            def backoff(self, error, task=None):
                heard.append(("backoff", seen()))
                return 0

            def perform(self):
                tenants.set_session("stranger")
                raise ValueError

        for type_ in TYPES:
            with self.subTest(type_), override_settings(PERFECTQUEUE={"CONTEXT": [SESSION]}):
                heard.clear()
                self.submit_for(["acme"], "task", "raises")
                with self.assertLogs("django_perfectqueue"):
                    self.run_in(type_, {"raises": Raises})
                self.assertEqual({str(found) for _who, found in heard}, {"['acme', 'acme']"})
                self.assertEqual({who for who, _found in heard}, {"decider", "backoff"})


class SessionTests(SurroundingsTestCase):
    """What a handler sets in its session is gone, by whatever statement it was set."""

    STATEMENTS = {
        "postgresql": (
            ("SET statement_timeout = 12345", "SHOW statement_timeout"),
            ("SET search_path TO pg_catalog", "SHOW search_path"),
            ("SET search_path TO perfectqueue_acme, public", "SHOW search_path"),
            ("SELECT set_config('app.one', 'perfectqueue_acme', false)", "SHOW app.one"),
            ("SET ROLE pg_monitor", "SELECT current_user::text"),
            ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user::text"),
            ("SELECT set_config('app.one', 'x', false)", "SHOW app.one"),
            ("SET TIME ZONE 'Asia/Tokyo'", "SHOW TimeZone"),
            (
                "SELECT pg_advisory_lock(1)",
                "SELECT COUNT(*) FROM pg_locks WHERE locktype='advisory'",
            ),
            ("CREATE TEMP TABLE own (id int)", "SELECT to_regclass('own')::text"),
            ("SELECT 1 AS one INTO TEMP own", "SELECT to_regclass('own')::text"),
            ("DO $$ BEGIN PERFORM set_config('app.one', 'y', false); END $$", "SHOW app.one"),
            ("SELECT tenant_is('z')", "SHOW app.one"),
            ("SELECT 1; SET app.one = 'x'", "SHOW app.one"),
        ),
        "mysql": (
            ("SET @one = 1", "SELECT @one"),
            ("SELECT @one := 2", "SELECT @one"),
            ("SET SESSION lock_wait_timeout = 77", "SELECT @@lock_wait_timeout"),
            ("SELECT GET_LOCK('one', 0)", "SELECT IS_USED_LOCK('one')"),
            ("CREATE TEMPORARY TABLE own (id int)", "SELECT COUNT(*) FROM own"),
        ),
        "sqlite": (
            ("CREATE TEMP TABLE own (id int)", "SELECT COUNT(*) FROM own"),
            ("PRAGMA query_only = 1", "PRAGMA query_only"),
            ("ATTACH ':memory:' AS other", "SELECT COUNT(*) FROM other.sqlite_master"),
        ),
    }

    def setUp(self):
        super().setUp()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "CREATE FUNCTION tenant_is(name text) RETURNS text LANGUAGE sql AS"
                    " $$ SELECT set_config('app.one', name, false) $$"
                )
            self.addCleanup(self.drop_function)

    def drop_function(self):
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION tenant_is")

    def test_it_is_gone(self):
        for (statement, read), type_ in itertools.product(
            self.STATEMENTS[connection.vendor], TYPES
        ):
            with self.subTest(f"{type_} {statement}"):

                def set_it(task, statement=statement):
                    with connection.cursor() as cursor:
                        cursor.execute(statement)

                def value(task, read=read):
                    try:
                        with connection.cursor() as cursor:
                            cursor.execute(read)
                            return str(cursor.fetchone()[0])
                    except Exception as error:
                        return str(error).split("\n")[0]

                routes = {
                    "set": set_it,
                    "read": value,
                    "aset": acall(set_it),
                    "aread": acall(value),
                }
                Queue().submit("before", "read")
                self.run_in(type_, routes, CONCURRENCY=1)
                first = Queue()["before"].metadata().result
                keys = self.submit("set", "read", "aset", "aread", "set", "set", "aread", "read")
                self.run_in(type_, routes, CONCURRENCY=1)
                tasks = {task.key: task for task in Task.objects.filter(key__in=keys)}
                for key in keys:
                    self.assertEqual(tasks[key].status, "finished", key)
                    if "read" in key:
                        self.assertIn(tasks[key].result, (first, "", "None"), key)

    def test_a_connection_stays_where_nothing_is_set(self):
        from django.contrib.auth.models import User

        def work(task):
            with transaction.atomic():
                User.objects.create(username=task.key)
                list(User.objects.select_for_update().filter(username__contains="w"))
            task.queue.submit(f"child-{task.key}", "noop")
            return id(connection.connection)

        def noop(task):
            return None

        for type_ in ("process", "thread"):
            with self.subTest(type_):
                User.objects.all().delete()
                self.submit(*["work"] * 10)
                self.run_in(type_, {"work": work, "noop": noop}, CONCURRENCY=1)
                found = {task.result for task in Task.objects.filter(type="work")}
                self.assertEqual(len(found), 1)


def acall(function):
    async def run(task):
        return await sync_to_async(function)(task)

    return run
