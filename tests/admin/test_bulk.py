"""The page that shows what would be done to all that match, and single tasks moved and edited."""

import json
from datetime import timedelta

from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from django_perfectqueue.bulk import Operation, Selection, submit_bulk
from django_perfectqueue.inspection.steering import actions_of, describe_action
from django_perfectqueue.models import DeadLetter, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.test import drain
from tests.bulk.test_bulk import failed
from tests.factories import running, submit

from .forms import press
from .staff import LIST, VIEW, AdminTestCase, staff

DEAD = "/admin/perfectqueue/deadletter/"


def story(task):
    row = task.metadata()
    return [(one.by, describe_action(one)) for one in actions_of(row, using="default")]


class BulkPageTests(AdminTestCase):
    def ask(self, url=DEAD, **values):
        return self.client.get(f"{url}bulk/", values)

    def press(self, response, button, *, follow=False, **typed):
        return press(self.client, response, button, follow=follow, **typed)

    def test_it_shows_what_it_would_do_and_does_nothing(self):
        failed("a", user="ann", data={"v": 1, "password": "hunter2"})
        failed("b", user="<i>bob</i>")
        submit("waiting", now=None)

        response = self.ask(verb="retry", to="slow", patch='{"v": 2}', rate="500")

        self.assertContains(response, "Retry: 2 tasks")
        self.assertContains(response, "&lt;i&gt;bob")
        self.assertContains(response, "&quot;v&quot;: 2")
        self.assertNotContains(response, "hunter2")
        self.assertEqual(Queue().list().in_status("failed").count(), 2)

    def test_patches_and_queues_that_cannot_be_are_errors_of_the_form(self):
        task = failed("a", data={"v": 1})
        many = "9" * 5_000
        deep = '{"a":' * 3_000 + "1" + "}" * 3_000
        for patch in ("[" * 200_000, many, '{"v": NaN}', '"' + "x" * 2**20 + '"'):
            with self.subTest(patch=patch[:10]):
                typed = {"verb": "edit", "rate": "5", "patch": patch}
                response = self.press(self.ask(), "_show", **typed)
                if not response.context["form"].errors:
                    response = self.press(response, "_do")
                self.assertTrue(response.context["form"].errors)
        response = self.press(self.ask(), "_do", run_in="q" * 101)
        self.assertContains(response, "at most 100 characters")
        refused = self.ask(verb="edit", rate="5", patch=deep)
        # Python before 3.13 can't even read it.
        said = "nested too deeply" if b"nested too deeply" in refused.content else "valid JSON"
        self.assertContains(refused, said)
        for patch in ("[" * 200_000, many, deep):
            values = {"ids": task.id, "_do": "1", "patch": patch}
            self.assertIn(self.client.post(f"{LIST}steer/edit/", values).status_code, (200, 302))
        self.assertEqual(task.metadata().data, {"v": 1})
        self.assertEqual(Queue().list().count(), 1)

    def test_a_task_does_what_was_shown_and_says_who_wanted_it(self):
        dead, other = failed("a", user="ann", data={"v": 1}), failed("b", user="bob")
        terms = {"to": "slow", "patch": '{"v": 2}', "rate": "100", "run_in": "bulk"}

        page = self.ask(user="ann", verb="retry", **terms)
        response = self.press(page, "Retry (1)")

        row = Queue("bulk").list().get()
        self.assertRedirects(response, f"{LIST}{row.pk}/change/")
        drain("bulk")
        moved = Queue("slow")["a"]
        self.assertEqual((moved.metadata().status, moved.metadata().data), ("waiting", {"v": 2}))
        self.assertEqual({by for by, _what in story(moved)}, {"boss"})
        self.assertEqual((dead.exists(), other.metadata().status), (False, "failed"))
        self.assertEqual(row.data["filter"], {"status": "failed", "user": "ann"})
        self.assertEqual(LogEntry.objects.get().user, self.boss)
        self.assertContains(self.story(Queue("bulk")[row.key]), "bulk operation asked for: retry")

    def test_the_first_click_does_it(self):
        failed("a", user="ann")
        failed("b", user="bob")
        page = self.client.get(DEAD, {"user": "ann"})
        page = self.client.get(page.context["bulk_url"])

        self.press(page, "Retry (1)", run_in="bulk")

        drain("bulk")
        self.assertEqual(Queue()["a"].metadata().status, "waiting")
        self.assertEqual(Queue()["b"].metadata().status, "failed")

    def test_what_is_typed_is_what_is_done(self):
        failed("a", data={"v": 1})
        page = self.press(self.ask(), "Retry (1)", rate="50", run_in="bulk", follow=True)
        row = Queue("bulk").list().get()
        self.assertEqual((row.data["rate"], page.status_code), (50, 200))

    def test_another_verb_than_was_shown_is_shown_first(self):
        failed("a", data={"v": 1})
        for typed, label in (
            ({"verb": "delete"}, "Delete (1)"),
            ({"to": "slow"}, "Retry (1)"),
            ({"patch": '{"v": 2}'}, "Retry (1)"),
        ):
            with self.subTest(typed):
                page = self.press(self.ask(), "Retry (1)", **typed)
                self.assertContains(page, "check the new preview")
                self.assertContains(page, label)
                self.assertEqual(Queue().list().count(), 1)
        self.press(page, "Retry (1)", run_in="bulk")
        drain("bulk")
        self.assertEqual(Queue()["a"].metadata().data, {"v": 2})

    def test_of_tasks_each_filter_of_the_list_counts(self):
        submit("key-1", user="ann", type="report", now=None)
        submit("other", user="ann", type="report", now=None)
        submit("key-2", user="ann", type="mail", now=None)
        query = {"status": "waiting", "user": "ann", "type": "rep*", "q": "key-", "reach": "all"}

        response = self.ask(LIST, verb="cancel", **query)

        self.assertContains(response, "Request cancel: 1 task<")

    def test_the_lists_lead_there_with_their_filters(self):
        failed("a", user="ann")
        for url, query in ((LIST, {"user": "ann"}), (DEAD, {"user": "ann", "status": "all"})):
            response = self.client.get(url, query)
            self.assertContains(response, f"{url}bulk/?")
            self.assertEqual(self.client.get(response.context["bulk_url"]).status_code, 200)

    def test_a_filter_that_it_has_not_is_refused(self):
        failed("a")
        for query, reported in (
            ({"watched": "me"}, "has no filter &#x27;watched&#x27;"),
            ({"status": "lost"}, "no status"),
            ({"batch": "9" * 5000}, "no such batch"),
        ):
            response = self.client.get(f"{LIST}bulk/", query, follow=True)
            self.assertTrue(response.redirect_chain)
            self.assertContains(response, reported)

    def test_terms_that_are_wrong_are_said_on_the_page(self):
        for terms, reported in (
            ({"verb": "move"}, "to which queue"),
            ({"verb": "edit", "patch": "{"}, "Enter a valid JSON."),
            ({"verb": "retry", "rate": "0"}, "The rate must be"),
            ({"verb": "drop"}, "Select a valid choice"),
        ):
            with self.subTest(terms):
                response = self.ask(**terms)
                self.assertContains(response, reported)
                self.assertNotIn("matching", response.context)

    def test_it_needs_the_permission_of_all_that_it_does(self):
        failed("a")
        for name, permissions, terms, status in (
            ("view", VIEW, {"verb": "retry"}, 403),
            ("retry", (*VIEW, "retry_task"), {"verb": "retry"}, 302),
            ("moves", (*VIEW, "retry_task"), {"verb": "retry", "to": "slow"}, 403),
            ("edits", (*VIEW, "retry_task"), {"verb": "retry", "patch": "{}"}, 403),
            ("purge", (*VIEW, "retry_task"), {"verb": "delete"}, 200),
            ("blind", ("retry_task",), {"verb": "retry"}, 403),
        ):
            self.client.force_login(staff(*permissions, name=name))
            with self.subTest(name):
                shown = json.dumps([terms["verb"], terms.get("to", ""), None])
                sent = {"rate": "5", "_do": "Do", "shown": shown, **terms}
                response = self.client.post(f"{DEAD}bulk/", sent)
                self.assertEqual(response.status_code, status)
        self.assertEqual(Queue().list().filter(type="perfectqueue.bulk").count(), 1)

    def test_what_failed_since_a_time_is_retried_alone(self):
        failed("early"), failed("late")
        early = Queue()["early"].id
        hour_ago = timezone.now() - timedelta(hours=1)
        Task._base_manager.filter(pk=early).update(ended_at=hour_ago)
        DeadLetter._base_manager.filter(pk=early).update(ended_at=hour_ago)
        page = self.client.get(DEAD, {"since": "15m", "type": "report"})

        page = self.client.get(page.context["bulk_url"])
        self.press(page, "Retry (1)", run_in="bulk")

        operation = Queue("bulk").list().get().data
        self.assertRegex(operation["filter"]["since"], r"^20\d\d-.*\+00:00$")
        drain("bulk")
        self.assertEqual(Queue()["late"].metadata().status, "waiting")
        self.assertEqual(Queue()["early"].metadata().status, "failed")

    def test_what_a_list_shows_is_what_bulk_work_is_about(self):
        """Each filter of both lists either counts or is refused, and then stays chosen."""
        failed("a", user="ann", type="mail")
        values = {
            "batch": "0",
            "group": "none",
            "reach": "all",
            "watched": "me",
            "status": "failed",
        }
        for url, model in ((LIST, Task), (DEAD, DeadLetter)):
            for spec in site._registry[model].list_filter:
                name = spec.parameter_name
                query = {name: values.get(name, "1d" if name == "until" else "x"), "type": "mail"}
                query |= {"since": "1h"} if name == "since" else {}
                with self.subTest(url=url, query=query):
                    listed = self.client.get(url, query, follow=True)
                    shown = self.client.get(listed.context["bulk_url"], follow=True)
                    if "matching" in shown.context:
                        count = int(str(shown.context["matching"]["total"]))
                        self.assertEqual(count, listed.context["cl"].result_count)
                    else:
                        self.assertEqual(shown.context["cl"].params.get(name), query[name])
                        self.assertTrue(self.reported(shown))


