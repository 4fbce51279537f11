import gzip
import json
import tempfile
import uuid
from datetime import datetime, timedelta, timezone
from unittest import mock, skipUnless

from django.core.management import CommandError
from django.db import OperationalError, connection, connections
from django.test import SimpleTestCase, TestCase

from django_perfectqueue import compat
from django_perfectqueue.management.commands import pq_import
from django_perfectqueue.management.importing import move
from django_perfectqueue.management.importing.move import StaysError, Table
from django_perfectqueue.management.importing.sources import PerfectQueue
from django_perfectqueue.models import Schedule, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules, declared, every, scheduled

from ..factories import register
from .running import refused, run, run_json

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
EVER = datetime(9999, 1, 1, tzinfo=timezone.utc)
TYPES = {
    "sqlite": {"json": "text", "time": "datetime", "blob": "blob"},
    "postgresql": {"json": "jsonb", "time": "timestamptz", "blob": "bytea"},
    "mysql": {"json": "json", "time": "datetime(6)", "blob": "longblob"},
}


class TableTestCase(TestCase):
    """A table of another queue, as its own migrations would make it."""

    tables = {}

    @classmethod
    def setUpClass(cls):
        words = {
            **TYPES[connection.vendor],
            **{name: connection.ops.quote_name(name) for name in ("key", "lock")},
            "uuid": "uuid" if connection.features.has_native_uuid_field else "char(32)",
        }
        cls.addClassCleanup(cls.drop)
        with connection.cursor() as cursor:
            for name, columns in cls.tables.items():
                cursor.execute(f"CREATE TABLE {name} ({columns.format(**words)})")
        super().setUpClass()

    @classmethod
    def drop(cls):
        with connection.cursor() as cursor:
            for name in cls.tables:
                cursor.execute(f"DROP TABLE {name}")

    def insert(self, table, **values):
        names = ", ".join(connection.ops.quote_name(name) for name in values)
        marks = ", ".join("%s" for _name in values)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",
                [stored(value) for value in values.values()],
            )

    def rows(self, table):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            return cursor.fetchone()[0]


def stored(value):
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    if isinstance(value, uuid.UUID):
        return str(value) if connection.features.has_native_uuid_field else value.hex
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value


def task(key, queue="default"):
    return Queue(queue)[key].metadata()


def schedule(name):
    return Schedule.objects.get(name=name)


