"""Each alert rule fires in a series in which it must, and is silent in one in which it must not."""

import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from django.test import SimpleTestCase

from .test_metrics import SHIPPED

PROMTOOL = shutil.which("promtool")
RULES = SHIPPED / "alerts.yaml"
FAILED = 'attempts_total{queue="a",type="t",ending="failed"}'
FINISHED = 'attempts_total{queue="a",type="t",ending="finished"}'
UP = {"scrape_errors": "0x200"}
CASES = [
    ("NotScraped", {"unknown_types": "0x200"}, UP),
    (
        "NoWorker",
        {'tasks{queue="a",status="waiting"}': "1x200", 'parked_tasks{queue="a"}': "0x200"}
        | {'workers{queue="a"}': "0x200"},
        {'tasks{queue="a",status="waiting"}': "1x200", 'parked_tasks{queue="a"}': "0x200"}
        | {'workers{queue="a"}': "1x200"},
    ),
    (
        "NoWorker",
        {'tasks{queue="a",status="waiting"}': "0x200", 'parked_tasks{queue="a"}': "2x200"}
        | {'workers{queue="a"}': "0x200"},
        {'tasks{queue="a",status="waiting"}': "0x200", 'parked_tasks{queue="a"}': "0x200"}
        | {'workers{queue="a"}': "0x200"},
    ),
    (
        "OldestWaiting",
        {'oldest_waiting_seconds{queue="a"}': "301x200"},
        {'oldest_waiting_seconds{queue="a"}': "299x200"},
    ),
    (
        "FailRate",
        {FAILED: "0+1x200", FINISHED: "0+9x200"},
        {FAILED: "0+1x200", FINISHED: "0+49x200"},
    ),
    ("FailRate", {FAILED: "0+3x200"}, {FAILED: "0+1x200"}),
    (
        # The gauge of a day knows no more than 1,000, so it stands still.
        "FailuresGrow",
        {FAILED: "0+20x200", 'failed_last_day{group="e"}': "1000x200"},
        {FAILED: "5000+1x200", 'failed_last_day{group="e"}': "1000x200"},
    ),
    ("UnknownType", {'unknown_types{queue="a"}': "1x200"}, {'unknown_types{queue="a"}': "0x200"}),
    (
        "Blocked",
        {
            'tasks{queue="a",status="blocked"}': "5x200",
            'tasks{queue="a",status="running"}': "0x200",
        },
        {
            'tasks{queue="a",status="blocked"}': "5x200",
            'tasks{queue="a",status="running"}': "1x200",
        },
    ),
    (
        "Crashes",
        {'attempts_total{queue="a",type="t",ending="lost"}': "0+1x200"},
        {'attempts_total{queue="a",type="t",ending="lost"}': "9x200"},
    ),
    (
        "Stalled",
        {'tasks{queue="a",status="stalled"}': "1x200"},
        {'tasks{queue="a",status="stalled"}': "0x200"},
    ),
    ("WorkerNotReady", {"worker_ready": "0x200"}, {"worker_ready": "1x200"}),
    ("Paused", {'paused{queue="a"}': "1x2000"}, {'paused{queue="a"}': "1x10 0x1990"}),
    ("ScheduleLate", {"late_schedules": "1x200"}, {"late_schedules": "0x200"}),
    ("ScrapeErrors", {"scrape_errors": "1x200"}, UP),
]
"""The alert, the series in which it fires and those in which it does not; each in a minute."""


def series(values, hosts):
    """Return what Prometheus has where each of so many hosts answers with these values."""
    for name, text in values.items():
        plain, _brace, labels = name.partition("{")
        for number in range(hosts):
            host = f'instance="web-{number}"'
            given = ",".join(filter(None, [labels.removesuffix("}"), host]))
            yield {"series": f"perfectqueue_{plain}{{{given}}}", "values": text}


def tests(hosts):
    for alert, fires, silent in CASES:
        for values, is_firing in ((fires, True), (silent, False)):
            at = "1d1h" if alert == "Paused" else "3h"
            count = f'count(ALERTS{{alertname="PerfectQueue{alert}",alertstate="firing"}})'
            each = hosts if alert == "WorkerNotReady" else 1
            samples = [{"labels": "{}", "value": each}] if is_firing else []
            asked = {"expr": count, "eval_time": at, "exp_samples": samples}
            yield {
                "name": f"{alert} fires: {is_firing}, hosts: {hosts}",
                "interval": "1m",
                "input_series": list(series(values, hosts)),
                "promql_expr_test": [asked],
            }


class AlertTests(SimpleTestCase):
    def test_each_rule_has_its_series(self):
        rules = re.findall(r"alert: PerfectQueue(\w+)", RULES.read_text())
        self.assertEqual(sorted(rules), sorted({alert for alert, _fires, _silent in CASES}))

    @unittest.skipUnless(PROMTOOL, "needs promtool: apt-get install prometheus")
    def test_each_rule_fires_and_is_silent_with_one_host_and_with_two(self):
        file = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
        file["tests"] = [*tests(1), *tests(2)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tests.yaml"
            path.write_text(json.dumps(file))
            command = [PROMTOOL, "test", "rules", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
