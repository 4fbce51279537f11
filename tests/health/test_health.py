import json
from datetime import timedelta
from importlib import reload
from unittest import mock, skipUnless

from django.core.handlers.base import BaseHandler
from django.db import OperationalError, connection, connections
from django.db.models import F
from django.test import RequestFactory, TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path

from django_perfectqueue import store
from django_perfectqueue.compat import HAS_TASKS
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.health import checks, views
from django_perfectqueue.metrics import views as metrics
from django_perfectqueue.models import UNSEEN, Task, Ticket, Worker
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.limits.meters import forget_limits

from ..factories import acquire, fail, processor, register, running, submit
from ..management.running import refused, run
from ..management.test_schedule import break_, make_late

urlpatterns = [path("pq/", include("django_perfectqueue.health.urls"))]

SECRET = 'connection to server at "10.9.8.7" failed: password of "jobs"'


def unreachable():
    trouble = OperationalError(SECRET)
    return mock.patch.object(connections["default"], "ensure_connection", side_effect=trouble)


def old(seconds, **options):
    """Have a task that has been due for so long, by the server's clock."""
    now = Worker.objects.get().seen_at - timedelta(seconds=seconds)
    submit(now=now, **options)
    store.upkeep.wake_forgotten_lanes(using="default")


class HealthTestCase(TestCase):
    def setUp(self):
        checks.migrated.clear()
        self.addCleanup(checks.migrated.clear)