class AncestorTests(TableTestCase):
    tables = {
        "perfectqueue": "id varchar(255) PRIMARY KEY, timeout int NOT NULL, data {blob} NOT NULL,"
        " created_at int, resource varchar(255), max_running int, owner bigint DEFAULT 0 NOT NULL",
        "old_queue": "id varchar(255) PRIMARY KEY, timeout int NOT NULL, data {blob} NOT NULL,"
        " created_at int",
    }

    def add(self, key, data=b"", *, timeout=1_900_000_000, created_at=1, **values):
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.insert(
            "perfectqueue", id=key, data=text, timeout=timeout, created_at=created_at, **values
        )

    def test_what_waits_is_moved_with_all_that_it_has(self):
        self.add("k1", {"type": "report", "page": 7}, resource="ann", max_running=3)
        packed = gzip.compress(b'{"type": "report", "name": "Zo\xc3\xab"}')
        self.add("k2", packed, timeout=1_600_000_000)
        self.add("report.2024")
        self.add("done", {"type": "report"}, created_at=None, timeout=1_000_000_100)

        out = run("pq_import", "perfectqueue")

        self.assertEqual(
            out,
            "Imported: 3 tasks (queue: default).\n"
            "Not to be moved:\n  1 finished\n"
            "Each task's max_running is not moved; here it is set for a user, by pq_user set:"
            " ann=3\n",
        )
        first = task("k1")
        self.assertEqual(
            (first.type, first.data, first.user, first.status),
            ("report", {"page": 7}, "ann", "scheduled"),
        )
        self.assertEqual(first.run_at, datetime.fromtimestamp(1_900_000_000, tz=timezone.utc))
        self.assertEqual((task("k2").data, task("k2").status), ({"name": "Zoë"}, "waiting"))
        self.assertEqual((task("report.2024").type, task("report.2024").data), ("report", {}))
        self.assertEqual(self.rows("perfectqueue"), 4)

    def test_a_second_time_nothing_is_moved(self):
        for number in range(3):
            self.add(f"k{number}", {"type": "report"})
        [reported] = run_json("pq_import", "perfectqueue")
        self.assertEqual((reported["stored"], reported["there"]), (3, 0))
        [reported] = run_json("pq_import", "perfectqueue")
        self.assertEqual((reported["stored"], reported["there"]), (0, 3))
        self.assertEqual(len(Queue()), 3)

    def test_many_go_in_batches(self):
        for number in range(7):
            self.add(f"k{number}", {"type": "report"}, created_at=number % 3 or None)
        with mock.patch.object(move, "BATCH", 2):
            out = run("pq_import", "perfectqueue", "--queue", "reports")
        self.assertIn("Imported: 4 tasks (queue: reports).", out)
        self.assertNotIn("there already", out)
        self.assertEqual(len(Queue("reports")), 4)

    def test_what_can_not_be_moved_is_reported_and_the_rest_is_moved(self):
        self.add("good", {"type": "report"})
        self.add("list", [1])
        self.add("text", b"{")
        self.add("gzip", b"\x1f\x8b\x08")
        self.add("strange", {"type": "reprot"})
        self.add("long", {"type": "x" * 300})
        out = refused(self, "pq_import", "perfectqueue")

        self.assertEqual(list(Task.objects.values_list("key", flat=True)), ["good"])
        for text in (
            "Imported: 1 task (queue: default).",
            "3 with data that can't be read\n      gzip (",
            "list (it is no JSON object)",
            "1 of the type 'reprot', for which there is no handler: say --map or --any-type."
            " Did you mean 'report'?\n      strange",
            "1 not possible here\n      long (The type must be a text of 1 to 255 characters",
            "5 rows are left behind.",
        ):
            self.assertIn(text, out)

    @skipUnless(connection.vendor == "sqlite", "Others take no value of another type.")
    def test_a_time_may_be_anything_on_sqlite(self):
        for key, when in {"word": "noon", "far": 1e300, "good": 5}.items():
            self.add(key, {"type": "report"}, timeout=when)
        out = refused(self, "pq_import", "perfectqueue")
        self.assertIn("Imported: 1 task", out)
        self.assertIn("2 with data that can't be read\n", out)

    def test_a_type_is_renamed_or_taken_as_it_is(self):
        self.add("old", {"type": "reprot"})
        self.add("strange", {"type": "unheard.of"})
        run("pq_import", "perfectqueue", "--map", "reprot=report", "--any-type")
        self.assertEqual((task("old").type, task("strange").type), ("report", "unheard.of"))

    def test_a_dry_run_moves_nothing(self):
        self.add("k1", {"type": "report"})
        self.add("k2", {"type": "unheard.of"})
        out = refused(self, "pq_import", "perfectqueue", "--dry-run")
        self.assertIn("To be imported: 1 task (queue: default).", out)
        self.assertFalse(Task.objects.exists())

    def test_what_is_here_is_passed_over_and_a_key_of_another_type_is_left_behind(self):
        for key in ("before", "now", "taken", "strange"):
            self.add(key, {"type": "strange" if key == "strange" else "report"})
        Queue().submit("before", "report")
        Queue().submit("taken", "echo")
        with mock.patch.object(move, "BATCH", 3):
            out = refused(self, "pq_import", "perfectqueue")

        self.assertIn("Imported: 1 task (queue: default). 1 was there already.", out)
        self.assertIn("1 with a key that a task of another type has\n      taken (echo)", out)
        self.assertEqual(self.rows("perfectqueue"), 4)

    def test_a_task_that_another_program_stores_meanwhile_is_not_taken_for_ours(self):
        self.add("same", {"type": "report"})
        self.add("other", {"type": "report"})
        submit_many = Queue.submit_many

        def late(queue, tasks, **options):
            Queue().submit("same", "report")
            Queue().submit("other", "echo")
            return submit_many(queue, tasks, **options)

        with mock.patch.object(Queue, "submit_many", late):
            out = refused(self, "pq_import", "perfectqueue")
        self.assertIn("Imported: 0 tasks. 1 was there already.\n", out)
        self.assertIn("1 with a key that a task of another type has\n      other (echo)", out)
        self.assertEqual(self.rows("perfectqueue"), 2)

    def test_an_older_table_has_fewer_columns(self):
        self.insert("old_queue", id="k1", timeout=1, data=b'{"type": "report"}', created_at=1)
        run("pq_import", "perfectqueue", "--table", "old_queue")
        self.assertEqual(task("k1").user, "")

    def test_trouble_on_the_way_is_reported_and_a_second_run_goes_on(self):
        for number in range(4):
            self.add(f"k{number}", {"type": "report"})
        for error, message, code in (
            (KeyboardInterrupt, "Interrupted.", 130),
            (
                OperationalError("gone\naway"),
                "'default', from which to import, refused: gone away",
                1,
            ),
        ):
            rows = PerfectQueue("default").page(None, 2)
            with (
                self.subTest(message),
                mock.patch.object(move, "BATCH", 2),
                mock.patch.object(Table, "page", side_effect=[rows, error]),
            ):
                out = refused(self, "pq_import", "perfectqueue", code=code)
                self.assertIn(message, out)
                self.assertIn("To continue, run it again", out)
            self.assertEqual(len(Queue()), 2)
            out = run("pq_import", "perfectqueue")
            self.assertIn("Imported: 2 tasks (queue: default). 2 were there already.", out)
            Queue().clear()

    def test_what_unpacks_to_too_much_is_not_read(self):
        self.add("bomb", gzip.compress(b'{"type": "report"}'))
        with mock.patch("django_perfectqueue.management.importing.sources.LARGEST", 10):
            out = refused(self, "pq_import", "perfectqueue")
        self.assertIn("bomb (unpacked it has more than 10 bytes)", out)

    def test_what_is_asked_for_must_be_there(self):
        table = [
            (("perfectqueue", "--table", "old_qeue"), "has no table 'old_qeue'. Did you mean"),
            (("perfectqueue", "--table", "perfectqueue_task"), "has no column 'timeout'"),
            (
                ("perfectqueue", "--table", "perfectqueue_tsk"),
                "Did you mean 'perfectqueue'? --from",
            ),
            (("celery-beat",), "has no table 'django_celery_beat_periodictask'. --from-database"),
            (("perfectqueue", "--from-database", "nowhere"), "no database with the alias"),
        ]
        for words, message in table:
            with self.subTest(words):
                self.assertIn(message, refused(self, "pq_import", *words))
        with self.assertRaisesMessage(CommandError, "must be OLD=NEW, not 'x'"):
            run("pq_import", "perfectqueue", "--map", "x")


