import unittest
from unittest import mock

from django.test import TestCase

from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.metrics import otel
from django_perfectqueue.metrics.families import DatabaseCollector, kept

from ..factories import failed, register, submit_many
from ..health.test_queues import now
from ..inspection.test_statistics import ran

try:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
except ImportError:
    MeterProvider = None


@unittest.skipUnless(MeterProvider, "needs opentelemetry-sdk")
class InstrumentTests(TestCase):
    def setUp(self):
        kept.clear()
        self.addCleanup(kept.clear)
        submit_many(3, now=None)
        failed("k1", now=None)
        set_limit("smtp", max_running=2)
        register("default", now=None)
        ran(1.0, 2.0, at=now())

    def exported(self):
        """Return the points of each instrument, as a reader exports them."""
        reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self.addCleanup(provider.shutdown)
        otel.instrument(provider=provider)
        [resource] = reader.get_metrics_data().resource_metrics
        [scope] = resource.scope_metrics
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}

    def test_each_sample_of_the_collector_has_an_instrument(self):
        names = {
            sample.name.removeprefix(otel.PREFIX)
            for family in DatabaseCollector("default").collect()
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }
        self.assertEqual(names, {*otel.COUNTERS, *otel.GAUGES})

    def test_they_have_what_prometheus_has(self):
        found = self.exported()
        waiting = {"queue": "default", "status": "waiting"}
        [point] = [one for one in found["perfectqueue.tasks"] if one.attributes == waiting]
        self.assertEqual(point.value, 3)
        finished = {"queue": "default", "type": "report", "ending": "finished"}
        [point] = [one for one in found["perfectqueue.attempts"] if one.attributes == finished]
        self.assertEqual(point.value, 2)
        [point] = found["perfectqueue.run_seconds_sum"]
        self.assertEqual(point.value, 3.0)

    def test_all_instruments_share_one_look(self):
        collect = DatabaseCollector.collect
        with mock.patch.object(
            DatabaseCollector, "collect", autospec=True, side_effect=collect
        ) as looked:
            self.exported()
        self.assertEqual(looked.call_count, 1)

    def test_without_the_library_it_says_what_to_install(self):
        with (
            mock.patch.dict("sys.modules", {"opentelemetry": None}),
            self.assertRaisesMessage(ConfigError, "pip install 'django-perfectqueue[otel]'"),
        ):
            otel.instrument()
