from datetime import timedelta

from django.contrib.admin.models import LogEntry

from django_perfectqueue.models import UNSEEN, Worker

from ..factories import processor, register, submit
from .forms import press
from .staff import AdminTestCase, staff

WORKERS = "/admin/perfectqueue/worker/"


class WorkerTests(AdminTestCase):
    def test_workers_are_listed_with_what_they_serve(self):
        register("mail", "reports", host="one", pid=17, processors=4, now=None)

        response = self.client.get(WORKERS)
        for words in ("one", "17", '?queue=mail">mail</a>, <a href="', "alive"):
            self.assertContains(response, words)
        self.assertNotContains(response, "pq-failed")

    def test_who_is_gone_is_shown_as_gone(self):
        register(host="one", now=None)
        Worker.objects.update(seen_at=Worker.objects.get().seen_at - UNSEEN)

        self.assertContains(self.client.get(WORKERS), '<span class="pq-status pq-failed">gone')

    def test_what_it_runs_is_linked(self):
        task = submit("k1", user="ann", now=None)
        register(now=None, states=[processor(1, task.id), processor(2, 10**9), processor(3)])

        statements = self.statements(WORKERS)
        self.assertEqual(
            sum('"perfectqueue_task"' in sql.replace("`", '"') for sql in statements), 1
        )
        response = self.client.get(WORKERS)
        self.assertContains(response, f'href="/admin/perfectqueue/task/{task.id}/change/"')
        self.assertContains(response, "#1000000000")
        self.assertContains(response, "2, 2 busy")

    def test_processors_that_are_kept_for_short_tasks_are_counted(self):
        register(now=None, states=[processor(1, 7), processor(2, kept=True)])
        self.assertContains(self.client.get(WORKERS), "2, 1 busy, 1 kept for short tasks")

    def test_who_may_not_see_tasks_sees_how_many_run(self):
        task = submit("secret-report", now=None)
        register(now=None, states=[processor(1, task.id)])
        self.client.force_login(staff("view_worker", name="workers"))

        response = self.client.get(WORKERS)
        self.assertContains(response, "1 task<")
        self.assertNotContains(response, "secret-report")

    def test_many_tasks_are_cut_short(self):
        register(now=None, states=[processor(number, number) for number in range(1, 13)])

        self.assertContains(self.client.get(WORKERS), "<li>and 7 more</li>")

    def test_who_is_leaving_is_shown_as_leaving(self):
        register(now=None, leaving=True)

        self.assertContains(self.client.get(WORKERS), '<span class="pq-status pq-retrying">leaving')

    def test_the_one_who_was_seen_last_comes_first(self):
        for host in ("one", "two"):
            register(host=host, now=None)
        seen = Worker.objects.get(host="two").seen_at
        Worker.objects.filter(host="one").update(seen_at=seen + timedelta(seconds=1))

        rows = self.client.get(WORKERS).context["cl"].result_list
        self.assertEqual([row.host for row in rows], ["one", "two"])

    def test_nothing_can_be_changed(self):
        worker = register(now=None)

        self.assertNotContains(self.client.get(WORKERS), "Add worker")
        self.assertEqual(self.client.post(f"{WORKERS}{worker.id}/delete/").status_code, 403)
        self.assertEqual(self.client.post(f"{WORKERS}add/").status_code, 403)

    def test_a_worker_is_drained_by_the_button_of_its_row(self):
        register(now=None)
        response = press(self.client, self.client.get(WORKERS), "drain")
        self.assertEqual(self.reported(response), ["Done: 1 asked to drain."])
        self.assertContains(response, '<span class="pq-status pq-retrying">drained')
        self.assertTrue(Worker.objects.get().draining)
        entry = LogEntry.objects.get()
        self.assertEqual((entry.user, entry.change_message), (self.boss, "asked to drain"))

        response = press(self.client, response, "undrain")
        self.assertContains(response, '<span class="pq-status pq-running">alive')

    def test_a_host_with_several_workers_is_drained_by_one_button(self):
        for host, leaving in (("one", False), ("one", False), ("two", False), ("two", True)):
            register(host=host, leaving=leaving, now=None)
        response = self.client.get(WORKERS)
        self.assertContains(response, 'name="drain_host" value="one"', 2)
        self.assertNotContains(response, 'name="drain_host" value="two"')
        press(self.client, response, "drain_host")
        draining = Worker.objects.filter(draining=True).values_list("host", flat=True)
        self.assertEqual(list(draining), ["one", "one"])

    def test_many_are_drained_by_an_action(self):
        task = submit("k1", now=None)
        workers = [register(host="one", now=None, states=[processor(1, task.id)])]
        workers.append(register(host="two", now=None))
        response = self.act(WORKERS, "drain", *workers)
        self.assertContains(response, "draining<")
        self.assertEqual(Worker.objects.filter(draining=True).count(), 2)
        self.act(WORKERS, "undrain", *workers)
        self.assertFalse(Worker.objects.filter(draining=True).exists())

    def test_who_may_only_look_drains_nothing(self):
        worker = register(now=None)
        self.client.force_login(staff("view_worker", name="workers"))
        self.assertNotContains(self.client.get(WORKERS), "Drain")
        response = self.client.post(WORKERS, {"drain": worker.id})
        self.assertEqual(response.status_code, 403)
        self.forge_action(WORKERS, "drain", worker)
        self.assertFalse(Worker.objects.get().draining)

    def test_it_takes_its_permission(self):
        self.client.force_login(staff("view_task", name="tasks"))
        self.assertEqual(self.client.get(WORKERS).status_code, 403)
        self.client.force_login(staff("view_worker", name="workers"))
        self.assertEqual(self.client.get(WORKERS).status_code, 200)
