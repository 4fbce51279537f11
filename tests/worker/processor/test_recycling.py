"""Processors that are replaced before what their handlers leak adds up."""

import os
import resource
import sys
from pathlib import Path
from unittest import mock

from django.core.management.color import no_style
from django.test import SimpleTestCase, tag

from django_perfectqueue.application import Registry
from django_perfectqueue.conf import Options
from django_perfectqueue.lib import processes
from django_perfectqueue.lib.processes import resident
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.processor import feeder, pacing
from django_perfectqueue.worker.processor.leases import ProcessorResources
from django_perfectqueue.worker.processor.pacing import MIB, Recycling
from django_perfectqueue.worker.processor.processor import Processor
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared.status import ProcessorStatus

from ..workers import WorkerTestCase


class RecyclingTests(SimpleTestCase):
    def due_at(self, ages, resident=(), **settings):
        """Return at which of these ages, in seconds, one is due."""
        one = Recycling(Options().replace(**settings))
        sizes = iter(resident)
        found = []
        with (
            mock.patch.object(pacing, "resident", side_effect=sizes),
            self.assertLogs("django_perfectqueue.processor", "INFO") as logged,
        ):
            pacing.processor_logger.info("begin")
            for age in ages:
                with mock.patch.object(pacing.time, "monotonic", return_value=one.born + age):
                    if one.is_due():
                        found.append(age)
        self.logged = logged.output[1:]
        return found

    def test_without_limits_nothing_is_ever_asked(self):
        self.assertEqual(self.due_at([0, 1e9]), [])

    def test_who_is_too_old_is_due_and_stays_so(self):
        self.assertEqual(self.due_at([0, 89, 100, 101], RECYCLE={"age": 100}), [100, 101])
        self.assertEqual(len(self.logged), 1)

    def test_who_has_grown_too_large_is_due(self):
        sizes = [89 * MIB, 100 * MIB]
        self.assertEqual(self.due_at([1, 2, 3], sizes, RECYCLE={"memory": 100}), [2, 3])
        self.assertIn("A processor has grown large; it is replaced.", self.logged[0])

    def test_memory_is_read_once_a_second(self):
        sizes = [0, 0]
        ages = [tenth / 10 for tenth in range(25)]
        self.assertEqual(self.due_at(ages, sizes, RECYCLE={"memory": 100}), [])

    def test_those_who_began_together_do_not_leave_together(self):
        options = Options().replace(RECYCLE={"age": 100, "memory": 100})
        made = [Recycling(options) for _one in range(20)]
        for limits, most in (([m.age for m in made], 100), ([m.memory for m in made], 100 * MIB)):
            self.assertGreater(len(set(limits)), 10)
            self.assertTrue(all(0.9 * most <= limit <= most for limit in limits))

    def test_what_is_held_now_is_reported_and_not_the_most_ever(self):
        ballast = bytearray(64 * MIB)
        for place in range(0, len(ballast), 4096):
            ballast[place] = 1
        with_it = resident()
        del ballast
        self.assertLess(resident(), with_it - 32 * MIB)

    def test_where_there_is_no_proc_the_most_so_far_is_reported(self):
        with mock.patch.object(processes, "PROC", Path("/nowhere")):
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            unit = 1 if sys.platform == "darwin" else 1024
            self.assertGreaterEqual(resident(), most * unit)


@tag("any-database")
class ReplacementTests(WorkerTestCase):
    def test_what_has_grown_is_replaced_after_its_task(self):
        self.submit("k0", "spend", data={"seconds": 1.1})
        worker = self.burst("--max-memory", "1")
        self.assertEqual(worker.errors.count("A processor has grown large"), 1)
        self.assertNotIn("A processor died", worker.errors)
        self.assertEqual(len(worker.processors()), 2)
        self.assertEqual(self.status("k0"), "finished")


class IdleTests(SimpleTestCase):
    def test_one_that_is_idle_is_replaced_too(self):
        parent_alive, pulse = os.pipe()
        self.addCleanup(os.close, parent_alive)
        self.addCleanup(os.close, pulse)
        options = Options().replace(RECYCLE={"age": 100})
        plan = Plan(dispatch=Registry, queues=("default",), using="default", options=options)
        status = ProcessorStatus.shared()
        status.sign_on(1)
        resources = ProcessorResources(
            status=status,
            wakeup=Wakeup(),
            heartbeat_w=pulse,
            parent_alive=parent_alive,
        )
        resources.wakeups.note_listener()
        one = Processor(plan, resources, Reporter(print, no_style(), 0))
        one.recycling.born -= 101
        one.feeder.link = None  # to look for tasks would be an error
        with mock.patch.object(feeder.Feeder, "close"):
            self.assertEqual(one.feeder.run(), feeder.RECYCLED)
