from datetime import timedelta
from unittest import mock

from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings
from django.urls import reverse

from django_perfectqueue.admin.parts import base, filters
from django_perfectqueue.inspection.steering import describe_action
from django_perfectqueue.models import DeadLetter, Task, Ticket
from django_perfectqueue.store.records import counts
from django_perfectqueue.test import drain

from ..factories import NOON, fail, failed, finish, running, status, submit, submit_many
from .forms import press
from .staff import LIST, AdminTestCase, row, staff

DEAD = "/admin/perfectqueue/deadletter/"


class ForceFinishTests(AdminTestCase):
    def test_it_asks_first(self):
        task = submit("k1")

        response = self.choose("force_finish", task)
        self.assertContains(response, "Close these tasks as finished?")
        self.assertContains(response, "k1")
        self.assertEqual(status(task), "waiting")

    def test_it_says_how_many_it_did_and_why_not_the_others(self):
        (held, _lease), (ended, lease) = running("k1"), running("k2")
        waiting, gone = submit("k3"), submit("k4", queue="other")
        asked = self.choose("force_finish", held, ended, waiting, gone)
        finish(lease)
        gone.queue.clear()

        response = self.confirm(asked)
        self.assertEqual(
            self.reported(response),
            ["Done: 2 closed as finished.", "Not done: 1 had ended already, 1 no longer there."],
        )
        self.assertEqual((status(held), status(waiting)), ("finished", "finished"))

    def test_it_asks_first_and_says_that_a_handler_is_interrupted(self):
        task, _lease = running("k1")

        asked = self.choose("force_finish", task)
        self.assertContains(asked, "The handler of a running task is interrupted")
        self.assertNotEqual(status(task), "finished")

    def test_it_is_written_into_the_history(self):
        task = submit("k1")
        self.confirm(self.choose("force_finish", task))

        entry = LogEntry.objects.get()
        self.assertEqual((entry.user, entry.object_repr), (self.boss, "k1"))
        self.assertEqual(entry.object_id, str(row(task).pk))
        history = reverse("admin:perfectqueue_task_history", args=[row(task).pk])
        self.assertContains(self.client.get(history), "Force finish")

    def test_it_returns_to_the_list_as_it_was_filtered(self):
        response = self.choose("force_finish", submit("k1"), queue="default")

        self.assertRedirects(self.confirm(response), f"{LIST}?queue=default")

    def test_no_link_leads_it_elsewhere(self):
        task = submit("k1")

        for back in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
            response = self.forge("retry", ids=row(task).pk, back=back)
            self.assertRedirects(response, LIST)


class CancelTests(AdminTestCase):
    def test_what_waits_is_cancelled_and_what_runs_is_asked(self):
        held, _lease = running("k1")
        waiting = submit("k2")

        response = self.confirm(self.choose("cancel", held, waiting))
        self.assertEqual(
            self.reported(response),
            ["Done: 1 cancelled, 1 cancel requested."],
        )
        self.assertEqual(status(waiting), "cancelled")
        self.assertTrue(Ticket.objects.get(task_id=row(held).pk).cancel_requested)


class WhoTests(AdminTestCase):
    def test_the_story_and_the_changes_tell_who_did_it(self):
        task = submit("k1", now=None)
        self.confirm(self.choose("cancel", task))
        page = self.story(task)
        self.assertEqual([describe_action(one) for one in page.context["actions"]], ["cancelled"])
        self.assertEqual([one.by for one in page.context["actions"]], ["boss"])
        changes = self.client.get("/admin/perfectqueue/change/")
        self.assertContains(changes, "task &#x27;k1&#x27;, queue &#x27;default&#x27;")


