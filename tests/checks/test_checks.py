import inspect
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock, skipUnless

from django.contrib.auth.models import User
from django.core import checks
from django.core.checks.registry import registry
from django.core.management import load_command_class
from django.db import connection, connections, router
from django.test import SimpleTestCase, override_settings

from django_perfectqueue import checks as package
from django_perfectqueue.backoff import Exponential
from django_perfectqueue.checks.databases import (
    ROUTER,
    check_database_settings,
    check_routers,
    check_sqlite_options,
)
from django_perfectqueue.checks.servers import check_server
from django_perfectqueue.checks.settings import check_imported, check_settings
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.management.commands import pq_worker as plan
from django_perfectqueue.models import Task
from django_perfectqueue.store.notify import datagrams

from ..management.running import refused

SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/tasks.sqlite3"}
GOOD_SQLITE = {"transaction_mode": "IMMEDIATE", "timeout": 20}


def ids(found):
    return [message.id.partition(".")[2] for message in found]


def settings_errors(**values):
    with override_settings(PERFECTQUEUE=values):
        return check_settings()


def database_errors(**entry):
    """Return what is said of a second database with these settings, that holds the tasks."""
    engine = connections["default"].settings_dict
    connections.databases["another"] = deepcopy(engine) | {"TIME_ZONE": None} | entry
    try:
        with override_settings(PERFECTQUEUE={"DATABASE": "another"}):
            return [*check_sqlite_options(), *check_database_settings()]
    finally:
        del connections["another"], connections.databases["another"]


def no_folder():
    raise FileNotFoundError(2, "No usable temporary directory found")


class SurroundingsTests(SimpleTestCase):
    databases = {"default"}  # what holds differs with its kind

    def test_a_bad_setting_is_one_line_though_the_admin_is_mounted(self):
        with override_settings(PERFECTQUEUE={"RETRY_WAIT": "x"}):
            found = checks.run_checks()
        self.assertEqual(
            [one.id for one in found if one.level >= checks.ERROR], ["perfectqueue.E001"]
        )

    def test_no_usable_temporary_folder_is_said(self):
        with mock.patch("tempfile.gettempdir", no_folder), mock.patch("tempfile.tempdir", None):
            if connection.vendor != "postgresql":
                [found] = [one for one in check_database_settings() if one.id.endswith("W006")]
                self.assertIn("TMPDIR", found.hint)
                self.assertIsNone(datagrams.folder_of(connections["default"]))
            command = load_command_class("django_perfectqueue", "pq_worker")
            options = vars(command.create_parser("manage.py", "pq_worker").parse_args([]))
            self.assertEqual(plan.plan_of(options).using, "default")

    def test_a_database_to_which_no_router_leads_is_reported(self):
        connections.databases["another"] = connections.databases["default"]
        self.addCleanup(connections.databases.pop, "another")
        with override_settings(PERFECTQUEUE={"DATABASE": "another"}):
            self.assertEqual(ids(check_routers()), ["W024"])
            with override_settings(DATABASE_ROUTERS=[ROUTER]):
                self.assertEqual(ids(check_routers()), [])
                self.assertEqual(Task.objects.db, "another")
                self.assertEqual(User.objects.db, "default")
                for alias, app, allowed in (
                    ("another", "perfectqueue", True),
                    ("default", "perfectqueue", False),
                    ("another", "auth", True),
                ):
                    self.assertEqual(router.allow_migrate(alias, app), allowed)
        with override_settings(DATABASE_ROUTERS=[ROUTER]):
            self.assertEqual(Task.objects.db, "default")
            self.assertTrue(router.allow_migrate("default", "perfectqueue"))

    def test_a_character_set_without_emoji_is_reported(self):
        engine = "django.db.backends.mysql"
        if connection.vendor != "mysql":
            self.skipTest("MySQL's driver is needed.")
        for charset, expected in (("utf8", ["W025"]), ("utf8mb4", [])):
            found = ids(database_errors(ENGINE=engine, OPTIONS={"charset": charset}))
            self.assertEqual([one for one in found if one == "W025"], expected)


