"""The pages of batches, and the parents and children on a task's page."""

import re
from unittest import mock

from django.contrib import admin
from django.urls import reverse

from django_perfectqueue import store
from django_perfectqueue.models import Batch, Task
from django_perfectqueue.queue import Queue

from ..factories import submit
from .forms import press
from .staff import LIST, AdminTestCase, row, staff

BATCHES = "/admin/perfectqueue/batch/"
WITH_ALL = "Request cancel, with all that wait for it"
FOUR = ["failed", "finished", "cancelled", "cancelled"]
EVIL = "<b>&\"'"


def status(key):
    return Queue()[key].metadata().status


def end(key, verb):
    task = Queue().poll()
    assert task.key == key, task
    getattr(task, verb)()
    store.records.follow(using="default")


class BatchCase(AdminTestCase):
    def setUp(self):
        super().setUp()
        with Queue().batch("nightly", user="ann") as self.batch:
            for key in ("a", "b", "c"):
                self.batch.submit(key, "report")
            with self.batch.batch("inner") as inner:
                inner.submit("d", "report")
            self.batch.then("mail", "report", when="finished")
        end("a", "fail")
        end("b", "finish")

    def page(self, name="nightly"):
        return self.client.get(f"{BATCHES}{Batch.objects.get(name=name).pk}/change/")

    def press(self, label):
        """Press a button of the page, then that of the page that asks."""
        asked = press(self.client, self.page(), label)
        return asked, self.confirm(asked)


class BatchTests(BatchCase):
    def test_the_list(self):
        response = self.client.get(BATCHES)
        self.assertContains(response, "1 of 4 finished, 1 dead")
        self.assertContains(response, ">nightly <span")
        self.assertContains(self.client.get(BATCHES, {"q": "inner"}), "1 batch")
        self.assertNotContains(self.client.get(BATCHES, {"user": "bob"}), ">nightly <span")
        self.assertContains(self.client.get(BATCHES, {"queue": "default"}), ">nightly <span")
        for state, is_shown in (("running", True), ("finished", False), ("failed", False)):
            found = self.client.get(BATCHES, {"state": state}).context["cl"].result_list
            self.assertEqual("nightly" in {batch.name for batch in found}, is_shown)
        self.assertEqual(self.client.get(BATCHES, {"state": "x"}).status_code, 302)
        self.assertLess(len(self.statements(BATCHES)), 10)
        self.assertContains(self.client.get("/admin/perfectqueue/overview/"), f'href="{BATCHES}"')

    def test_a_batch_shows_its_bar_its_tasks_and_its_callbacks(self):
        response = self.page()
        self.assertContains(response, "1 of 4 tasks have finished; dead: 1, open: 2.")
        self.assertContains(response, "50%")
        self.assertContains(response, f'href="{LIST}?batch={self.batch.id}&amp;status=failed"')
        for key in ("a", "c", "mail"):
            self.assertContains(response, f'href="{LIST}{row(Queue()[key]).pk}/change/"')
        self.assertContains(response, "when all have finished")
        self.assertContains(response, "inner</a>")
        self.assertLess(len(self.statements(response.request["PATH_INFO"])), 13)
        held = [Queue().poll() for _task in "cd"]
        held[1].finish()
        self.assertContains(self.page(), "1 / 1")
        inner = self.page("inner")
        self.assertContains(inner, "nightly</a>")
        self.assertNotContains(inner, 'value="retry"')

    def test_the_list_of_tasks_is_narrowed_to_a_batch(self):
        self.assertEqual(self.keys(batch=self.batch.id), ["c", "b", "a"])
        self.assertEqual(self.keys(batch=self.batch.id, status="failed"), ["a"])
        for text in ("x", "9" * 30):
            self.assertRedirects(self.client.get(LIST, {"batch": text}), f"{LIST}?e=1")

    def test_a_bulk_operation_keeps_to_the_batch(self):
        submit("other", now=None)
        page = self.client.get(f"{LIST}bulk/", {"batch": self.batch.id, "verb": "cancel"})
        self.assertEqual(page.context["matching"]["total"], "1")
        for text in ("x", "1x"):
            page = self.client.get(f"{LIST}bulk/", {"batch": text}, follow=True)
            self.assertEqual(self.reported(page)[0], "There is no such batch.")

    def test_names_are_escaped(self):
        with Queue().batch(EVIL, user=EVIL) as batch:
            batch.submit(EVIL, "report")
            batch.then("then" + EVIL, "report")
        for url in (f"{BATCHES}{batch.id}/change/", BATCHES):
            page = self.client.get(url).content.decode()
            self.assertNotIn("<b>&", page)
        story = self.story(batch.queue["then" + EVIL]).content.decode()
        self.assertNotIn("<b>&", story)

    def test_cancel_asks_first_and_says_what_it_would_do(self):
        asked, done = self.press("Request cancel")
        self.assertContains(asked, "its callbacks still run")
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [2])
        self.assertEqual(self.reported(done), ["Done: 2 cancelled."])
        self.assertEqual(
            [status(key) for key in "abcd"], ["failed", "finished", *["cancelled"] * 2]
        )
        self.assertEqual(set(Batch.objects.values_list("stopped", flat=True)), {True})

    def test_without_a_confirmation_nothing_changes(self):
        press(self.client, self.page(), "Request cancel")
        self.assertEqual(status("c"), "waiting")
        self.assertEqual(set(Batch.objects.values_list("stopped", flat=True)), {False})

    def test_retry_puts_the_dead_ones_back(self):
        asked, done = self.press("Retry")
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [1])
        self.assertEqual(self.reported(done), ["Done: 1 put back in line."])
        self.assertEqual(status("a"), "waiting")
        self.assertContains(self.client.get(f"{BATCHES}{self.batch.id}/history/"), "Retry")

    def test_who_may_not_see_or_cancel_is_refused(self):
        url = f"{BATCHES}{self.batch.id}/change/"
        self.client.force_login(staff("view_batch"))
        response = self.client.get(url)
        self.assertContains(response, "1 of 4 tasks have finished")
        self.assertNotContains(response, LIST)
        self.assertNotContains(response, "pq-verbs")
        self.client.force_login(staff("view_task", "cancel_task", name="other"))
        self.assertEqual(self.client.get(url).status_code, 403)
        steer = reverse("admin:perfectqueue_task_steer", args=["cancel"])
        data = {"batch": self.batch.id, "_do": "1"}
        self.assertEqual(self.client.post(steer, data).status_code, 404)
        self.client.force_login(staff("view_task", "view_batch", name="third"))
        self.assertEqual(self.client.post(steer, data).status_code, 403)
        self.assertNotContains(self.client.get(url), "pq-verbs")
        self.assertEqual(status("c"), "waiting")

    def test_a_batch_that_is_gone(self):
        self.assertEqual(self.client.get(f"{BATCHES}987654/change/").status_code, 302)
        steer = reverse("admin:perfectqueue_task_steer", args=["cancel"])
        self.assertEqual(self.client.post(steer, {"batch": "987654"}).status_code, 404)
        for text in ("x", "", "9" * 30):
            self.assertEqual(self.client.post(steer, {"batch": text}).status_code, 302)