class SignalTests(AdminTestCase):
    def waiting(self, key="k1", **options):
        task = submit(key, now=None, type="decide", **options)
        drain()
        return task

    def test_a_button_sends_a_declared_signal_and_who_pressed_it(self):
        task = self.waiting()
        response = self.press_verb(task, "Refuse")
        self.assertEqual(self.reported(response), ["Signal 'approval' is sent."])
        for label in ("Approve", "Refuse"):
            self.assertNotContains(response, f'"button">{label}<')
        self.assertContains(response, '"button">Seen<')
        drain()
        drain(ahead="2d")
        self.assertEqual(task.metadata().result, {"by": "boss", "answer": "no"})
        page = self.story(task)
        self.assertNotContains(page, '"button">Seen<')
        self.assertNotContains(page, "Send a signal")

    def test_who_sent_which_is_in_the_story_and_the_audit_log_without_its_data(self):
        task = self.waiting()
        page = self.press_verb(task, "Approve")
        said = [(describe_action(one), one.by) for one in page.context["actions"]]
        self.assertEqual(said, [("signal sent: approval", "boss")])
        self.assertRegex(page.content.decode(), r"approval</strong> signal .*sent .*, by boss")
        changes = self.client.get("/admin/perfectqueue/change/").content.decode()
        self.assertIn("signal sent: approval", changes)
        self.assertNotIn("answer", changes)
        self.assertIn("approval", LogEntry.objects.get().change_message)

    def test_any_signal_is_sent_with_what_is_typed_in(self):
        task = self.waiting()
        page = press(self.client, self.story(task), "Send", name="paid", payload='{"sum": 7}')
        self.assertEqual(self.reported(page), ["Signal 'paid' is sent."])
        self.assertContains(page, "&quot;sum&quot;: 7")
        page = press(self.client, page, "Send", name="seen")
        self.assertContains(page, "&quot;by&quot;: &quot;boss&quot;")

    def test_what_is_wrong_is_said(self):
        task = self.waiting()
        page = self.story(task)
        for typed, said in (
            ({"name": "paid", "payload": "{"}, "Data, as JSON: Enter a valid JSON."),
            ({"name": ""}, "Signal: This field is required."),
            ({"name": "x" * 101}, "Signal: Ensure this value has at most 100 characters"),
        ):
            with self.subTest(typed):
                [reported] = self.reported(press(self.client, page, "Send", **typed))
                self.assertIn(said, reported)
        press(self.client, page, "Approve")
        [again] = self.reported(press(self.client, page, "Refuse"))
        self.assertEqual(again, "Task 'k1' has a signal 'approval' already.")
        task.cancel_request()
        [ended] = self.reported(press(self.client, page, "Seen"))
        self.assertEqual(ended, "Task 'k1' has ended: it is cancelled.")

    def test_who_may_not_sees_no_button_and_sends_nothing(self):
        task = self.waiting()
        page = self.story(task)
        self.client.force_login(staff("view_task", "retry_task"))
        self.assertNotContains(self.story(task), "Approve")
        self.assertNotContains(self.story(task), "Send a signal")
        self.assertEqual(press(self.client, page, "Approve").status_code, 403)
        self.client.force_login(staff("signal_task", name="blind"))
        self.assertEqual(press(self.client, page, "Approve").status_code, 403)
        self.client.force_login(staff("view_task", "signal_task", name="clerk"))
        self.assertContains(self.press_verb(task, "Approve"), "is sent")

    def test_one_whose_handler_can_not_be_imported_says_why_there_is_no_button(self):
        task = self.waiting()
        with override_settings(PERFECTQUEUE={"DISPATCH": "nowhere.Dispatch"}):
            page = self.story(task)
        self.assertContains(page, "There are no buttons for its signals:")
        self.assertContains(page, "&#x27;nowhere.Dispatch&#x27; can&#x27;t be imported")
        self.assertNotContains(page, "Approve")
        self.assertContains(page, "Send a signal")
        self.assertContains(self.story(task), "Approve")

    def test_only_a_post_from_our_own_page_does_anything(self):
        url = reverse("admin:perfectqueue_task_signal", args=[row(self.waiting()).pk])
        self.assertEqual(self.client.get(url).status_code, 405)
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.boss)
        self.assertEqual(strict.post(url, {"name": "approval"}).status_code, 403)
        gone = reverse("admin:perfectqueue_task_signal", args=[10**9])
        self.assertEqual(self.client.post(gone, {"name": "approval"}).status_code, 404)