class CommandTests(HealthTestCase):
    def test_all_is_well(self):
        register(now=None)
        self.assertEqual(
            run("pq_status", "health").splitlines(),
            [
                "The database 'default' answers.",
                "Its tables are there.",
                "1 worker serves queue 'default'.",
                "Nothing that may start waits in queue 'default'.",
                "No task has waited for a minute for a worker that knows its type.",
                "No lapsed lease or due task is left unprocessed.",
                "The counters agree with what runs.",
                "No schedule is broken or late.",
                "No task waits for one that has failed.",
                "Every limit that the newest tasks list exists.",
                "Nothing is paused.",
                "The workers do all of their upkeep.",
            ],
        )
        self.assertEqual(run("pq_status", "health", "--verbosity", "0"), "")

    def test_nobody_serves_a_queue(self):
        register("mail", now=None)
        register("default", now=None, leaving=True)
        self.assertIn("serves queue 'mail'", run("pq_status", "health", "--queue", "mail"))
        reported = refused(self, "pq_status", "health", "--queue", "mail", "--queue", "default")
        self.assertIn("No worker serves queue 'default'.", reported)
        Worker.objects.update(seen_at=Worker.objects.get(leaving=False).seen_at - UNSEEN)
        refused(self, "pq_status", "health", "--queue", "mail")

    def test_who_would_serve_a_queue_but_is_drained_is_said_with_the_way_back(self):
        register("default", now=None)
        run("pq_status", "workers", "--drain", "one")
        reported = refused(self, "pq_status", "health", "--queue", "default")
        self.assertIn("The workers of queue 'default' are drained: see pq_status workers", reported)
        self.assertNotIn("No worker serves", reported)
        run("pq_status", "workers", "--undrain", "one")
        self.assertIn("1 worker serves", run("pq_status", "health", "--queue", "default"))

    def test_a_type_that_no_worker_knows_fails_it_after_a_minute(self):
        register("default", now=None)
        submit("k1", type="ghost", now=None)
        [lease] = acquire(1, now=None)
        store.settle([lease], store.Ending.release(), using="default")
        store.park([lease], lambda _type: False, using="default")
        self.assertIn("No task has waited for a minute for a worker", run("pq_status", "health"))
        Ticket.objects.update(run_at=F("run_at") - timedelta(minutes=2))
        Task.objects.update(created_at=F("created_at") - timedelta(minutes=2))

        shown = refused(self, "pq_status", "health", "--queue", "default")
        self.assertIn("serves queue 'default' knows the type 'ghost'.", shown)
        register("mail", now=None)
        self.assertIn(
            "No task has waited for a minute", run("pq_status", "health", "--queue", "mail")
        )

    def test_every_queue_in_which_a_task_is_due_is_looked_at(self):
        register("default", now=None)
        set_share("bob", weight=2)
        submit(queue="later", now=Worker.objects.get().seen_at, run_at="1h")
        self.assertNotIn("later", run("pq_status", "health"))

        old(3630, queue="reports")
        reported = refused(self, "pq_status", "health", "--oldest", "60")
        self.assertIn("No worker serves queue 'reports'.", reported)
        self.assertIn("of queue 'reports' has waited for 1 h 0 min, over 1 min 0 s.", reported)
        self.assertNotIn("later", reported)
        run("pq_status", "health", "--queue", "default", "--oldest", "60")

    @skipUnless(HAS_TASKS, "needs Django's tasks")
    def test_the_queues_of_the_backends_need_a_worker(self):
        register("default", now=None)
        backend = {"BACKEND": "django_perfectqueue.backend.PerfectQueueBackend"}
        with override_settings(TASKS={"default": {**backend, "QUEUES": ["default", "mail"]}}):
            reported = refused(self, "pq_status", "health")
        self.assertIn("1 worker serves queue 'default'.", reported)
        self.assertIn("No worker serves queue 'mail'.", reported)

    def test_the_oldest_task_has_waited_too_long(self):
        register(now=None)
        old(3630)
        self.assertIn("has waited for 1 h 0 min.", run("pq_status", "health"))
        self.assertIn("has waited", run("pq_status", "health", "--oldest", "7200"))
        reported = refused(self, "pq_status", "health", "--oldest", "60")
        self.assertIn("waited for 1 h 0 min, over 1 min 0 s.", reported)

    def test_headroom_keeps_long_tasks_waiting(self):
        """It is named once they are late, and a failure where the caller says for how long."""
        held = processor(1, 7)
        register(now=None, states=[held, processor(2, kept=True)])
        self.assertIn("No long task of queue 'default' waits long", run("pq_status", "health"))
        old(3630)
        words = "have waited for 1 h 0 min while processors that HEADROOM keeps for short ones"
        self.assertIn(f"{words} are idle: 1.", run("pq_status", "health"))
        self.assertIn(words, refused(self, "pq_status", "health", "--oldest", "300"))
        with override_settings(PERFECTQUEUE={"LATE_AFTER": None}):
            self.assertNotIn(words, run("pq_status", "health"))
        Worker.objects.update(states_text=json.dumps([held, processor(2, 8, kept=True)]))
        self.assertNotIn(words, run("pq_status", "health"))

    def test_what_fell_due_has_been_left_lying(self):
        register(now=None)
        now = Worker.objects.get().seen_at
        submit(now=now - timedelta(seconds=500), run_at=now - timedelta(seconds=90))
        self.assertIn("have not been processed", refused(self, "pq_status", "health"))

    def test_the_database_is_away(self):
        with unreachable():
            reported = refused(self, "pq_status", "health")
        self.assertIn(f"The database 'default' can't be reached. {SECRET}", reported)

    def test_a_counter_had_to_be_corrected_lately(self):
        register(now=None)
        Worker.objects.update(drifted_at=F("seen_at") - timedelta(minutes=5))
        reported = refused(self, "pq_status", "health")
        self.assertRegex(reported, r"were corrected, the last one 5 min \d+ s ago")
        Worker.objects.update(drifted_at=F("seen_at") - timedelta(days=1))
        run("pq_status", "health")

    def test_a_schedule_is_broken_or_late(self):
        register(now=None)
        for name in ("good", "bad", "late"):
            Schedules().put(name, "report", every=3600)
        break_("bad")
        make_late("late")
        reported = refused(self, "pq_status", "health")
        self.assertIn("Schedule 'bad' is broken: There is no time zone", reported)
        self.assertIn("Schedule 'late' is late: it has been due for 1 h 0 min.", reported)
        self.assertNotIn("good", reported)

    def test_what_fails_of_the_upkeep_is_shown(self):
        register(now=None)
        Worker.objects.update(problem="purge: no.")
        self.assertIn("The workers can't do all of their upkeep. purge: no.",
                      refused(self, "pq_status", "health"))  # fmt: skip

    def test_the_tables_are_missing(self):
        with mock.patch.object(checks, "lacks_tables", return_value=True):
            self.assertIn(
                "is not migrated. Run: manage.py migrate", refused(self, "pq_status", "health")
            )

    def test_what_is_paused_is_named(self):
        register("default", now=None)
        self.assertIn("Nothing is paused.", run("pq_status", "health"))
        set_share("ann", paused=True)
        set_limit("report", scope="type", paused=True)
        shown = run("pq_status", "health")
        self.assertIn("What is paused: 2.", shown)
        self.assertIn("user 'ann', type:report", shown)

    def test_json_tells_it_to_programs(self):
        reported = refused(self, "pq_status", "health", "--json")
        facts = json.loads(reported.splitlines()[0])
        found = {check["name"]: check["ok"] for check in facts["checks"]}
        self.assertFalse(facts["ok"])
        self.assertEqual(
            found,
            {
                **dict.fromkeys(("database", "tables", "oldest", "handlers", "clock"), True),
                "counters": True,
                "schedules": True,
                **dict.fromkeys(("blocked", "limits", "pauses", "upkeep"), True),
                "workers": False,
            },
        )

    def test_bad_input_is_refused(self):
        self.assertIn(
            "a number of seconds", refused(self, "pq_status", "health", "--oldest", "soon")
        )
        self.assertIn(
            "a number of seconds", refused(self, "pq_status", "health", "--oldest", "nan")
        )
        self.assertIn("no database", refused(self, "pq_status", "health", "--database", "nowhere"))
        self.assertIn("queue", refused(self, "pq_status", "health", "--queue", ""))


