import io
import json
import re
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from django_perfectqueue import store
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.health import queues
from django_perfectqueue.metrics import families, views
from django_perfectqueue.metrics.families import ProcessCollector
from django_perfectqueue.queue import Queue

from ..admin.staff import staff
from ..factories import after, failed, processor, register, submit, submit_many
from ..inspection.test_statistics import DAY, ran, roll_up
from ..management.running import run, run_json

SHIPPED = Path(__file__).parents[2] / "docs" / "reference" / "metrics"
METRIC = re.compile(r"(perfectqueue_\w+)(?:\{([^}]*)\})?")
urlpatterns = [path("pq/metrics", include("django_perfectqueue.metrics.urls"))]

LABELS = ("scope", "queue", "type", "status", "ending", "group", "host", "name", "version", "le")
OPEN = "application/openmetrics-text; version=1.0.0"
TOKEN = {"METRICS_TOKEN": "s3cret"}


class MetricsTestCase(TestCase):
    def setUp(self):
        families.kept.clear()
        self.addCleanup(families.kept.clear)

    def samples(self):
        """Return the value of each series, by its name and its labels in order."""
        families.kept.clear()
        store.upkeep.wake_forgotten_lanes(using="default")
        written, _type = views.of_database("default")
        return {
            (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): (
                sample.value
            )
            for family in text_string_to_metric_families(written.decode())
            for sample in family.samples
        }


class FamilyTests(MetricsTestCase):
    def test_queues_have_gauges(self):
        register("mail", now=None, processors=3)
        submit_many(4, queue="mail", now=store.records.clock(using="default"))
        submit(queue="other", now=None, run_at="1h")
        Queue("other").pause()
        failed("bad", now=None, user="ann")
        set_limit("smtp", max_running=7)
        set_limit("ann", scope="user", max_running=1)
        set_limit("stripe:*", max_running=2)

        found = self.samples()
        self.assertEqual(found["perfectqueue_tasks", "mail", "waiting"], 4)
        self.assertEqual(found["perfectqueue_tasks", "other", "scheduled"], 1)
        self.assertEqual(found["perfectqueue_workers", "mail"], 1)
        self.assertEqual(found["perfectqueue_workers", "other"], 0)
        self.assertEqual(found["perfectqueue_processors", "mail"], 3)
        self.assertEqual(found["perfectqueue_paused", "other"], 1)
        self.assertEqual(found["perfectqueue_failed_last_day", "boom"], 1)
        self.assertEqual(found["perfectqueue_limit_max_running", "name", "smtp"], 7)
        self.assertNotIn(("perfectqueue_limit_max_running", "user", "ann"), found)
        self.assertEqual(found["perfectqueue_limit_max_running", "name", "stripe:*"], 2)
        self.assertNotIn(("perfectqueue_limit_running", "name", "stripe:*"), found)
        self.assertEqual(found["perfectqueue_worker_info", "one", "1"], 1)
        self.assertEqual(found["perfectqueue_scrape_errors",], 0)

    def test_counters_never_fall_however_old_their_figures_are(self):
        ran(1.0, 3.0)
        ran(1.0, type="mail", word="failed")
        register("default", now=None)
        before = self.samples()
        self.assertEqual(before["perfectqueue_attempts_total", "default", "report", "finished"], 2)
        self.assertEqual(before["perfectqueue_attempts_total", "default", "mail", "failed"], 1)
        self.assertEqual(before["perfectqueue_run_seconds_sum", "default"], 5.0)
        self.assertEqual(before["perfectqueue_run_seconds_count", "default"], 3)
        self.assertEqual(before["perfectqueue_run_seconds_bucket", "default", "1.0"], 0)
        self.assertEqual(before["perfectqueue_run_seconds_bucket", "default", "4.0"], 3)
        self.assertEqual(before["perfectqueue_run_seconds_bucket", "default", "+Inf"], 3)

        roll_up(after(100 * DAY))
        later = self.samples()
        for series, value in before.items():
            if series[0].endswith(("_total", "_count", "_bucket")):
                self.assertEqual(later[series], value, series)

    def test_types_and_queues_that_a_user_makes_up_make_no_more_series(self):
        with mock.patch.multiple(families, TYPES=3, QUEUES=1):
            for number in range(10):
                ran(1.0, type=f"type-{number}", at=after(number))
            found = self.samples()
        types = {one[2] for one in found if one[0] == "perfectqueue_attempts_total"}
        self.assertEqual(types, {"type-0", "type-1", "type-2", "(others)"})
        attempts = [
            value for one, value in found.items() if one[0] == "perfectqueue_attempts_total"
        ]
        self.assertEqual(sum(attempts), 10)

        for number in range(6):
            submit(queue=f"q{number}", now=None)
        with mock.patch.object(queues, "QUEUES", 4):
            found = self.samples()
        self.assertEqual(len({one[1] for one in found if one[0] == "perfectqueue_workers"}), 4)

    def test_no_series_names_a_user_or_a_task(self):
        submit("secret-key", user="secret-user", now=None)
        failed("secret-bad", user="secret-user", now=None)
        ran(1.0, user="secret-user")
        self.samples()
        self.assertNotIn("secret", views.of_database("default")[0].decode())

    def test_names_are_escaped(self):
        submit(queue='a"b\\c\nd', now=None)
        self.assertIn(("perfectqueue_workers", 'a"b\\c\nd'), self.samples())

    def test_both_formats_are_well_formed(self):
        ran(1.0)
        register("default", now=None)
        plain, plain_type = views.of_database("default")
        self.assertTrue(plain_type.startswith("text/plain"))
        self.assertGreater(len(list(text_string_to_metric_families(plain.decode()))), 10)
        opened, opened_type = views.of_database("default", OPEN)
        self.assertTrue(opened_type.startswith("application/openmetrics-text"))
        self.assertGreater(len(list(open_metrics(opened.decode()))), 10)

    def test_a_scrape_takes_eleven_statements_and_the_next_ones_none(self):
        for number in range(10):
            submit(queue=f"queue-{number}", now=None)
            ran(1.0, queue=f"queue-{number}")
        register("default", now=None)
        with CaptureQueriesContext(connection) as queries:
            views.of_database("default")
        self.assertLessEqual(len(queries), 11, [query["sql"][:60] for query in queries])
        with self.assertNumQueries(0):
            views.of_database("default")
            views.of_database("default", OPEN)

    def test_what_can_not_be_read_is_left_out_and_counted(self):
        register("default", now=None)
        with mock.patch.object(families, "totals", side_effect=OperationalError):
            found = self.samples()
        self.assertEqual(found["perfectqueue_scrape_errors",], 1)
        self.assertEqual(found["perfectqueue_workers", "default"], 1)
        with mock.patch.object(families, "overview", side_effect=OperationalError):
            found = self.samples()
        self.assertEqual(found["perfectqueue_scrape_errors",], 1)


