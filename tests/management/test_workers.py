import json
from datetime import timedelta

from django.test import TestCase

from django_perfectqueue.models import UNSEEN, Worker
from django_perfectqueue.queue import Queue
from tests.factories import processor, register, submit

from .running import refused, run, run_json

NOBODY = "No worker takes tasks. Start one: manage.py pq_worker"


class WorkersTests(TestCase):
    def test_they_are_listed_with_what_they_serve(self):
        register("mail", "reports", host="one", pid=17, processors=4, now=None)

        header, row, reported = run("pq_status", "workers").splitlines()

        self.assertRegex(
            header, r"^host +pid +generation +version +since +queues +processors +busy +seen"
        )
        self.assertRegex(row, r"^one +17 +1 +1 +\S+ ago +mail, reports +4 +0 +\S+ ago$")
        self.assertEqual(reported, "1 worker takes tasks.")

    def test_processors_that_are_kept_for_short_tasks_are_shown(self):
        register(now=None, states=[processor(1, 7), processor(2, kept=True)])
        self.assertIn("2 (1 kept)", run("pq_status", "workers"))
        shown = run("pq_status", "workers", "--tasks")
        self.assertRegex(shown, r"processor 2, pid 1002, kept for short tasks, 40 MB")
        [worker] = map(json.loads, run("pq_status", "workers", "--json").splitlines())
        self.assertEqual([state["kept"] for state in worker["states"]], [False, True])

    def test_its_processors_are_shown_with_what_they_run(self):
        task = submit("k1", user="ann", queue="mail", now=None)
        register(
            "mail",
            now=None,
            generation=2,
            states=[processor(1, task.id, finished=3), processor(2, 10**9)],
        )

        with self.assertNumQueries(2):
            out = run("pq_status", "workers", "--tasks")

        _header, row, *lines, _reported = out.splitlines()
        self.assertRegex(row, r"^one +7 +2 .* 2 +2 +\S+ ago$")
        self.assertEqual(lines[0], "  processor 1, pid 1001, 40 MB, 3 finished")
        self.assertRegex(lines[1], r"^    k1 type=report user=ann queue=mail for 5(\.\d)?s$")
        self.assertRegex(lines[3], r"^    task 1000000000, which is no longer stored, for 5")

    def test_how_far_what_they_run_is_costs_no_statement_more(self):
        submit("k1", now=None)
        task = Queue().poll()
        task.progress(0.4, "drawing")
        register(now=None, states=[processor(1, task.lease.task_id)])

        with self.assertNumQueries(2):
            out = run("pq_status", "workers", "--tasks")

        self.assertRegex(out, r"\n    k1 type=report queue=default for 5(\.\d)?s 40%, drawing\n")
        [reported] = run_json("pq_status", "workers")
        [runs] = reported["states"][0]["tasks"]
        self.assertEqual((runs["progress"], runs["stage"]), (0.4, "drawing"))

    def test_who_is_leaving_is_shown_as_leaving(self):
        register(host="one", now=None, leaving=True)

        _header, row, reported = run("pq_status", "workers").splitlines()

        self.assertRegex(row, r" ago +leaving$")
        self.assertEqual(reported, NOBODY)

    def test_a_host_is_drained_until_that_is_taken_back(self):
        task = submit("k1", now=None)
        register(host="one", pid=17, now=None, states=[processor(1, task.id)])
        register(host="one", pid=18, now=None)
        register(host="two", now=None)

        out = run("pq_status", "workers", "--drain", "one")
        self.assertRegex(out, r"\none +17 .* draining\n")
        self.assertRegex(out, r"\none +18 .* drained\n")
        self.assertTrue(out.endswith("\n1 worker takes tasks.\n"))
        self.assertEqual(Worker.objects.filter(draining=True).count(), 2)

        run("pq_status", "workers", "--undrain", "one:18")
        self.assertEqual(Worker.objects.get(draining=True).pid, 17)
        drained = [one["pid"] for one in run_json("pq_status", "workers") if one["draining"]]
        self.assertEqual(drained, [17])
        out = run("pq_status", "workers", "--drain", "one", "--drain", "two")
        self.assertIn("or have a drained one take them again: --undrain WORKER\n", out)

    def test_no_worker_of_a_name_is_drained(self):
        register(host="one", now=None)

        said = refused(self, "pq_status", "workers", "--drain", "ome")

        self.assertIn("No worker is called 'ome'. Did you mean 'one'?", said)

    def test_who_is_gone_is_shown_as_gone(self):
        register(host="one", now=None)
        Worker.objects.update(seen_at=Worker.objects.get().seen_at - UNSEEN)

        _header, row, reported = run("pq_status", "workers").splitlines()

        self.assertRegex(row, r"^one .* 30s ago +gone$")
        self.assertEqual(reported, NOBODY)

    def test_there_are_none(self):
        self.assertEqual(run("pq_status", "workers"), f"{NOBODY}\n")
        self.assertEqual(run_json("pq_status", "workers"), [])

    def test_those_of_one_queue(self):
        register("mail", host="one", now=None)
        register("mail", "reports", host="two", now=None)

        self.assertEqual(reported_hosts("--queue", "reports"), ["two"])
        self.assertEqual(set(reported_hosts("--queue", "mail")), {"one", "two"})
        self.assertEqual(reported_hosts("--queue", "default"), [])

    def test_the_one_who_was_seen_last_comes_first(self):
        for host in ("one", "two", "three"):
            register(host=host, now=None)
        Worker.objects.filter(host="one").update(
            seen_at=Worker.objects.get(host="three").seen_at + timedelta(seconds=1)
        )

        self.assertEqual(reported_hosts(), ["one", "three", "two"])

    def test_json_has_all_that_is_known(self):
        task = submit("k1", now=None)
        states = [processor(1, task.id)]
        worker = register(types=["echo"], patterns=[["^import", 34]], states=states, now=None)

        [reported] = run_json("pq_status", "workers")

        [found] = reported["states"]
        self.assertEqual((found["number"], found["memory"]), (1, 40 * 2**20))
        [running] = found["tasks"]
        self.assertEqual((running["id"], running["key"], running["user"]), (task.id, "k1", None))
        self.assertFalse(reported["leaving"])

        known = {name: reported[name] for name in ("id", "gone", "queues", "types", "patterns")}
        self.assertEqual(
            known,
            {
                "id": worker.id,
                "gone": False,
                "queues": ["default"],
                "types": ["echo"],
                "patterns": [["^import", 34]],
            },
        )

    def test_what_a_worker_knows_may_be_unknown(self):
        register(routes="null", now=None)

        [reported] = run_json("pq_status", "workers")

        self.assertIsNone(reported["types"])

    def test_an_unknown_database_is_refused(self):
        self.assertIn("no database", refused(self, "pq_status", "workers", "--database", "nowhere"))


def reported_hosts(*arguments):
    return [worker["host"] for worker in run_json("pq_status", "workers", *arguments)]