class RetryTests(AdminTestCase):
    def test_the_failed_go_back_in_line(self):
        lost, waiting = failed("k1"), submit("k2")

        self.choose("retry", lost, waiting)
        self.assertEqual(
            self.reported(self.client.get(LIST)),
            ["Done: 1 put back in line.", "Not done: 1 waiting, running or blocked."],
        )
        self.assertFalse(DeadLetter.objects.exists())

    def test_dead_letters_are_listed_by_group_and_retried(self):
        lost = failed("k1")
        pk = row(lost).pk
        response = self.client.get(DEAD, {"group": "boom", "status": "failed"})
        self.assertContains(response, "k1")

        self.choose("retry", pk, url=DEAD)
        self.assertFalse(DeadLetter.objects.exists())
        self.assertEqual(Task.objects.get(pk=pk).outcome, "")

    def test_a_cancelled_one_keeps_its_time(self):
        task = submit("k1", now=None, run_at="1d")
        task.cancel_request()

        self.choose("retry", task)
        self.assertEqual(status(task, None), "scheduled")

    def test_the_letter_of_the_last_failure_comes_first(self):
        """By when they ended: of these the one that was submitted first failed last."""
        _task, lease = running("early")
        failed("late")
        fail(lease, now=NOON + timedelta(hours=1))
        submit("unwanted").cancel_request()

        self.assertEqual(self.letters(), ["early", "late"])
        self.assertEqual(self.letters(status="cancelled"), ["unwanted"])
        self.assertCountEqual(self.letters(status="all"), ["early", "late", "unwanted"])

    def test_letters_are_found_by_what_their_tasks_are(self):
        failed("a", type="mail.send", user="ann")
        failed("b", type="mail.fetch", user="bob")
        self.assertEqual(self.letters(user="ann"), ["a"])
        self.assertEqual(self.letters(type="mail.fetch"), ["b"])
        self.assertEqual(self.letters(type="mail.*"), ["b", "a"])
        self.assertEqual(self.letters(queue="default"), ["b", "a"])
        self.assertEqual(self.letters(queue="mail"), [])
        with mock.patch.object(filters, "REACH", 1):
            DeadLetter.objects.filter(task__key="b").update(ended_at=NOON + timedelta(hours=1))
            self.assertEqual(self.letters(user="ann"), [])
            self.assertEqual(self.letters(user="ann", reach="all"), ["a"])

    def test_a_row_tells_whose_it_was(self):
        failed("a", type="mail.send", user="ann")
        response = self.client.get(DEAD)
        for text in ("mail.<wbr>send", "ann", "?status=failed&amp;group=boom"):
            self.assertContains(response, text)

    def test_each_group_has_its_count_by_status(self):
        for number in range(3):
            failed(f"k{number}")
        DeadLetter.objects.filter(task__key="k0").update(group="bang")
        submit("gone").cancel_request()

        self.assertContains(self.client.get(DEAD), "boom (2)")
        self.assertContains(self.client.get(DEAD), "bang (1)")
        self.assertNotContains(self.client.get(DEAD), "cancelled (1)")
        self.assertContains(self.client.get(DEAD, {"status": "all"}), "cancelled (1)")
        with mock.patch.multiple(filters, COUNTED=2), mock.patch.multiple(counts, COUNTED=2):
            self.assertContains(self.client.get(DEAD, {"group": "boom"}), "boom (2+)")

    def test_type_user_and_queue_lead_to_what_they_share(self):
        failed("k1", type="mail.send", user="ann & bob")
        failed("k2", type="report", user="cem")
        submit("k3", queue="other")
        page = self.client.get(DEAD).content.decode()
        for link in ("type=mail.send", "user=ann+%26+bob", "queue=default"):
            with self.subTest(link):
                self.assertIn(f'href="?status=failed&amp;{link}"', page)
        found = self.client.get(DEAD, {"status": "failed", "user": "ann & bob"})
        self.assertEqual([one.task.key for one in found.context["cl"].result_list], ["k1"])

    def test_a_whole_group_is_retried(self):
        for number in range(25):
            failed(f"k{number}", user="ann")
        failed("other", user="bob")
        DeadLetter.objects.filter(task__key="other").update(group="bang")

        page = self.client.get(DEAD, {"group": "boom"})
        self.assertContains(page, "Retry all of the group boom")
        self.assertNotContains(self.client.get(DEAD), "Retry all of")
        response = self.client.get(page.context["retry_url"])
        for text in ("Retry: 25 tasks", "failed", "report", "ann", "and 5 more"):
            self.assertContains(response, text)
        press(self.client, response, "Retry (25)", run_in="bulk")
        drain("bulk")
        self.assertEqual(self.letters(), ["other"])

    def test_a_group_is_retried_only_by_who_may(self):
        failed("k1")
        self.client.force_login(staff("view_deadletter"))
        self.assertNotContains(self.client.get(DEAD, {"group": "boom"}), "Retry all of")
        response = self.client.get(f"{DEAD}bulk/", {"group": "boom", "verb": "retry"})
        self.assertEqual(response.status_code, 403)

    def test_many_are_retried_only_after_a_question(self):
        many = [failed(f"k{number}") for number in range(21)]
        response = self.choose("retry", *many)
        self.assertEqual(DeadLetter.objects.count(), 21)
        self.confirm(response)
        self.assertFalse(DeadLetter.objects.exists())

    def letters(self, **query):
        response = self.client.get(DEAD, query)
        self.assertEqual(response.status_code, 200)
        return [letter.task.key for letter in response.context["cl"].result_list]

    def test_dead_letters_are_deleted_by_who_may(self):
        gone, kept = failed("k1"), failed("k2")
        self.client.force_login(staff("view_task", "view_deadletter", "retry_task"))
        self.assertNotContains(self.client.get(DEAD), 'value="purge"')
        self.assertEqual(self.forge("purge", ids=row(gone).pk, _do="1").status_code, 403)

        may = staff("view_task", "view_deadletter", "purge_task", name="may")
        self.client.force_login(may)
        asked = self.choose("purge", gone, url=DEAD)
        self.assertContains(asked, "Delete these tasks")
        self.assertContains(asked, "<td>k1</td>")
        self.assertEqual(self.reported(self.confirm(asked)), ["Done: 1 deleted."])
        self.assertFalse(gone.exists())
        self.assertTrue(kept.exists())
        self.assertEqual(LogEntry.objects.get().object_repr, "k1")

    def test_what_has_yet_to_end_is_not_deleted(self):
        task = failed("k1")
        pk = row(task).pk
        task.retry()
        reported = self.reported(self.forge("purge", ids=pk, _do="1"))
        self.assertEqual(reported, ["Not done: 1 waiting, running or blocked."])
        self.assertTrue(task.exists())

    def test_a_dead_letters_page_is_its_tasks_story(self):
        pk = row(failed("k1")).pk

        response = self.client.get(f"{DEAD}{pk}/change/")
        self.assertRedirects(response, f"{LIST}{pk}/change/")