class ElsewhereTests(TestCase):
    """The table is in a database of its own, of another kind."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        connections.databases["elsewhere"] = {
            **connections.databases["default"],
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": f"{folder.name}/db",
            "OPTIONS": {},
        }
        cls.addClassCleanup(cls.forget)
        cls.databases = {"default", "elsewhere"}
        super().setUpClass()

    @classmethod
    def forget(cls):
        connections["elsewhere"].close()
        del connections["elsewhere"]
        del connections.databases["elsewhere"]

    def setUp(self):
        with connections["elsewhere"].cursor() as cursor:
            cursor.execute(
                "CREATE TABLE perfectqueue (id varchar(255) PRIMARY KEY, timeout int,"
                " data blob, created_at int)"
            )
            for number in range(3):
                row = (f"k{number}", number, b'{"type": "report"}', 1)
                cursor.execute("INSERT INTO perfectqueue VALUES (%s, %s, %s, %s)", row)

    def left(self):
        with connections["elsewhere"].cursor() as cursor:
            return cursor.execute("SELECT COUNT(*) FROM perfectqueue").fetchone()[0]

    def test_what_was_refused_is_moved_when_it_is_run_again(self):
        words = ("perfectqueue", "--from-database", "elsewhere")
        with mock.patch.object(Queue, "submit_many", side_effect=OperationalError("gone")):
            out = refused(self, "pq_import", *words)
        self.assertIn("The database 'default' refused: gone", out)
        self.assertEqual(self.left(), 3)

        out = run("pq_import", *words)
        self.assertIn("Imported: 3 tasks", out)
        self.assertIn("3 were there already.", run("pq_import", *words))
        self.assertEqual((self.left(), len(Queue())), (3, 3))


class TasksDbTests(TableTestCase):
    table = "django_tasks_database_dbtaskresult"
    tables = {
        table: "id {uuid} PRIMARY KEY, status varchar(10) NOT NULL, enqueued_at {time} NOT NULL,"
        " started_at {time}, args_kwargs {json} NOT NULL, priority int NOT NULL,"
        " task_path text NOT NULL, queue_name varchar(32) NOT NULL, run_after {time}"
    }

    def add(self, *, args=(1, 2), path="tests.backend.jobs.add", **values):
        key = uuid.uuid4()
        given = {
            "id": key,
            "status": "READY",
            "enqueued_at": NOON,
            "args_kwargs": {"args": list(args), "kwargs": {}},
            "priority": 0,
            "task_path": path,
            "queue_name": "default",
            "run_after": EVER,
        }
        self.insert(self.table, **{**given, **values})
        return str(key)

    def test_what_is_ready_is_moved_and_keeps_its_id(self):
        plain = self.add()
        later = self.add(priority=7, queue_name="mail", run_after=NOON)
        self.add(status="NEW", run_after=None)
        for status in ("RUNNING", "SUCCESSFUL", "FAILED"):
            self.add(status=status)
        out = run("pq_import", "django-tasks-db", "--any-type")

        self.assertEqual(
            out,
            "Imported: 3 tasks (queue: default, mail).\n"
            "Not to be moved:\n  1 running, or left so by a worker that died\n  2 ended\n"
            "No worker serves queue 'mail', and no setting names it: start one by"
            " pq_worker --queue mail.\n",
        )
        row = task(later, "mail")
        self.assertEqual((row.priority, row.run_at, row.status), (7, NOON, "scheduled"))
        self.assertEqual(task(plain).data["args"], [1, 2])
        self.assertEqual(task(plain).status, "waiting")
        self.assertEqual(self.rows(self.table), 6)
        self.assertIn("Imported: 0 tasks.", run("pq_import", "django-tasks-db"))

    def test_batches_follow_the_ids_whatever_their_form(self):
        keys = {self.add() for _number in range(5)}
        with mock.patch.object(move, "BATCH", 2):
            run("pq_import", "django-tasks-db", "--any-type")
        self.assertEqual(set(Task.objects.values_list("key", flat=True)), keys)

    def test_all_can_be_moved_into_one_queue(self):
        keys = {self.add(), self.add(queue_name="mail")}
        run("pq_import", "django-tasks-db", "--queue", "post", "--any-type")
        self.assertEqual({row.key for row in Queue("post").list()}, keys)

    def test_what_is_no_call_is_reported(self):
        self.add(args_kwargs={"args": []})
        self.add(args_kwargs={"args": [], "kwargs": [1]})
        out = refused(self, "pq_import", "django-tasks-db")
        self.assertIn("2 with data that can't be read\n", out)
        self.assertEqual(out.count("(args is no list, or kwargs no dict)"), 2)

    @skipUnless(connection.vendor == "sqlite", "Others take no value of another type.")
    def test_a_column_may_hold_anything_on_sqlite(self):
        self.add()
        self.add(args_kwargs="{")
        out = refused(self, "pq_import", "django-tasks-db", "--any-type")
        self.assertIn("1 with data that can't be read\n", out)
        self.assertIn("Imported: 1 task", out)
        self.add(enqueued_at="2024-13-45 00:00:00")
        out = refused(self, "pq_import", "django-tasks-db", "--any-type")
        self.assertIn("'default', from which to import, refused: month must be in 1..12", out)

    if compat.HAS_TASKS:

        def test_its_result_can_be_asked_for_as_before(self):
            key = self.add(run_after=NOON, priority=3)
            self.add(path="os.system")
            out = refused(self, "pq_import", "django-tasks-db")
            self.assertIn("of the type 'os.system', for which there is no handler", out)

            result = compat.task_backends["default"].get_result(key)
            self.assertEqual((result.args, result.enqueued_at), ([1, 2], NOON))
            self.assertEqual((result.task.run_after, result.task.priority), (NOON, 3))


class DjangoQ2Tests(TableTestCase):
    tables = {
        "django_q_schedule": "id int PRIMARY KEY, name varchar(100), func varchar(256) NOT NULL,"
        " hook varchar(256), args text, kwargs text, schedule_type varchar(2) NOT NULL,"
        " minutes int, cron varchar(100), repeats int NOT NULL, next_run {time},"
        " cluster varchar(100), intended_date_kwarg varchar(100)",
    }

    def schedule(self, number, **values):
        given = {"func": "report", "schedule_type": "O", "repeats": -1, "next_run": NOON}
        self.insert("django_q_schedule", id=number, **{**given, **values})
        return f"django-q2-schedule-{number}"

    def test_schedules_that_come_again_stay_schedules(self):
        self.schedule(1, schedule_type="I", minutes=15, name="often", args="1", repeats=7)
        kinds = (
            *(("H", ""), ("D", "0 0 12 * * *"), ("W", "0 0 12 * * 2"), ("BW", "")),
            *(("M", "0 0 12 1 * *"), ("BM", "0 0 12 1 1,3,5,7,9,11 *")),
            *(("Q", "0 0 12 1 1,4,7,10 *"), ("Y", "0 0 12 1 1 *")),
        )
        for number, (kind, _cron) in enumerate(kinds, 10):
            self.schedule(number, schedule_type=kind, name=kind)
        self.schedule(30, schedule_type="C", cron="*/5 * * * *")
        self.schedule(31, schedule_type="C", cron="0 3 * * * 30", name="seconds")
        self.schedule(32, schedule_type="C", cron="0 3 */2 * mon", name="days")
        self.schedule(33, schedule_type="M", next_run=NOON + timedelta(days=30), name="last")
        self.schedule(34, schedule_type="D", intended_date_kwarg="at", name="dated")
        out = refused(self, "pq_import", "django-q2")

        often = schedule("often")
        self.assertEqual((often.every, often.starts_at, often.remaining), (900, NOON, 7))
        self.assertEqual(often.payload, '{"args":[1],"kwargs":{}}')
        self.assertEqual([schedule(kind).cron for kind, _cron in kinds], [c for _kind, c in kinds])
        self.assertEqual((schedule("H").every, schedule("BW").every), (3600, 14 * 86400))
        self.assertEqual(schedule("django-q2-schedule-30").cron, "*/5 * * * *")
        self.assertEqual(schedule("seconds").cron, "30 0 3 * * *")
        for text in (
            "2 that would fire at other times here\n      days: report ('0 3 */2 * mon' has",
            "      last: report (kind M on day 31)\n",
            "1 with what a task here has not: intended_date_kwarg\n      dated: report\n",
            "3 rows are left behind.",
        ):
            self.assertIn(text, out)
        self.assertEqual(Schedule.objects.count(), 11)

    def test_schedules_that_come_once_become_tasks(self):
        names = ("args", "kwargs")
        first = self.schedule(
            1, **dict(zip(names, ("1, 'two'", "x=1, timeout=9, q_options={}"), strict=True))
        )
        second = self.schedule(2, args="7", kwargs="{'y': [2]}", intended_date_kwarg="at")
        self.schedule(5, repeats=0)
        self.schedule(6, kwargs="x=open('f')")
        self.schedule(7, kwargs="1) + f(2")
        self.schedule(8, kwargs="hook='report'")
        self.schedule(9, hook="report", name="hooked")
        self.schedule(10, args="{1, 2}")
        out = refused(self, "pq_import", "django-q2")

        row = task(first)
        self.assertEqual(row.data, {"args": [1, "two"], "kwargs": {"x": 1}})
        self.assertEqual((row.run_at, row.time_limit), (NOON, 9))
        self.assertEqual(
            task(second).data, {"args": [7], "kwargs": {"y": [2], "at": NOON.isoformat()}}
        )
        for text in (
            "1 schedules that are over\n",
            "2 with data that can't be read\n      6: report (",
            "2 with what a task here has not: hook\n      8: report\n      hooked: report\n",
            "1 with arguments that JSON can't hold\n      10: report\n",
            "5 rows are left behind.",
        ):
            self.assertIn(text, out)


class CeleryBeatTests(TableTestCase):
    table = "django_celery_beat_periodictask"
    clocks = "django_celery_beat_clockedschedule"
    crontabs = "django_celery_beat_crontabschedule"
    intervals = "django_celery_beat_intervalschedule"
    tables = {
        clocks: "id int PRIMARY KEY, clocked_time {time} NOT NULL",
        crontabs: "id int PRIMARY KEY, minute varchar(240) NOT NULL, hour varchar(96) NOT NULL,"
        " day_of_month varchar(124) NOT NULL, month_of_year varchar(64) NOT NULL,"
        " day_of_week varchar(64) NOT NULL, timezone varchar(63) NOT NULL",
        intervals: "id int PRIMARY KEY, every int NOT NULL, period varchar(24) NOT NULL",
        table: "id int PRIMARY KEY, name varchar(200) NOT NULL, task varchar(200) NOT NULL,"
        " args text NOT NULL, kwargs text NOT NULL, queue varchar(200), exchange varchar(200),"
        " routing_key varchar(200), headers text NOT NULL, priority int, expires {time},"
        " expire_seconds int, one_off bool NOT NULL, start_time {time}, enabled bool NOT NULL,"
        " total_run_count int NOT NULL, clocked_id int, crontab_id int, interval_id int,"
        " solar_id int, last_run_at {time}",
    }

    def add(self, number, **values):
        given = {
            "name": f"task-{number}",
            "task": "report",
            "args": "[]",
            "kwargs": "{}",
            "headers": "{}",
            "one_off": True,
            "enabled": True,
            "total_run_count": 0,
            "clocked_id": 1,
        }
        self.insert(self.table, id=number, **{**given, **values})

    def test_what_is_to_run_once_becomes_a_task_and_the_rest_is_named(self):
        self.insert(self.clocks, id=1, clocked_time=NOON)
        self.add(1, args="[1, 2]", kwargs='{"x": null}', priority=5, expire_seconds=60)
        self.add(2, start_time=NOON + timedelta(hours=1), expires=NOON + timedelta(hours=2))
        self.add(3, clocked_id=None, solar_id=4, one_off=False)
        self.add(5, enabled=False)
        self.add(6, total_run_count=1)
        self.add(7, args="{")
        self.add(8, kwargs="[]")
        self.add(9, headers='{"x": 1}')
        self.add(10, clocked_id=77)
        out = refused(self, "pq_import", "celery-beat")

        first, second = task("celery-beat-1"), task("celery-beat-2")
        self.assertEqual(first.data, {"args": [1, 2], "kwargs": {"x": None}})
        self.assertEqual((first.run_at, first.priority), (NOON, 5))
        self.assertEqual(first.expires_at, NOON + timedelta(seconds=60))
        self.assertEqual(second.run_at, NOON + timedelta(hours=1))
        self.assertEqual(second.expires_at, NOON + timedelta(hours=2))
        for text in (
            "1 solar schedules: not possible here\n      task-3 (report)\n",
            "1 switched off\n",
            "1 that have run\n      task-6\n",
            "2 with data that can't be read\n      task-7 (",
            "task-8 (args is no list, or kwargs no dict)\n",
            "1 with what a task here has not: headers\n      task-9\n",
            f"1 with a time that is not in the table '{self.clocks}'\n      task-10\n",
            "5 rows are left behind.",
        ):
            self.assertIn(text, out)

    def crontab(self, number, text, zone="Europe/Zurich"):
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        values = dict(zip(names, text.split(), strict=True))
        self.insert(self.crontabs, id=number, timezone=zone, **values)

    def test_what_comes_again_becomes_a_schedule(self):
        self.crontab(1, "0 3 * * mon-fri")
        self.crontab(2, "0 3 13 * fri")
        self.insert(self.intervals, id=1, every=15, period="minutes")
        self.insert(self.intervals, id=2, every=5, period="microseconds")
        again = {"clocked_id": None, "one_off": False}
        self.add(1, **again, crontab_id=1, name="nightly", args="[1]", priority=5)
        self.add(2, **again, interval_id=1, last_run_at=NOON, total_run_count=9, expires=EVER)
        self.add(3, clocked_id=None, crontab_id=1, one_off=True)
        self.add(4, **again, crontab_id=2)
        self.add(5, **again, interval_id=2)
        self.add(6, **again, interval_id=77)
        self.add(7, **again, crontab_id=1, task="nobody")
        out = refused(self, "pq_import", "celery-beat")

        first, second, third = (schedule(name) for name in ("nightly", "task-2", "task-3"))
        self.assertEqual((first.cron, first.timezone), ("0 3 * * mon-fri", "Europe/Zurich"))
        self.assertEqual((first.payload, first.priority), ('{"args":[1],"kwargs":{}}', 5))
        self.assertEqual((second.every, second.starts_at), (900, NOON))
        self.assertEqual((second.ends_at, second.remaining, third.remaining), (EVER, None, 1))
        for text in (
            "Imported: 0 tasks and 3 schedules (queue: default).",
            "1 that would fire at other times here\n      task-4 ('0 3 13 * fri' has",
            "1 not possible here\n      task-5 (every must be a timedelta, seconds or a span",
            "1 with a time that can't be found\n      task-6\n",
            "1 of the type 'nobody', for which there is no handler",
            "4 rows are left behind.",
        ):
            self.assertIn(text, out)
        self.assertEqual(Schedule.objects.count(), 3)

    def test_a_second_time_nothing_changes_and_a_dry_run_stores_nothing(self):
        self.crontab(1, "0 3 * * *")
        self.add(1, clocked_id=None, one_off=False, crontab_id=1)
        [facts] = run_json("pq_import", "celery-beat", "--dry-run")
        self.assertEqual((facts["schedules"], Schedule.objects.count()), (1, 0))
        run("pq_import", "celery-beat")
        Schedules()["task-1"].pause("why")
        self.assertIn("1 was there already.", run("pq_import", "celery-beat"))
        self.assertEqual(schedule("task-1").note, "why")

    def test_another_schedule_of_its_name_stays(self):
        self.crontab(1, "0 3 * * *")
        self.add(1, clocked_id=None, one_off=False, crontab_id=1)
        Schedules().put("task-1", "report", every=60)
        Schedule.objects.update(type="other")
        out = refused(self, "pq_import", "celery-beat")
        self.assertIn("1 with a name that a schedule of another type has", out)
        self.assertEqual(schedule("task-1").every, 60)

    def test_each_goes_to_the_queue_of_its_row(self):
        self.insert(self.clocks, id=1, clocked_time=NOON)
        self.crontab(1, "0 3 * * *")
        self.add(1, queue="mail")
        self.add(2, queue="mail", clocked_id=None, one_off=False, crontab_id=1)
        self.add(3, queue="", clocked_id=None, one_off=False, crontab_id=1)
        out = run("pq_import", "celery-beat")
        self.assertIn("Imported: 1 task and 2 schedules (queue: default, mail).", out)
        self.assertIn("No worker serves queue 'mail', and no setting", out)
        self.assertEqual([row.key for row in Queue("mail").list()], ["celery-beat-1"])
        queues = Schedule.objects.order_by("name").values_list("queue", flat=True)
        self.assertEqual(list(queues), ["mail", "default"])

    def test_a_queue_that_a_worker_serves_is_not_warned_of(self):
        self.insert(self.clocks, id=1, clocked_time=NOON)
        self.add(1, queue="celery")
        self.add(2, queue="mail")
        register("mail", now=None)
        [facts] = run_json("pq_import", "celery-beat", "--dry-run")
        [note] = facts["notes"]
        self.assertIn("No worker serves queue 'celery'", note)

    if compat.HAS_TASKS:

        def test_a_schedule_has_what_the_code_says_of_its_task(self):
            self.insert(self.intervals, id=1, every=10, period="seconds")
            again = {"clocked_id": None, "one_off": False, "interval_id": 1}
            self.add(1, **again, task="tests.backend.jobs.ping")
            self.add(2, **again, task="tests.backend.jobs.ping", queue="mail", priority=3)
            run("pq_import", "celery-beat")
            first, second = schedule("task-1"), schedule("task-2")
            self.assertEqual((first.queue, first.priority, first.user), ("default", 7, "shop"))
            self.assertEqual((second.queue, second.priority, second.user), ("mail", 3, "shop"))
            self.assertEqual((first.limits, second.limits), ("hook", "hook"))

        def test_what_code_schedules_is_not_scheduled_twice(self):
            from ..backend.jobs import ping

            self.crontab(1, "0 3 * * *")
            again = {"clocked_id": None, "one_off": False, "crontab_id": 1}
            self.add(1, **again, task=ping.module_path, kwargs='{"url": "x"}')
            self.add(2, **again, task=ping.module_path)
            with mock.patch.dict(declared.declarations):
                scheduled(every("1h"), data={"kwargs": {"url": "x"}})(ping)
                out = run("pq_import", "celery-beat")
            self.assertIn("1 that @scheduled declares here", out)
            self.assertIn("\n      task-1\n", out)
            self.assertEqual(list(Schedule.objects.values_list("name", flat=True)), ["task-2"])

    def test_the_cleanup_of_celery_is_no_task_that_is_left(self):
        self.crontab(1, "0 4 * * *")
        again = {"clocked_id": None, "one_off": False, "crontab_id": 1}
        self.add(1, **again, task="celery.backend_cleanup")
        out = run("pq_import", "celery-beat")
        self.assertIn("1 of Celery's own: RETENTION does it here", out)


class TallyTests(SimpleTestCase):
    def test_it_names_no_more_than_can_be_read(self):
        tally = move.ImportTally()
        for number in range(move.NAMED + 3):
            tally.leave(f"k{number}", StaysError("why"))
        tally.leave("k", StaysError("why not", left_behind=False))
        lines = pq_import.lines_of_rows_that_stay(tally)
        self.assertEqual(lines[:4], ["Not to be moved:", "  1 why not", "      k", "Left behind:"])
        self.assertEqual((len(lines), lines[-1]), (move.NAMED + 6, "      and 3 more"))
