from datetime import timedelta
from unittest import mock

from django.test import SimpleTestCase
from django.utils import timezone

from django_perfectqueue import store
from django_perfectqueue.admin.pages import tasks as task_story
from django_perfectqueue.lib import durations
from django_perfectqueue.models import Account, FairShare, Limit, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.templatetags import perfectqueue
from django_perfectqueue.templatetags.perfectqueue import duration
from django_perfectqueue.test import drain

from ..factories import (
    NOON,
    acquire,
    after,
    failed,
    finish,
    processor,
    register,
    retry,
    running,
    settle,
    submit,
)
from ..management.running import run, run_json
from .staff import LIST, AdminTestCase, row

EVIL = "<script>alert(1)</script>"


class StoryTests(AdminTestCase):
    def test_a_finished_task_tells_its_times_and_result(self):
        task, held = running("k1", user="ann", data={"uid": 7})
        finish(held, now=after(90), seconds=75.0, result='{"rows":3}', worker="host:1")

        response = self.story(task)
        self.assertContains(response, "Its handler has returned.")
        self.assertContains(response, "2030-01-01 12:01")
        self.assertContains(response, "1 min 15 s")
        self.assertContains(response, "&quot;rows&quot;: 3")
        self.assertContains(response, "&quot;uid&quot;: 7")
        self.assertContains(response, "host:1")
        self.assertNotContains(response, "Retry")

    def test_it_waited_as_long_as_the_command_says(self):
        """Until its first start: that of its last attempt comes after a wait for another try."""
        task, held = running("k1")
        retry(held)
        [again] = acquire(now=after(900))
        finish(again, now=after(960), seconds=10.0)
        [reported] = run_json("pq_task", "show", "k1")
        self.assertLess(reported["waited"], 60)
        shown = dict(self.story(task).context["times"])["waited"]
        self.assertEqual(shown, durations.long_duration(reported["waited"]))

    def test_a_workflow_is_read_in_its_order(self):
        task = submit(EVIL, now=None, type="decide")
        drain()
        page = self.story(task)
        kept = [(one.row.name, one.state) for one, _facts in page.context["kept"]]
        self.assertEqual(kept, [("draft", "kept"), ("approval", "waiting")])
        self.assertContains(page, "&quot;total&quot;: 7")
        self.assertNotContains(page, "hunter22")
        self.assertContains(page, "waits for this signal")
        self.assertRegex(page.content.decode(), r"since \S.*, until \S")
        task.signal("approval", {"why": EVIL})
        task.signal(EVIL)
        drain()
        page = self.story(task)
        kept = [(one.row.name, one.state) for one, _facts in page.context["kept"]]
        self.assertIn(("approval", "answered"), kept)
        self.assertIn(("approval", "sent"), kept)
        self.assertIn(("cooling-off", "sleeping"), kept)
        self.assertNotContains(page, EVIL)
        task.cancel_request()
        self.assertContains(self.story(task), "the task ended first")

    def test_a_wait_that_nothing_has_ended_says_why(self):
        late, ended = (submit(key, now=None, type="decide") for key in ("late", "ended"))
        drain()
        ended.cancel_request()
        drain(ahead="8d")
        states = [
            {one.row.name: one.state for one, _facts in self.story(task).context["kept"]}
            for task in (late, ended)
        ]
        self.assertEqual([one["approval"] for one in states], ["timed_out", "ended"])
        self.assertContains(self.story(late), "no such signal came in time")
        self.assertContains(self.story(ended), "the task ended first")

    def test_what_the_submit_said_of_attempts_is_shown(self):
        Queue().submit("k1", "t", max_attempts=7, backoff="10s,1m")
        shown = dict(self.story(Queue()["k1"]).context["about"])
        self.assertEqual(shown["most attempts"], "7")
        self.assertEqual(shown["backoff"], "Steps(jitter=0.25, waits=[10.0, 60.0])")
        Queue().submit("k2", "t")
        self.assertNotContains(self.story(Queue()["k2"]), "backoff")

    def test_it_takes_few_statements(self):
        register(now=None)
        Limit.objects.create(name="mail", max_running=5)
        _task, _held = running("k0", now=None, user="ann", limits=["mail"])
        task = submit("k1", now=None, user="ann", limits=["mail"], tags=["a"])
        store.upkeep.wake_forgotten_lanes(using="default")
        response = self.story(task)
        self.assertContains(response, "It is number 1 in its user")
        statements = self.statements(response.request["PATH_INFO"])
        self.assertLessEqual(len(statements), 15, statements)

    def test_one_that_has_expired_says_so(self):
        task = submit("k1", now=None)
        Task.objects.update(expires_at=timezone.now() - timedelta(seconds=90))
        self.assertContains(self.story(task), "It expired 1 min 30")
        self.assertContains(self.client.get(LIST), "expires at</span>")
        self.assertRegex(run("pq_task", "list"), r"waiting +\S+ ago +expired 1m3\ds ago")

    def test_queue_type_user_and_worker_are_links(self):
        task, lease = running("k1", now=None, type="mail.send", user="ann & bob")
        register(now=None, states=[processor(1, lease.task_id, holder=lease.holder)])
        reported = self.story(task).content.decode()
        for link in ("?queue=default", "?queue=default&amp;type=mail.send", "?user=ann+%26+bob"):
            with self.subTest(link):
                self.assertIn(f'href="{LIST}{link}"', reported)
        self.assertIn('href="/admin/perfectqueue/worker/"', reported.partition("runs on")[2])

    def test_where_it_runs_is_reported(self):
        task, held = running("k1", now=None)
        self.assertNotContains(self.story(task), "runs on")
        own = processor(2, task.id, pid=77, holder=held.holder)
        register(host="app1", now=None, states=[own])

        self.assertContains(self.story(task), "app1:77, processor 2")

    def test_when_it_is_expected_and_its_limits_are_reported(self):
        task = submit("k1", expected_at=after(3600), limits=["mail", "api"])

        response = self.story(task)

        self.assertContains(response, "expected at")
        self.assertContains(response, "2030-01-01 13:00")
        for name in ("api", "mail"):
            self.assertContains(response, f'limit/?q={name}">{name}</a>')
        self.assertNotContains(self.story(submit("k2")), "expected at")

    def test_a_task_that_was_force_finished_says_so(self):
        task = submit("k1")
        task.force_finish(now=after(1))

        self.assertContains(self.story(task), "Someone closed it as finished.")

    def test_each_attempt_is_reported_with_its_error(self):
        task, held = running("k1")
        why = store.Failure(error="ValueError", message="no such file", traceback="line 7")
        retry(held, why=why, seconds=2.5)
        [held] = acquire(now=after(1))
        retry(held, why=store.Failure(error="TimeoutError"), now=after(2))

        response = self.story(task)
        for words in ("#1 retried", "ValueError", "no such file", "line 7", "2.5 s", "#2 retried"):
            self.assertContains(response, words)
        [held] = acquire(now=after(3))
        store.settle([held], store.Ending.release(), using="default", now=after(3))
        [held] = acquire(now=after(4))
        finish(held, now=after(5), seconds=0.5)
        self.assertContains(self.story(task), "#3 finished")
        self.assertContains(self.story(task), "Only the newest", count=0)
        self.assertContains(response, "<details><summary>Traceback</summary>")

    def test_how_far_it_is_and_what_it_has_logged_is_reported(self):
        submit("k1", data={"password": "hunter22"}, now=None)
        task = Queue().poll()
        task.progress(0.4, f"drawing {EVIL}")
        task.log(f"As hunter22, {EVIL}.", level="WARNING")
        task.write_notes()

        response = self.story(task)

        self.assertContains(response, '<progress max="1" value="0.4')
        self.assertContains(response, "<strong>40.0%</strong>")
        self.assertContains(response, "drawing &lt;script&gt;")
        self.assertContains(response, "#1 running")
        self.assertContains(response, "<summary>1 log line</summary>")
        self.assertContains(response, "As ********, &lt;script&gt;")
        for hidden in ("hunter22", EVIL):
            self.assertNotContains(response, hidden)

        task.finish()
        response = self.story(task)
        self.assertNotContains(response, "<progress")
        self.assertContains(response, "#1 finished")
        self.assertContains(response, "<summary>1 log line</summary>")

    @mock.patch.object(task_story, "ATTEMPTS", 2)
    def test_the_newest_attempts_keep_their_numbers(self):
        task, held = running("k1")
        for second in (1, 2, 3):
            retry(held, now=after(second))
            [held] = acquire(now=after(second))

        response = self.story(task)
        self.assertNotContains(response, "#1 ")
        for words in ("#2 retried", "#3 retried", "Only the newest 2 are shown."):
            self.assertContains(response, words)

    def test_a_task_just_put_back_waits_for_a_processor(self):
        task = failed("k1")
        self.assertNotContains(self.story(task), "No worker serves")
        task.retry()

        self.assertContains(self.story(task), "No worker serves queue")
        self.assertNotContains(self.story(task), "gave it back untried")

    def test_a_running_task_waits_for_nothing(self):
        task, _held = running("k1", now=None)

        self.assertNotContains(self.story(task), "waits for")

    def test_a_task_that_was_given_back_says_so(self):
        task, held = running("k1", now=None)
        store.settle([held], store.Ending.release(30), using="default")

        self.assertContains(self.story(task), "A worker gave it back untried;")

    def test_a_task_that_no_worker_can_handle_waits_for_no_time(self):
        register("default", now=None)
        task, held = running("k1", now=None)
        store.settle([held], store.Ending.release(60.0), using="default")
        store.park([held], lambda _type: False, using="default")

        response = self.story(task)
        self.assertContains(response, "A worker gave it back: it has no handler for its type.")
        self.assertNotContains(response, "It waits for its time.")

    def test_a_task_that_was_put_off_or_discarded_says_so(self):
        for key in ("k1", "k2"):
            submit(key, now=None)
        late, gone = Queue().acquire(2)
        late.snooze("1h")
        gone.discard("There is no such customer.", why=store.Failure.of(KeyError("ann")))

        self.assertContains(self.story(Queue()["k1"]), "Its handler has snoozed it.")
        response = self.story(Queue()["k2"])
        self.assertContains(response, "Its handler has discarded it.")
        self.assertNotContains(response, "as someone asked")
        self.assertContains(response, "There is no such customer.")
        self.assertContains(response, "KeyError")

    def test_a_failed_task_says_why_and_offers_what_can_be_done(self):
        response = self.story(failed("k1", data={}))

        self.assertContains(response, "boom")
        self.assertContains(response, "It has failed")
        self.assertEqual(
            [verb.name for verb in response.context["verbs"]], ["retry", "move", "edit", "copy"]
        )

    def test_a_running_task_offers_force_finish_cancel_and_a_copy(self):
        task, _held = running("k1", now=timezone.now())

        verbs = self.story(task).context["verbs"]
        self.assertEqual([verb.name for verb in verbs], ["force_finish", "cancel", "copy"])

    def test_it_says_why_a_task_still_waits(self):
        FairShare.objects.create(user="ann", paused=True)
        task = submit("k1", user="ann", now=timezone.now())
        acquire(now=None)
        Account.objects.update(paused=True)

        self.assertContains(self.story(task), "No worker serves queue &#x27;default&#x27;.")

        register(now=None)
        self.assertContains(self.story(task), "Its user is paused")

        Account.objects.update(paused=False, max_running=2, running=2)
        self.assertContains(self.story(task), "Its user has 2 running, of 2 at most.")
        self.assertContains(self.story(task), '">2</a></dd>')

        Account.objects.update(running=0)
        self.assertContains(self.story(task), "It is number 1 in its user&#x27;s line.")

    def test_a_button_acts_and_returns_to_the_story(self):
        task = failed("k1")
        url = f"{LIST}{row(task).pk}/change/"

        response = self.press_verb(task, "Retry")
        self.assertRedirects(response, url)
        self.assertEqual(self.reported(response), ["Done: 1 put back in line."])

    def test_what_it_has_taken_along_is_reported_with_stars(self):
        self.assertNotContains(self.story(submit("k1")), "<h2>Context</h2>")
        task = submit("k2")
        Task.objects.filter(key="k2").update(context='{"shop.tenant":"acme","shop.token":"hunter"}')

        response = self.story(task)
        self.assertContains(response, "<h2>Context</h2>")
        self.assertContains(response, "acme")
        self.assertNotContains(response, "hunter")

    def test_what_is_stored_is_escaped(self):
        task, held = running(EVIL, user=EVIL, type=EVIL, data={EVIL: EVIL})
        why = store.Failure(error=EVIL, message=EVIL, traceback=EVIL)
        settle(held, store.Ending.fail(why=why), seconds=0.0, using="default", now=NOON)

        response = self.story(task)
        self.assertNotContains(response, EVIL)
        self.assertContains(response, "&lt;script&gt;alert(1)&lt;/script&gt;")

    def test_marks_of_direction_are_spelt_out(self):
        """A text with them looks like another one."""
        mark = "\u202e"
        task, held = running("k1", data={"file": f"invoice{mark}gpj.exe"})
        why = store.Failure(error="boom", message=f"a{mark}b", traceback=f"line 1\nline{mark}2")
        settle(held, store.Ending.fail(why=why), seconds=0.0, using="default", now=NOON)

        response = self.story(task)
        self.assertNotContains(response, mark)
        self.assertContains(response, "invoice\\u202egpj.exe")
        self.assertContains(response, "line 1\nline\\u202e2")

    def test_broken_data_is_shown_as_such(self):
        task = submit("k1")
        Task.objects.update(payload='{"uid": ')

        response = self.story(task)
        self.assertContains(response, "The stored text is not JSON")
        self.assertContains(response, "{&quot;uid&quot;: ")

    def test_a_lone_surrogate_is_no_server_error(self):
        task = submit("k1", data={"name": "\ud800"})

        self.assertContains(self.story(task), "\\ud800")

    @mock.patch.object(perfectqueue, "LONGEST", 10)
    def test_a_long_payload_is_cut(self):
        self.assertContains(self.story(submit("k1", data=["x" * 50])), "more characters")

    def test_a_missing_task_is_reported(self):
        response = self.client.get(f"{LIST}{10**30}/change/", follow=True)

        self.assertContains(response, "exist. Perhaps it was deleted?")


class SpanTests(SimpleTestCase):
    def test_a_span_is_reported_in_its_two_largest_units(self):
        for seconds, words in (
            (None, "\N{EN DASH}"),
            (-1, "0 ms"),
            (0.25, "250 ms"),
            (12.34, "12.3 s"),
            (250, "4 min 10 s"),
            (7_205, "2 h 0 min"),
            (90_000, "1 d 1 h"),
        ):
            self.assertEqual(duration(seconds), words)