@override_settings(ROOT_URLCONF="tests.health.test_health")
class ViewTests(HealthTestCase):
    def ask(self, path, expect=200, **query):
        response = self.client.get(f"/pq/{path}", query)
        self.assertEqual(response.status_code, expect, response.content)
        self.assertIn("no-store", response.headers["Cache-Control"])
        return response.json()

    def test_live_asks_no_database(self):
        with self.assertNumQueries(0):
            self.assertEqual(self.ask("live"), {"ok": True})

    def test_ready_asks_whether_tasks_can_be_submitted(self):
        self.assertTrue(self.ask("ready")["ok"])
        with unreachable():
            self.assertNotIn("10.9.8.7", str(self.ask("ready", 503)))

    def test_queues_asks_whether_tasks_are_run(self):
        self.assertFalse(self.ask("queues", 503)["ok"])
        register("default", "mail", now=None)
        old(90)
        self.assertTrue(self.ask("queues")["ok"])
        self.assertTrue(self.ask("queues", queue=["default", "mail"], oldest=300)["ok"])
        reported = self.ask("queues", 503, queue=["default", "mail"], oldest=60)
        wrong = [check for check in reported["checks"] if not check["ok"]]
        self.assertEqual([(one["name"], one["queue"]) for one in wrong], [("oldest", "default")])
        old(90, queue="reports")
        reported = self.ask("queues", 503)
        wrong = [check for check in reported["checks"] if not check["ok"]]
        self.assertEqual([(one["name"], one["queue"]) for one in wrong], [("workers", "reports")])

    def test_it_names_tasks_to_those_who_may_run_a_command(self):
        register(now=None)
        _task, held = running("mail-ann@example.com", now=None)
        submit("then-ann@example.com", after=["mail-ann@example.com"], now=None)
        fail(held)
        store.records.follow(using="default")
        answer = self.ask("queues")
        [blocked] = [check for check in answer["checks"] if check["name"] == "blocked"]
        self.assertEqual(blocked["count"], 1)
        self.assertNotIn("ann", str(answer))
        self.assertIn("'then-ann@example.com' waits for 'mail-ann@", run("pq_status", "health"))
        self.assertIn('"child": "then-ann@example.com"', run("pq_status", "health", "--json"))

    def test_what_anyone_may_ask_costs_a_few_statements(self):
        set_limit("slow", max_running=5)
        names = [f"q{number}" for number in range(20)]
        for queue in names:
            submit(queue=queue, limits=["slow"], now=None)
        store.upkeep.wake_forgotten_lanes(using="default")
        self.ask("queues", 503, queue="default")
        for query in (["default"] * 20, names):
            # They are asked for once a second, which may pass here on a slow machine.
            forget_limits("default")
            with CaptureQueriesContext(connection) as queries:
                self.ask("queues", 503, queue=query)
            self.assertLessEqual(len(queries), 14)

    def test_bad_questions_are_refused(self):
        for query in (
            {"oldest": "soon"},
            {"oldest": "-1"},
            {"queue": "a\0"},
            {"queue": ["q"] * 99},
        ):
            with self.subTest(query):
                self.assertIn("error", self.ask("queues", 400, **query))

    def test_no_database_is_asked_for_a_transaction(self):
        away = {**connections.settings["default"], "NAME": "/no/such/file", "ATOMIC_REQUESTS": True}
        away["ENGINE"] = "django.db.backends.sqlite3"
        for module, view in ((views, "live"), (metrics, "metrics")):
            self.addCleanup(reload, module)
            with mock.patch.dict(connections.settings, away=away):
                atomic = BaseHandler().make_view_atomic(getattr(reload(module), view))
                self.assertLess(atomic(RequestFactory().get("/")).status_code, 500)

    def test_it_is_only_for_reading(self):
        self.assertEqual(self.client.head("/pq/live").status_code, 200)
        self.assertEqual(self.client.post("/pq/live").status_code, 405)