class FamilyTests(AdminTestCase):
    def setUp(self):
        super().setUp()
        Queue().chain([{"key": key, "type": "report", "if_failed": "cancel"} for key in "abcd"])
        store.records.follow(using="default")

    def test_a_small_family_is_a_graph_with_links(self):
        response = self.story(Queue()["b"])
        text = response.content.decode()
        graph = re.search(r'<svg class="pq-graph".*?</svg>', text, re.S)[0]
        self.assertEqual(graph.count("<g "), 3)
        self.assertEqual(graph.count("pq-link-awaited"), 2)
        self.assertEqual(graph.count("<a href"), 2)
        self.assertIn("<title>a, report, waiting</title>", graph)
        # A strict policy forbids these.
        self.assertNotIn("style=", graph)
        self.assertNotIn("<script", graph)
        places = re.findall(r"translate\((\d+) \d+\)", graph)
        self.assertEqual(len(set(places)), 3)
        self.assertContains(response, "is cancelled if it fails")

    def test_a_task_of_a_sequence_shows_which_is_before_it_and_why_it_waits(self):
        for key in ("first", "second"):
            Queue().submit(key, "report", sequence="account-7")
        store.records.follow(using="default")

        response = self.story(Queue()["second"])
        for text in ("It comes after task &#x27;first&#x27; in its sequence.", "account-7"):
            self.assertContains(response, text)
        self.assertContains(self.story(Queue()["first"]), "comes after it in its sequence")

    def test_a_large_one_is_a_list(self):
        for number in range(60):
            submit(f"w{number:02d}", now=None, after=["b"])
        response = self.story(Queue()["b"])
        self.assertNotContains(response, "pq-graph")
        self.assertContains(response, "There are more.")
        self.assertContains(response, "w00</a>")
        self.assertLess(len(self.statements(response.request["PATH_INFO"])), 16)

    def test_a_task_alone_has_none(self):
        submit("alone")
        self.assertNotContains(self.story(Queue()["alone"]), "Parents and children")

    def test_a_callback_leads_to_its_batch_and_a_member_too(self):
        with Queue().batch("nightly") as batch:
            batch.submit("m", "report")
            batch.then("mail", "report")
        for key in ("m", "mail"):
            self.assertContains(self.story(Queue()[key]), f'href="{BATCHES}{batch.id}/change/"')
        self.client.force_login(staff("view_task"))
        for key in ("m", "mail"):
            self.assertNotContains(self.story(Queue()[key]), BATCHES)

    def test_a_task_is_cancelled_with_all_that_wait_for_it(self):
        self.assertContains(self.story(Queue()["b"]), "Request cancel, with all that wait for it")
        asked = self.press_verb(Queue()["b"], WITH_ALL)
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [3])
        self.assertEqual(status("b"), "blocked")
        done = self.confirm(asked)
        self.assertEqual(self.reported(done), ["Done: 3 cancelled."])
        self.assertEqual([status(key) for key in "abcd"], ["waiting", *["cancelled"] * 3])

    def test_one_for_which_others_wait_is_not_cancelled_without_them(self):
        done = self.confirm(self.choose("cancel", Queue()["b"]))
        said = "Not done: 1 that others wait for: its page cancels it with them."
        self.assertEqual(self.reported(done), [said])
        self.assertEqual([verb.name for verb in self.verbs("b")], ["force_finish"])
        self.assertEqual([verb.name for verb in self.verbs("d")], ["force_finish", "cancel"])

    def verbs(self, key):
        names = ("force_finish", "cancel", "retry")
        return [verb for verb in self.story(Queue()[key]).context["verbs"] if verb.name in names]

    def test_one_that_runs_is_asked_with_those_that_wait_for_it(self):
        Queue().poll()
        asked = self.press_verb(Queue()["a"], WITH_ALL)
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [3, 1])
        done = self.confirm(asked)
        said = "Done: 3 cancelled, 1 cancel requested."
        self.assertEqual(self.reported(done), [said])

    def test_a_task_is_retried_with_those_that_were_cancelled_for_it(self):
        end("a", "fail")
        store.records.follow(using="default")
        self.assertEqual([status(key) for key in "abcd"], ["failed", *["cancelled"] * 3])
        self.assertContains(self.story(Queue()["a"]), "Retry, with all that wait for it")
        asked = self.press_verb(Queue()["a"], "Retry, with all that wait for it")
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [1, 3])
        self.confirm(asked)
        store.records.follow(using="default")
        self.assertEqual([status(key) for key in "abcd"], ["waiting", *["blocked"] * 3])
        for key in "abcd":
            end(key, "finish")