class ManyTests(AdminTestCase):
    def test_all_that_a_filter_shows_can_be_chosen(self):
        """Retrying what failed must not end with the page."""
        lost = [failed() for _ in range(3)]
        submit_many(5)

        self.choose("retry", lost[0], across=True, status="failed")
        self.assertEqual(self.reported(self.client.get(LIST)), ["Done: 3 put back in line."])

    @mock.patch.object(base, "CAP", 2)
    def test_no_more_are_taken_than_one_request_can_do(self):
        for _ in range(3):
            failed()

        self.choose("force_finish", Task.objects.last().pk, across=True)
        tasks = [submit() for _ in range(3)]
        asked = self.choose("force_finish", *tasks)
        self.assertIn(
            "At most 2 are taken at a time: repeat it for the rest.",
            self.reported(self.confirm(asked)),
        )

    @mock.patch.object(base, "CAP", 2)
    def test_more_of_them_are_left_to_a_task_of_the_queue(self):
        for _ in range(3):
            failed()

        response = self.choose("retry", Task.objects.last().pk, across=True, status="failed")
        self.assertRedirects(response, f"{LIST}bulk/?status=failed&verb=retry")

    def test_nonsense_for_ids_does_nothing(self):
        response = self.forge("retry", ids="1;DROP,², ,99999999999999999999,-1")

        self.assertEqual(response.status_code, 200)
        self.assertFalse(LogEntry.objects.exists())

    def test_dead_letters_are_not_steered_by_the_tasks_that_wait_for_one(self):
        failed()
        url = "/admin/perfectqueue/deadletter/steer/retry/"

        response = self.client.post(url, {"dependents": Task.objects.get().pk})

        self.assertEqual(response.status_code, 302)
        self.assertFalse(LogEntry.objects.exists())


class PermissionTests(AdminTestCase):
    def test_who_may_only_view_sees_no_actions(self):
        task = failed("k1")
        self.client.force_login(staff("view_task"))

        self.assertNotContains(self.client.get(LIST), 'name="action"')
        self.assertNotContains(self.story(task), "/steer/")

    def test_who_may_only_view_can_do_nothing(self):
        task = failed("k1")
        self.client.force_login(staff("view_task"))

        for verb in ("force_finish", "cancel", "retry"):
            response = self.forge(verb, ids=row(task).pk, _do="1")
            self.assertEqual(response.status_code, 403)
        self.forge_action(LIST, "retry", row(task))
        self.assertEqual(status(task), "failed")

    def test_each_verb_has_its_own_permission(self):
        task = failed("k1")
        self.client.force_login(staff("view_task", "retry_task"))

        self.assertContains(self.client.get(LIST), 'value="retry"')
        self.assertNotContains(self.client.get(LIST), "Force finish")
        self.assertEqual(self.forge("cancel", ids=row(task).pk).status_code, 403)
        self.assertEqual(self.press_verb(task, "Retry").status_code, 200)
        self.assertNotEqual(status(task), "failed")

    def test_only_a_post_from_our_own_page_does_anything(self):
        url = reverse("admin:perfectqueue_task_steer", args=["retry"])
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.boss)

        self.assertEqual(self.client.get(url).status_code, 405)
        self.assertEqual(strict.post(url, {"ids": "1"}).status_code, 403)

    def test_there_are_no_other_verbs(self):
        self.assertEqual(self.forge("destroy", ids="1").status_code, 404)