class SettingsTests(SimpleTestCase):
    def test_good_settings_are_not_talked_about(self):
        self.assertEqual(settings_errors(), [])
        self.assertEqual(settings_errors(ALIVE_TIME=60, TASK_PREFETCH=None), [])

    def test_an_unknown_setting_gets_its_nearest_right_word(self):
        [found] = settings_errors(ALIVE_TIEM=60)

        self.assertEqual(found.id, "perfectqueue.E001")
        self.assertEqual(found.msg, "Unknown setting 'ALIVE_TIEM' in PERFECTQUEUE.")
        self.assertEqual(found.hint, "Did you mean 'ALIVE_TIME'?")

    def test_a_wrong_policy_gets_its_nearest_right_word(self):
        for given, reported in (("fare", "fair"), ({"mail": "fiffo"}, "fifo")):
            [found] = settings_errors(POLICY=given)

            self.assertEqual(
                (found.id, found.hint), ("perfectqueue.E001", f"Did you mean '{reported}'?")
            )

    def test_a_word_that_is_near_nothing_gets_all_that_there_are(self):
        [found] = settings_errors(XYZZY=60)

        self.assertIn("TIME_LIMIT, MAX_ATTEMPTS", found.hint)

    def test_each_wrong_value_is_reported(self):
        found = settings_errors(ALIVE_TIME=-1, PROCESSORS="many")

        self.assertEqual(ids(found), ["E001", "E001"])
        self.assertIn("not 'many'", found[1].msg)
        self.assertIn("take it out of PERFECTQUEUE", found[1].hint)

    def test_headroom_that_would_leave_no_processor_to_long_tasks(self):
        self.assertEqual(settings_errors(HEADROOM=3, PROCESSORS=4), [])
        self.assertEqual(settings_errors(HEADROOM=0.5), [])
        [found] = settings_errors(HEADROOM=4, PROCESSORS=4)
        self.assertEqual(found.id, "perfectqueue.W026")
        self.assertIn("HEADROOM is 4", found.msg)

    @override_settings(PERFECTQUEUE=["ALIVE_TIME"])
    def test_what_is_no_dict(self):
        [found] = check_settings()

        self.assertEqual(
            (found.id, found.msg), ("perfectqueue.E002", "PERFECTQUEUE must be a dict, not list.")
        )

    @override_settings(USE_TZ=False)
    def test_local_times_are_refused(self):
        """
        The store keeps UTC; Django would read its times as local ones.
        """
        self.assertEqual(ids(settings_errors()), ["E003"])

    def test_heartbeats_of_processors_must_come_before_their_limit(self):
        found = settings_errors(CHILD_HEARTBEAT_LIMIT=2)

        self.assertEqual(ids(found), ["E009"])

    def test_tasks_at_once_need_a_type_that_runs_them_so(self):
        self.assertEqual(ids(settings_errors(CONCURRENCY=5)), ["W010"])
        self.assertEqual(settings_errors(CONCURRENCY=5, PROCESSOR_TYPE="thread"), [])

    def test_eager_tasks_are_for_development_and_tests(self):
        self.assertEqual(settings_errors(EAGER=True), [])
        with mock.patch("django_perfectqueue.checks.settings.under_test", return_value=False):
            self.assertEqual(ids(settings_errors(EAGER=True)), ["W040"])
            with override_settings(DEBUG=True):
                self.assertEqual(settings_errors(EAGER="quiet"), [])
        self.assertEqual(ids(settings_errors(EAGER="loud")), ["E001"])

    def test_a_first_wait_above_the_longest_is_worth_a_warning(self):
        self.assertEqual(ids(settings_errors(RETRY_WAIT=10, RETRY_WAIT_LIMIT=5)), ["W005"])


