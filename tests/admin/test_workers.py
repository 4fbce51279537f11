from datetime import timedelta

from django_perfectqueue.models import UNSEEN, Worker

from ..factories import register
from .staff import AdminTestCase, staff

WORKERS = "/admin/perfectqueue/worker/"


class WorkerTests(AdminTestCase):
    def test_workers_are_listed_with_what_they_serve(self):
        register("mail", "reports", host="one", pid=17, processors=4, now=None)

        response = self.client.get(WORKERS)
        for words in ("one", "17", "mail, reports", "there"):
            self.assertContains(response, words)
        self.assertNotContains(response, "pq-failed")

    def test_who_is_gone_is_told_so(self):
        register(host="one", now=None)
        Worker.objects.update(seen_at=Worker.objects.get().seen_at - UNSEEN)

        self.assertContains(self.client.get(WORKERS), '<span class="pq-status pq-failed">gone')

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

    def test_it_takes_its_permission(self):
        self.client.force_login(staff("view_task", name="tasks"))
        self.assertEqual(self.client.get(WORKERS).status_code, 403)
        self.client.force_login(staff("view_worker", name="workers"))
        self.assertEqual(self.client.get(WORKERS).status_code, 200)
