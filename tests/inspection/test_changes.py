"""Tasks that people watch in the admin."""

from datetime import timedelta

from django_perfectqueue.models import Watch
from django_perfectqueue.queue import Queue

from ..admin.staff import LIST, VIEW, AdminTestCase, staff

HOUR = timedelta(hours=1)


def submit(key="k1", **options):
    return Queue().submit(key, "report", **options)


class ListTests(AdminTestCase):
    def watch(self, task, **data):
        return self.client.post(f"{LIST}{task.id}/watch/", {"back": LIST, **data})

    def test_each_person_has_a_list(self):
        first, second = submit("a"), submit("b")
        submit("c")
        self.assertContains(self.story(first), '<button type="submit" class="button">Watch')
        for _twice in range(2):
            self.assertRedirects(self.watch(first), LIST)
        self.watch(second)
        self.assertContains(self.story(first), "Stop watching")
        self.assertEqual(self.keys(watched="me"), ["b", "a"])
        self.assertEqual(self.keys(watched="me", queue="default", status="waiting"), ["b", "a"])

        self.client.force_login(staff(*VIEW))
        self.assertEqual(self.keys(watched="me"), [])
        self.watch(second)
        self.assertEqual(self.keys(watched="me"), ["b"])
        self.client.force_login(self.boss)
        for _twice in range(2):
            self.watch(second, stop="")
        self.assertEqual(self.keys(watched="me"), ["a"])
        self.assertEqual(Watch.objects.count(), 2)

    def test_only_who_may_see_tasks_may_watch_them_and_only_by_a_button(self):
        task = submit("a")
        url = f"{LIST}{task.id}/watch/"
        self.assertEqual(self.client.get(url).status_code, 405)
        self.assertEqual(self.client.post(f"{LIST}{task.id + 1}/watch/").status_code, 404)
        away = self.client.post(url, {"back": "https://example.com/"})
        self.assertRedirects(away, LIST)
        self.client.force_login(staff(name="nobody"))
        self.assertEqual(self.client.post(url).status_code, 403)
        self.client.logout()
        self.assertEqual(self.client.post(url).status_code, 302)
        self.assertEqual(Watch.objects.count(), 1)

    def test_it_goes_with_the_task(self):
        task = submit("a")
        self.watch(task)
        Queue().poll().finish()
        self.assertEqual(self.keys(watched="me"), ["a"])
        Queue().purge(0)
        self.assertEqual(Watch.objects.count(), 0)