class DatabaseSettingsTests(SimpleTestCase):
    databases = {"default"}  # what holds differs with its kind

    def test_the_tests_own_database_is_well_set_up(self):
        self.assertEqual([*check_sqlite_options(), *check_database_settings()], [])

    @override_settings(PERFECTQUEUE={"DATABASE": "nope"})
    def test_an_unknown_alias_gets_those_that_there_are(self):
        [found] = check_database_settings()

        self.assertEqual(found.id, "perfectqueue.E005")
        self.assertIn("'default'", found.hint)

    def test_a_database_of_another_kind(self):
        [found] = database_errors(ENGINE="django.db.backends.dummy")

        self.assertEqual(found.id, "perfectqueue.E004")

    def test_a_time_zone_of_the_databases_own(self):
        entry = {**SQLITE, "OPTIONS": GOOD_SQLITE}

        self.assertEqual(ids(database_errors(**entry, TIME_ZONE="Asia/Tokyo")), ["E006"])
        self.assertEqual(database_errors(**entry, TIME_ZONE="UTC"), [])

    def test_sqlite_that_takes_its_lock_late_or_not_for_long(self):
        """
        The hint is what to paste.
        """
        [late] = database_errors(**SQLITE, OPTIONS={})
        [brief] = database_errors(**SQLITE, OPTIONS={**GOOD_SQLITE, "timeout": 0.1})

        self.assertEqual(ids([late, brief]), ["W001", "W002"])
        for found in (late, brief):
            self.assertIn("{'transaction_mode': 'IMMEDIATE', 'timeout': 20, ", found.hint)
            self.assertIn("'init_command': 'PRAGMA journal_mode=WAL'}", found.hint)

    def test_a_new_project_on_sqlite_works_as_it_is(self):
        """The advice is no warning."""
        with override_settings(DEBUG=True):
            [advice] = database_errors(**SQLITE, OPTIONS={})
        self.assertEqual((advice.level, advice.id), (checks.INFO, "perfectqueue.W001"))

    def test_what_is_advised_for_sqlite_is_not_repeated_by_each_command(self):
        """
        A new project works as it is, and is warned once, by ``check`` and ``migrate``.
        """
        self.assertIn(check_sqlite_options, registry.get_checks())
        self.assertEqual(tuple(check_sqlite_options.tags), ())
        self.assertEqual(database_errors(**SQLITE, OPTIONS=GOOD_SQLITE), [])

    def test_sqlite_in_memory_is_out_of_the_workers_reach(self):
        for name in (":memory:", "file:tasks?mode=memory&cache=shared"):
            entry = {**SQLITE, "NAME": name, "OPTIONS": GOOD_SQLITE}
            self.assertEqual(ids(database_errors(**entry)), ["W003"])
        tests = {**SQLITE, "NAME": "file:memorydb_default?mode=memory", "OPTIONS": GOOD_SQLITE}
        self.assertEqual(database_errors(**tests), [])

    def test_a_database_that_commits_nothing_by_itself(self):
        """
        A heartbeat is one statement, and relies on being committed at once.
        """
        self.assertEqual(ids(database_errors(AUTOCOMMIT=False)), ["E012"])

    def test_an_isolation_level_at_which_processors_hinder_each_other(self):
        if connection.vendor == "sqlite":
            self.skipTest("SQLite has one isolation level.")
        for level in levels()["bad"]:
            self.assertEqual(ids(database_errors(OPTIONS={"isolation_level": level})), ["W004"])
        for level in levels()["good"]:
            self.assertEqual(database_errors(OPTIONS={"isolation_level": level}), [])

    @skipUnless(connection.vendor == "postgresql", "PostgreSQL's settings")
    def test_several_hosts_of_which_any_would_do(self):
        for entry, expected in (
            ({"HOST": "a", "OPTIONS": {"hostaddr": "10.0.0.1"}}, []),
            ({"HOST": "a,b", "OPTIONS": {}}, ["W016"]),
            ({"OPTIONS": {"host": "a,b"}}, ["W016"]),
            ({"HOST": "a,b", "OPTIONS": {"target_session_attrs": "any"}}, ["W016"]),
            ({"HOST": "a,b", "OPTIONS": {"target_session_attrs": "read-write"}}, []),
        ):
            with self.subTest(entry):
                self.assertEqual(ids(database_errors(**entry)), expected)

    def test_a_folder_where_no_bell_can_hang(self):
        with TemporaryDirectory() as folder:
            long = Path(folder, "x" * 100)
            long.mkdir()
            file = Path(folder, "file")
            file.touch(mode=0o777)
            reported = [(folder, []), (long, ["W006"]), (Path(folder, "nowhere"), ["W006"])]
            reported.append((file, ["W006"]))
            for place, expected in reported:
                given = {"NOTIFY": place}
                for values in (given, {**given, "NOTIFY": False}):
                    with self.subTest(values), override_settings(PERFECTQUEUE=values):
                        needed = connection.vendor != "postgresql" and values.get("NOTIFY", True)
                        found = ids(check_database_settings())
                        self.assertEqual(found, expected if needed else [])

    def test_the_bells_settings_are_checked(self):
        for values in ({"NOTIFY": "yes"}, {"NOTIFY": 5}):
            self.assertEqual(ids(settings_errors(**values)), ["E001"])

    @override_settings(PERFECTQUEUE={"DATABASE": 5})
    def test_wrong_settings_are_reported_once(self):
        self.assertEqual(ids(check_settings()), ["E001"])
        self.assertEqual(check_database_settings(), [])
        self.assertEqual(check_imported(), [])
        self.assertEqual(check_server(databases=["default"]), [])


