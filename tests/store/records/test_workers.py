import json
from datetime import timedelta

from django.test import TestCase

from django_perfectqueue import store
from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.store.records.journal import WORKERS_AT_ONCE, WORKERS_KEPT_FOR
from django_perfectqueue.store.values import new_holder

from ...factories import NOON, after, processor


def worker(**options):
    terms = {
        "host": "one",
        "pid": 7,
        "version": "1",
        "processors": 2,
        "queues_text": '["default", "reports"]',
        "routes_text": '{"types": ["echo"], "patterns": [["^import", 2]]}',
    }
    return Worker(id=new_holder(), **{**terms, **options})


def register(one, now=NOON):
    store.records.register(one, using="default", now=now)


class RegisterTests(TestCase):
    def test_a_worker_tells_what_it_serves(self):
        register(worker())
        row = Worker.objects.get()
        self.assertEqual((row.host, row.pid, row.version, row.processors), ("one", 7, "1", 2))
        self.assertEqual(row.queues, ["default", "reports"])
        self.assertEqual(row.routes, {"types": ["echo"], "patterns": [("^import", 2)]})
        self.assertEqual(row.seen_at, NOON)
        self.assertLess(abs(row.started_at - NOON), timedelta(seconds=5))

    def test_it_is_seen_again_and_stays_one_row(self):
        one = worker(launcher=5, generation=3)
        register(one)
        row = Worker.objects.get()
        self.assertEqual((row.states, row.leaving), ([], False))
        started = row.started_at
        states = [processor(1, 7)]
        one.states_text, one.leaving = json.dumps(states), True
        register(one, after(10))
        row = Worker.objects.get()
        self.assertEqual((row.seen_at, row.started_at), (after(10), started))
        self.assertEqual((row.states, row.leaving), (states, True))
        self.assertEqual((row.launcher, row.generation), (5, 3))

    def test_who_leaves_is_seen_but_serves_no_more(self):
        register(worker(leaving=True))
        self.assertEqual(Worker.objects.seen(NOON).count(), 1)
        self.assertEqual(Worker.objects.serving(NOON).count(), 0)

    def test_the_servers_clock_is_read_where_no_time_is_given(self):
        one = worker()
        register(one, now=None)
        first = Worker.objects.get().seen_at
        register(one, now=None)
        self.assertGreater(Worker.objects.get().seen_at, first)

    def test_a_host_may_give_the_same_pid_to_another_worker(self):
        """
        In containers each supervisor often has the same pid, and at times the same name.
        """
        register(worker())
        register(worker())
        self.assertEqual(Worker.objects.count(), 2)

    def test_who_has_not_been_seen_is_gone(self):
        register(worker())
        row = Worker.objects.get()
        early, late = NOON + UNSEEN - timedelta(seconds=1), NOON + UNSEEN
        for row.clock, state in ((early, "alive"), (late, "gone")):
            self.assertEqual(row.state, state)
        self.assertEqual(list(Worker.objects.seen(early)), [row])
        self.assertEqual(list(Worker.objects.seen(late)), [])

    def test_who_signs_off_is_struck_out_and_no_other(self):
        one, other = worker(), worker()
        register(one)
        register(other)
        store.records.sign_off(one.id, using="default")
        self.assertEqual(Worker.objects.get().id, other.id)

    def test_who_enters_strikes_out_those_long_gone(self):
        old, younger = worker(), worker()
        register(old)
        register(younger, after(10))
        end = UNSEEN.total_seconds() + WORKERS_KEPT_FOR
        new = worker()
        register(new, after(end))
        self.assertEqual(set(Worker.objects.values_list("id", flat=True)), {younger.id, new.id})

    def test_so_many_of_them_at_most(self):
        Worker.objects.bulk_create(
            Worker(
                id=number,
                host="h",
                pid=1,
                version="1",
                processors=1,
                queues_text="[]",
                routes_text="null",
                started_at=NOON,
                seen_at=NOON,
            )
            for number in range(WORKERS_AT_ONCE + 1)
        )
        register(worker(), after(86_400))
        self.assertEqual(Worker.objects.count(), 2)
