from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_perfectqueue.models import Task

from .forms import press

VIEW = ("view_task", "view_deadletter", "view_account", "view_fairshare", "view_worker")
LIST = "/admin/perfectqueue/task/"


def staff(*permissions, name="staff"):
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def row(task):
    return Task.objects.get(queue=task.queue.name, key=task.key)


class AdminTestCase(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.boss = User.objects.create_superuser("boss")

    def setUp(self):
        self.client.force_login(self.boss)

    def keys(self, **query):
        """Return the keys that the list of tasks shows."""
        response = self.client.get(LIST, query)
        self.assertEqual(response.status_code, 200, response)
        return [task.key for task in response.context["cl"].result_list]

    def statements(self, url, **query):
        with CaptureQueriesContext(connection) as captured:
            self.client.get(url, query)
        return [statement["sql"] for statement in captured]

    def save(self, url, *, follow=True, **typed):
        """Fill in the form of a page, and press its button."""
        return press(self.client, self.client.get(url), "_save", follow=follow, **typed)

    def choose(self, action, *tasks, across=False, url=LIST, **query):
        """Choose an action for tasks ticked in the list, and press the button."""
        ids = [task if isinstance(task, int) else row(task).pk for task in tasks]
        typed = {"action": action, "_selected_action": ids, "select_across": int(across)}
        return press(self.client, self.client.get(url, query), "index", follow=False, **typed)

    def act(self, url, action, *rows, **typed):
        """Choose an action for rows ticked in another list, and press the button."""
        typed |= {"action": action, "_selected_action": [row.pk for row in rows]}
        return press(self.client, self.client.get(url), "index", **typed)

    def forge_action(self, url, action, *rows):
        """Send an action that the list does not offer."""
        data = {"action": action, "_selected_action": [row.pk for row in rows]}
        return self.client.post(url, data, follow=True)

    def confirm(self, response, **data):
        """Press the button of a page that asks first."""
        return press(self.client, response, str(response.context["verb"].label), **data)

    def press_verb(self, task, label):
        """Press a button of a task's page."""
        return press(self.client, self.story(task), label)

    def forge(self, verb, **data):
        """Send what no page holds: a verb for who may not, or nonsense."""
        return self.client.post(
            reverse("admin:perfectqueue_task_steer", args=[verb]), data, follow=True
        )

    def story(self, task):
        return self.client.get(reverse("admin:perfectqueue_task_change", args=[row(task).pk]))

    def reported(self, response):
        return [str(message) for message in response.context["messages"]]
