"""
How much faster more hosts are, as far as one machine can show: measured when asked for by name.

PERFECTQUEUE_FLEET is the number of tasks.
"""

import os
import sys
import unittest

from django.db import connection
from django.db.models import Max, Min

from django_perfectqueue.models import Task
from django_perfectqueue.queue import Queue

from ..waiting import wait_until
from .case import FleetTestCase, wait_until_up
from .networks import network_for

TASKS = int(os.environ.get("PERFECTQUEUE_FLEET", 20_000))
LONGEST = 600.0
HOSTS = (1, 2, 3)
LOADS = (
    ("nothing", "report", {}, 1, TASKS),
    ("20 ms of waiting", "spend", {"seconds": 0.02}, 8, TASKS // 10),
)


@unittest.skipIf(connection.vendor == "sqlite", "A SQLite file serves one host.")
class GrowthTests(FleetTestCase):
    def setUp(self):
        super().setUp()
        self.network = network_for(connection)
        self.addCleanup(self.network.close)
        self.hosts = [self.network.host(f"host{number}") for number in HOSTS]

    def test_what_each_host_adds(self):
        sys.stderr.write(f"\n{connection.vendor}, {self.network.form}\n")
        for name, type_, data, processors, count in LOADS:
            for hosts in HOSTS:
                rate = self.drain(hosts, type_, data, processors, count)
                sys.stderr.write(f"{name}, {hosts} x {processors} processors: {rate:,.0f}/s\n")
                self.assertGreater(rate, 0)

    def drain(self, hosts, type_, data, processors, count):
        Queue().clear()
        Queue().pause()
        workers = [self.worker_on(host, PROCESSORS=processors) for host in self.hosts[:hosts]]
        users = [f"u{number}" for number in range(10)]
        Queue().submit_many(
            {"key": str(number), "type": type_, "data": data, "user": users[number % len(users)]}
            for number in range(count)
        )
        wait_until_up(*workers)
        Queue().unpause()
        finished = Task.objects.filter(outcome="finished")
        wait_until(lambda: finished.count() == count, within=LONGEST)
        for worker in workers:
            worker.end()
        span = finished.aggregate(first=Min("started_at"), last=Max("ended_at"))
        return count / (span["last"] - span["first"]).total_seconds()