def levels():
    if connection.vendor == "mysql":
        # The store sets its own.
        return {"bad": [], "good": ["Read Committed", "repeatable read", "SERIALIZABLE", None]}
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    return {
        "bad": [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE],
        "good": [IsolationLevel.READ_COMMITTED],
    }


class DispatchTests(SimpleTestCase):
    @override_settings(PERFECTQUEUE={"DISPATCH": "tests.nowhere.Dispatch"})
    def test_a_dispatch_that_can_not_be_imported(self):
        [found] = check_imported()

        self.assertEqual(found.id, "perfectqueue.E011")
        self.assertIn("ModuleNotFoundError: No module named 'tests.nowhere'", found.msg)

    @override_settings(PERFECTQUEUE={"DISPATCH": "django.db.models.Model"})
    def test_what_is_no_dispatch(self):
        [found] = check_imported()

        self.assertEqual(found.id, "perfectqueue.E011")
        self.assertIn("is not a subclass of Dispatch", found.msg)

    @override_settings(PERFECTQUEUE={"DISPATCH": "tests.tasks.SampleDispatch"})
    def test_a_dispatch_that_can_be_imported(self):
        self.assertEqual(check_imported(), [])

    def test_none_is_needed(self):
        self.assertEqual(check_imported(), [])


def never(error, task):
    return None


class BackoffTests(SimpleTestCase):
    def test_a_backoff_that_can_not_be_used(self):
        for path, words in (
            ("tests.nowhere.wait", "ModuleNotFoundError: No module named 'tests.nowhere'"),
            ("django_perfectqueue.backoff.Exponential", "or an instance such as"),
        ):
            with override_settings(PERFECTQUEUE={"BACKOFF": path}):
                [found] = check_imported()
            self.assertEqual(found.id, "perfectqueue.E014")
            self.assertIn(words, found.msg)

    def test_a_worker_says_so_before_it_starts(self):
        words = ["tests.tasks.SampleDispatch"]
        parser = load_command_class("django_perfectqueue", "pq_worker").create_parser("", "")
        options = vars(parser.parse_args(words))
        with (
            override_settings(PERFECTQUEUE={"BACKOFF": "x.y"}),
            self.assertRaisesMessage(ConfigError, "PERFECTQUEUE['BACKOFF'] can't be used: "),
        ):
            plan.plan_of(options)

    def test_a_backoff_that_can_be_used(self):
        self.assertEqual(check_imported(), [])
        here = f"{__name__}.never"
        for good in (lambda error, task: 5, Exponential(5), here):
            with override_settings(PERFECTQUEUE={"BACKOFF": good}):
                self.assertEqual((check_settings(), check_imported()), ([], []))

    def test_what_is_none_is_said_with_the_settings(self):
        for wrong in (5, Exponential, "gentle"):
            with override_settings(PERFECTQUEUE={"BACKOFF": wrong}):
                self.assertEqual(ids(check_settings()), ["E001"])


class RegistrationTests(SimpleTestCase):
    @override_settings(PERFECTQUEUE={"XYZZY": 1, "DISPATCH": "x.y"})
    def test_django_runs_them(self):
        """
        Those tagged ``perfectqueue`` are all that a command of ours waits for.
        """
        self.assertIn("E001", ids(checks.run_checks()))
        self.assertEqual(ids(checks.run_checks(tags=["perfectqueue"])), ["E001"])

    def test_each_check_of_the_package_is_registered(self):
        registered = {check.__name__ for check in registry.registered_checks}
        modules = [module for module in vars(package).values() if inspect.ismodule(module)]
        named = {name for module in modules for name in vars(module) if name.startswith("check_")}
        self.assertIn("check_settings", named)
        self.assertEqual(named - registered, set())

    @override_settings(PERFECTQUEUE={"XYZZY": 1})
    def test_a_command_waits_for_them(self):
        self.assertIn("perfectqueue.E001", refused(self, "pq_task", "list"))
