"""Processors that run in the test's own process, so that it may look into them."""

import os
import threading
from unittest import mock

from django.core.management.color import no_style
from django.test import TransactionTestCase

from django_perfectqueue import conf
from django_perfectqueue.application import Dispatch
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.values import new_holder
from django_perfectqueue.worker.plan import Plan
from django_perfectqueue.worker.process.signals import Wakeup
from django_perfectqueue.worker.processor.leases import ProcessorResources
from django_perfectqueue.worker.processor.processor import Processor
from django_perfectqueue.worker.report import Reporter
from django_perfectqueue.worker.shared.status import ProcessorStatus

from ..constants import taken_from


class ConcurrentTestCase(TransactionTestCase):
    def processor(self, type_, routes, *, burst=True, **options):
        """Return a processor with these handlers; run it by ``work()``."""
        dispatch = type("SomeDispatch", (Dispatch,), {"routes": routes})
        terms = {"TASK_HEARTBEAT_INTERVAL": 0.05, "POLL_INTERVAL": 0.05, **options}
        constants = mock.patch.multiple(conf.Options, **taken_from(terms))
        constants.start()
        self.addCleanup(constants.stop)
        values = conf.options().replace(PROCESSOR_TYPE=type_, **terms)
        plan = Plan(
            dispatch=dispatch, queues=("default",), using="default", options=values, burst=burst
        )
        status = ProcessorStatus.shared(values.places)
        status.sign_on(new_holder())
        resources = ProcessorResources(
            status=status,
            wakeup=Wakeup(),
            heartbeat_w=self.pipe()[1],
            parent_alive=self.pipe()[0],
        )
        made = Processor(plan, resources, Reporter(lambda text: None, no_style(), 0))
        self.addCleanup(self.close_wakeups, made)
        return made

    def pipe(self):
        ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
            self.addCleanup(os.close, end)
        return ends

    def work(self, processor):
        """Do what run() does, but leave this process's signals alone; return its exit code."""
        processor.executor.open()
        processor.monitor.start()
        try:
            return processor.executor.run(processor.feeder.run)
        finally:
            processor.close()

    def close_wakeups(self, processor):
        """Close what a process of its own would close by ending."""
        mine = processor.resources.wakeup, processor.monitor_wakeup
        for wakeup in (*mine, *processor.wakeups):
            wakeup.close()

    def beside(self, act):
        """Do something while the processor works."""
        thread = threading.Thread(target=act)
        thread.start()
        self.addCleanup(thread.join)

    def submit(self, *types, **options):
        keys = [f"{type_}-{number}" for number, type_ in enumerate(types)]
        Queue().submit_many(
            {"key": key, "type": type_, **options} for key, type_ in zip(keys, types, strict=True)
        )
        return keys

    def statuses(self):
        return {task.key: task.status for task in Queue().list()}