class SingleTests(AdminTestCase):
    def test_a_task_is_moved_to_the_queue_that_is_typed_in(self):
        task = submit("a", now=None)
        asked = self.choose("move", task)
        self.assertContains(asked, "To which queue?")

        response = self.press(asked, "slow")

        self.assertContains(response, "Done: 1 moved to another queue.")
        expected = [("boss", "moved to another queue: default → slow")]
        self.assertEqual(story(Queue("slow")["a"]), expected)

    def test_what_is_typed_in_wrong_is_asked_again(self):
        task = submit("a", now=None, data={"n": 1})
        for verb, value, reported in (
            ("move", "", "to which queue"),
            ("move", "x" * 101, "at most 100 characters"),
            ("edit", "{", "Enter a valid JSON."),
        ):
            with self.subTest(verb, value=value):
                self.assertContains(self.press(self.choose(verb, task), value), reported)
        submit("a", queue="slow")
        response = self.press(self.choose("move", task), "slow")
        self.assertContains(response, "1 with a key that is taken there")
        self.assertEqual((task.metadata().data, story(task)), ({"n": 1}, []))

    def test_the_data_are_edited_and_shown_without_secrets(self):
        task = failed("a", data={"n": 1, "password": "hunter2"})
        asked = self.choose("edit", task)
        self.assertContains(asked, "&quot;n&quot;: 1")
        self.assertNotContains(asked, "hunter2")

        self.press(asked, '{"n": 2}')

        self.assertEqual(task.metadata().data, {"n": 2, "password": "hunter2"})
        self.assertEqual(story(task), [("boss", "data edited")])

    def test_a_copy_runs_beside_it(self):
        task, _lease = running("a", now=None)
        pk = task.metadata().pk

        self.confirm(self.press_verb(task, "Run a copy"))

        self.assertEqual(Queue().list().exclude(pk=pk).get().status, "waiting")
        self.assertEqual(story(task), [("boss", "copied")])

    def test_each_needs_its_permission(self):
        task = submit("a", now=None)
        self.client.force_login(staff(*VIEW, "retry_task"))
        for verb in ("move", "edit", "copy"):
            response = self.forge(verb, ids=str(task.id), to="slow", _do="1")
            self.assertEqual(response.status_code, 403)
        self.assertTrue(task.exists())

    def test_a_bulk_operation_is_retried_only_by_who_may_ask_for_it(self):
        failed("a")
        operation = submit_bulk(
            Operation(verb="delete", selection=Selection(), by="boss"), using="default"
        )
        operation.cancel_request()
        dead = {"ids": str(operation.id), "back": LIST, "_do": "1"}
        self.client.force_login(staff(*VIEW, "retry_task"))

        self.assertContains(self.forge("retry", **dead), "You may not retry a bulk operation")
        submit_bulk(
            Operation(verb="retry", selection=Selection(status="cancelled"), by="staff"),
            using="default",
        )
        drain()
        self.assertEqual(operation.metadata().status, "cancelled")

        self.client.force_login(staff(*VIEW, "retry_task", "purge_task", name="deleter"))
        self.forge("retry", **dead)
        self.assertEqual(operation.metadata().status, "waiting")

    def press(self, response, value):
        return self.confirm(response, **{response.context["verb"].field: value})