class ShippedTests(MetricsTestCase):
    """The dashboard and the alerts ask for metrics that there are, by labels that they have."""

    def test_each_metric_of_the_dashboard_and_the_alerts_exists(self):
        ran(1.0)
        submit("k1", type="misspelt", now=None)
        failed("bad", now=None)
        set_limit("smtp", max_running=7)
        register("default", now=None)
        self.samples()
        states = [processor(1, finished=3)]
        known = self.series(views.of_database("default")[0])
        known |= self.series(views.written(ProcessCollector(True, True, states), "")[0])
        known |= {name: {*labels, "instance"} for name, labels in known.items()}

        alerts = yaml_expressions((SHIPPED / "alerts.yaml").read_text())
        board = json.loads((SHIPPED / "grafana.json").read_text())
        asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        self.assertEqual((len(alerts), len(asked) > 10), (13, True))
        for expression in (*alerts, *asked):
            for name, labels in METRIC.findall(expression):
                with self.subTest(name):
                    self.assertIn(name, known)
                    self.assertLessEqual(set(re.findall(r"(\w+)[!=]", labels)), known[name])

    def test_the_reference_names_each_metric(self):
        page = (SHIPPED.parent / "metrics.md").read_text()
        ran(1.0)
        written = (
            views.of_database("default")[0]
            + views.written(ProcessCollector(True, True, [processor(1)]), "")[0]
        )
        for family in text_string_to_metric_families(written.decode()):
            with self.subTest(family.name):
                self.assertRegex(page, rf"`{family.name}(_total)?`")

    def series(self, written):
        return {
            sample.name: set(sample.labels)
            for family in text_string_to_metric_families(written.decode())
            for sample in family.samples
        }


def yaml_expressions(rules):
    return re.findall(r"expr: >-\n +(.+)\n", rules)


@override_settings(ROOT_URLCONF=__name__)
class UrlTests(MetricsTestCase):
    def get(self, token=None, **headers):
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return self.client.get("/pq/metrics", headers=headers)

    def test_it_is_for_those_who_have_the_token(self):
        self.assertEqual(self.get("").status_code, 401)
        self.assertEqual(self.get("None").status_code, 401)
        with override_settings(PERFECTQUEUE=TOKEN):
            self.assertEqual(self.get().status_code, 401)
            self.assertEqual(self.get("wrong").status_code, 401)
            answer = self.get("s3cret")
        self.assertContains(answer, "perfectqueue_scrape_seconds")
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version="))
        self.assertIn("no-store", answer.headers["Cache-Control"])
        self.assertEqual(self.client.post("/pq/metrics").status_code, 405)

    def test_or_the_permission(self):
        for user, code in (
            (User.objects.create_user("anyone"), 401),
            (staff("view_task", name="without"), 401),
            (staff("view_overview", name="with"), 200),
        ):
            self.client.force_login(user)
            self.assertEqual(self.get().status_code, code, user)

    def test_open_metrics_for_those_who_accept_it(self):
        with override_settings(PERFECTQUEUE=TOKEN):
            answer = self.get("s3cret", Accept=OPEN)
            odd = self.get("s3cret", Accept="text/plain; version=new")
        self.assertTrue(answer.headers["Content-Type"].startswith("application/openmetrics-text"))
        self.assertEqual(odd.status_code, 200)

    def test_the_token_is_reported_nobody(self):
        out = io.StringIO()
        with (
            override_settings(PERFECTQUEUE={"METRICS_TOKEN": 5551234}),
            self.assertRaises(Exception) as caught,
        ):
            call_command("check", stdout=out, stderr=out)
        self.assertIn("METRICS_TOKEN", str(caught.exception))
        self.assertNotIn("5551234", str(caught.exception))


class CommandTests(MetricsTestCase):
    def test_it_prints_them(self):
        register("default", now=None)
        self.assertIn('perfectqueue_workers{queue="default"} 1.0\n', run("pq_status", "metrics"))
        rows = run_json("pq_status", "metrics")
        row = {"name": "perfectqueue_workers", "labels": {"queue": "default"}, "value": 1.0}
        self.assertIn(row, rows)

    def test_without_the_library_it_says_what_to_install(self):
        with (
            without_library(),
            self.assertRaisesMessage(CommandError, "pip install 'django-perfectqueue[metrics]'"),
        ):
            run("pq_status", "metrics")
        with without_library(), self.assertRaises(ImproperlyConfigured):
            views.of_database("default")


@contextmanager
def without_library():
    with mock.patch.dict("sys.modules", {"prometheus_client.exposition": None}):
        yield