class ConfinedTests(BatchCase):
    """What the list of tasks hides from a person is hidden here, too."""

    def setUp(self):
        super().setUp()
        submit("own", now=None, user="bob", after=["c"])
        submit("other", now=None, user="eve", after=["own"])
        pages = admin.site._registry
        for model in (Task, Batch):
            shown = pages[model].get_queryset
            of_bob = mock.patch.object(
                pages[model],
                "get_queryset",
                lambda request, shown=shown: shown(request).filter(user="bob"),
            )
            of_bob.start()
            self.addCleanup(of_bob.stop)

    def test_relatives_of_others_are_hidden(self):
        response = self.story(Queue()["own"])
        self.assertContains(response, "own")
        self.assertNotContains(response, "pq-graph")
        self.assertNotContains(response, ">other<")
        self.assertEqual(self.page().status_code, 302)

    def test_tasks_of_others_in_ones_batch_are_hidden(self):
        with Queue().batch("mine", user="bob") as batch:
            batch.submit("mine-1", "report")
            batch.submit("theirs", "report", user="eve")
            batch.then("their-callback", "report", user="eve")
        response = self.client.get(f"{BATCHES}{batch.id}/change/")
        self.assertContains(response, "mine-1")
        self.assertNotContains(response, "their")
        asked = press(self.client, response, "Request cancel")
        self.assertEqual([count for _badge, count in asked.context["matching"]["statuses"]], [1])
