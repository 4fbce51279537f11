from datetime import timedelta
from urllib.parse import urlencode

from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.models import Change, Limit, QueueShare, Worker
from django_perfectqueue.queue import Queue

from ..factories import register, submit
from ..management.running import run, run_json
from .forms import press
from .staff import AdminTestCase, staff

QUEUES = "/admin/perfectqueue/queueshare/"


class QueuesTests(AdminTestCase):
    def one(self, queue):
        return f"{QUEUES}?{urlencode({'queue': queue})}"

    def send(self, button, url=QUEUES, **typed):
        return press(self.client, self.client.get(url), button, **typed)

    def test_it_shows_what_queues_have_and_who_serves_them(self):
        register("default", now=None)
        submit(queue="reports", now=None)
        store.upkeep.wake_forgotten_lanes(using="default")

        page = self.client.get(QUEUES)
        self.assertEqual([row["name"] for row in page.context["rows"]], ["reports", "default"])
        self.assertContains(page, "no worker", 1)
        self.assertContains(self.client.get(self.one("default")), "one:7")

    def test_it_shows_whose_workers_are_drained(self):
        register("default", now=None)
        Worker.objects.update(draining=True)
        page = self.client.get(QUEUES)
        self.assertNotContains(page, "no worker")
        self.assertContains(page, '<a href="/admin/perfectqueue/worker/">drained</a>', 1)
        self.assertRegex(run("pq_queue", "list"), r"\ndefault .* drained\n")
        [shown] = run_json("pq_queue", "list")
        self.assertEqual((shown["is_drained"], shown["workers"]), (True, 0))

    def test_a_weight_is_edited_in_place_and_kept_in_the_changes(self):
        self.send("save", **{"weight-0": "2"})
        self.send("save", **{"weight-0": "3"})

        self.assertEqual(QueueShare.objects.get().weight, 3.0)
        changes = self.client.get("/admin/perfectqueue/change/")
        self.assertContains(changes, "queue &#x27;default&#x27;")
        self.assertContains(changes, "weight 2 → 3")
        self.assertContains(self.client.get(self.one("default")), "weight 2 → 3")

    def test_a_queue_is_paused_with_an_end_and_a_note_and_unpaused(self):
        self.send("pause", self.one("default"), until="2030-01-01T04:00", note="ticket 812")

        self.assertTrue(Queue().is_paused())
        overview = self.client.get("/admin/perfectqueue/overview/")
        self.assertContains(overview, f'<a href="{QUEUES}?queue=default">paused</a>')
        page = self.client.get(self.one("default"))
        self.assertContains(page, "until 2030-01-01 04:00, by boss: ticket 812")

        response = self.send("unpause", self.one("default"))
        self.assertEqual(self.reported(response), ["Done: 1 unpaused."])
        self.assertFalse(Limit.objects.exists())
        self.assertEqual(Change.objects.last().by, "boss")

    def test_everything_is_paused_for_a_maintenance_and_started_again_as_it_was(self):
        register("served", now=None)
        submit(queue="stored", now=None)
        Queue("stored").pause()
        self.assertNotContains(self.client.get(QUEUES), "End the maintenance")

        response = self.send("pause_all", until="2030-01-01T04:00", note="new disk")
        self.assertEqual(self.reported(response), ["Done: 2 paused."])
        self.assertContains(response, "until 2030-01-01 04:00, by boss (maintenance): new disk")
        self.assertTrue(Queue().is_paused() and Queue("served").is_paused())

        response = self.send("unpause_all")
        self.assertEqual(self.reported(response), ["Done: 2 unpaused."])
        self.assertFalse(Queue().is_paused() or Queue("served").is_paused())
        self.assertTrue(Queue("stored").is_paused())
        self.assertEqual(Change.objects.last().by, "boss")

    def test_a_maintenance_takes_over_a_pause_that_ends_before_it_does(self):
        for name, hours in (("early", 1), ("late", 3), ("open", None)):
            ends = None if hours is None else timezone.now() + timedelta(hours=hours)
            Queue(name).pause(until=ends)
            submit(queue=name, now=None)
        response = self.send("pause_all", until="2h")
        self.assertEqual(self.reported(response), ["Done: 2 paused."])
        self.send("unpause_all")
        paused = [name for name in ("early", "late", "open") if Queue(name).is_paused()]
        self.assertEqual(paused, ["late", "open"])
        self.assertEqual(self.reported(self.send("pause_all")), ["Done: 3 paused."])

    def test_the_end_of_a_maintenance_leaves_what_a_person_has_paused_meanwhile(self):
        self.send("pause_all")
        Queue("by-hand").pause(note="Maintenance: new disk", by="boss")
        self.send("unpause", self.one("default"))
        self.send("pause", self.one("default"), note="Maintenance")
        self.assertNotContains(self.client.get(QUEUES), "End the maintenance")
        self.client.post(QUEUES, {"unpause_all": ""})
        self.assertTrue(Queue("by-hand").is_paused() and Queue().is_paused())

    def test_a_maintenance_takes_the_permission_to_pause(self):
        self.client.force_login(staff("view_queueshare"))
        self.assertNotContains(self.client.get(QUEUES), "pause_all")
        for button in ("pause_all", "unpause_all"):
            self.assertEqual(self.client.post(QUEUES, {button: ""}).status_code, 403)
        self.assertFalse(Limit.objects.exists())

    def test_who_may_only_look_can_change_nothing(self):
        self.client.force_login(staff("view_queueshare"))
        typed = {"name-0": "default", "weight-0": "3", "chosen": ["default"]}
        for button in ("save", "pause", "unpause"):
            self.assertEqual(self.client.post(QUEUES, {**typed, button: ""}).status_code, 403)
        self.assertNotContains(self.client.get(QUEUES), 'name="pause"')

    def test_a_weight_and_a_pause_have_permissions_of_their_own(self):
        typed = {"name-0": "default", "weight-0": "3", "chosen": ["default"]}
        for permission, allowed in (("change_queueshare", "save"), ("change_limit", "pause")):
            self.client.force_login(staff("view_queueshare", permission, name=permission))
            for button in ("save", "pause"):
                status = self.client.post(QUEUES, {**typed, button: ""}).status_code
                self.assertEqual(status, 302 if button == allowed else 403)

    def test_what_is_no_queue_has_no_page(self):
        for name in ("\x00", "x" * 101):
            self.assertEqual(self.client.get(self.one(name)).status_code, 400)
