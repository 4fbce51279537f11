"""The admin's page of schedules: what it shows, stores, steers and refuses."""

from datetime import datetime, timedelta, timezone
from unittest import mock

from django.contrib.admin.models import LogEntry
from django.test import override_settings
from django.urls import reverse

from django_perfectqueue.models import Change, Schedule, Task
from django_perfectqueue.schedules import Schedules

from ..management.test_schedule import break_
from .forms import press
from .staff import AdminTestCase, staff

SCHEDULES = "/admin/perfectqueue/schedule/"


EMPTY = (
    *("cron", "every", "timezone", "user", "limits", "time_limit", "expires_after", "delay"),
    *("starts_at_0", "starts_at_1", "ends_at_0", "ends_at_1", "remaining", "deadline"),
    *("pause_after", "jitter", "tags", "sequence", "max_attempts", "backoff"),
)


def filled(**values):
    blank = dict.fromkeys(EMPTY, "")
    given = {"name": "nightly", "type": "report", "data": "null", "queue": "default"}
    return {**blank, **given, "priority": "0", "overlap": "skip", "catch_up": "0", **values}


def page(row):
    return reverse("admin:perfectqueue_schedule_change", args=[row.pk])


class ScheduleTestCase(AdminTestCase):
    def put(self, name="nightly", **terms):
        return Schedules().put(name, "report", **{"every": 3600, **terms}).row()

    def press_button(self, row, label, **typed):
        return press(self.client, self.client.get(page(row)), label, **typed)

    def forge_verb(self, row, verb):
        url = reverse("admin:perfectqueue_schedule_steer", args=[row.pk, verb])
        return self.client.post(url, follow=True)


class OptionTests(ScheduleTestCase):
    def test_what_is_said_of_its_tasks(self):
        row = self.put()
        said = {"tags": "a, b", "sequence": "line", "max_attempts": "2", "backoff": "10s,1m"}
        self.client.post(page(row), filled(every="1h", **said))
        for _again in range(2):
            row = Schedules()["nightly"].row()
            self.assertEqual((row.tags, row.sequence, row.max_attempts), (["a", "b"], "line", 2))
            self.assertEqual(row.backoff[0], "Steps")
            response = self.client.get(page(row))
            self.assertContains(response, "Steps(")
            form = response.context["adminform"].form
            shown = {name: form[name].value() for name in said}
            self.client.post(page(row), filled(every="2h", **shown))
        self.client.post(page(row), filled(every="1h"))
        self.assertEqual(Schedules()["nightly"].row().options, {})
        response = self.client.post(page(row), filled(every="1h", backoff="x", sequence="y" * 51))
        self.assertContains(response, "backoff can")


class ListTests(ScheduleTestCase):
    def test_each_row_says_what_when_and_how_the_last_one_ended(self):
        row = self.put(cron="0 3 * * mon-fri", every=None, timezone="Europe/Zurich")
        self.put("other")
        Schedules()["nightly"].trigger()
        Schedules()["other"].pause("Until it is right", by="ann")
        response = self.client.get(SCHEDULES)
        for words in ("report", "03:00", "(Europe/Zurich)", "pq-waiting", row.due_at.year):
            self.assertContains(response, words)
        self.assertContains(response, "It is paused by ann: Until it is right")

    def test_a_problem_is_red(self):
        row = self.put()
        break_("nightly")
        for url in (SCHEDULES, page(row)):
            self.assertContains(self.client.get(url), "pq-below")
            self.assertContains(self.client.get(url), "There is no time zone")

    def test_the_statements_do_not_grow_with_the_rows(self):
        self.put("a")
        Schedules()["a"].trigger()
        before = len(self.statements(SCHEDULES))
        for name in "bcdefg":
            self.put(name)
            Schedules()[name].trigger()
        self.assertEqual(len(self.statements(SCHEDULES)), before)

    def test_what_comes_from_outside_is_escaped(self):
        row = self.put("<b>x", user="<b>u")
        Schedules()["<b>x"].pause("<b>n", by="<b>p")
        for url in (SCHEDULES, page(row), f"{page(row)[:-7]}history/"):
            self.assertNotContains(self.client.get(url), "<b>")


class FormTests(ScheduleTestCase):
    def add(self, **typed):
        return self.save(f"{SCHEDULES}add/", **{"name": "nightly", "type": "report", **typed})

    def test_one_is_added_and_its_next_ticks_are_shown(self):
        response = self.add(
            cron="0 3 * * *",
            timezone="Europe/Zurich",
            user="42",
            data='{"customer": 42}',
            limits="smtp,pdf",
            deadline="1h",
            jitter="30",
        )
        self.assertRedirects(response, SCHEDULES)
        row = Schedule.objects.get()
        self.assertEqual((row.cron, row.timezone, row.user), ("0 3 * * *", "Europe/Zurich", "42"))
        self.assertEqual((row.payload, row.limits), ('{"customer":42}', "pdf,smtp"))
        self.assertEqual((row.deadline, row.jitter, row.state), (3600, 30, "active"))
        self.assertIn("The next ticks", " ".join(self.reported(response)))
        change = Change.objects.get()
        self.assertEqual((change.by, change.kind, change.name), ("boss", "sched", "nightly"))

    def test_what_can_not_be_is_refused_at_its_field_and_not_stored(self):
        self.put("taken")
        for values, field, words in (
            ({}, "cron", "cron expression or an interval"),
            ({"cron": "@daily", "every": "1h"}, "cron", "not both"),
            ({"cron": "@dayly"}, "cron", "Did you mean"),
            ({"cron": "61 * * * *"}, "cron", "Bad minute"),
            ({"cron": "@daily", "timezone": "Europe/Zurch"}, "timezone", "Europe/Zurich"),
            ({"every": "0.5"}, "every", "of at least 1 s"),
            ({"every": "soon"}, "every", "a span such as"),
            ({"every": "nan"}, "every", ""),
            ({"every": "1h", "type": "reprot"}, "type", "Did you mean &#x27;report&#x27;?"),
            ({"every": "1h", "type": ""}, "type", "required"),
            ({"every": "1h", "data": "{"}, "data", "valid JSON"),
            ({"every": "1h", "remaining": "0"}, "remaining", "a whole number from 1"),
            ({"every": "1h", "user": "*"}, "user", "No user"),
            ({"every": "1h", "queue": ""}, "queue", "required"),
            ({"every": "1h", "name": "taken"}, "name", "already exists"),
            (
                {
                    "every": "1h",
                    "starts_at_0": "2030-01-02",
                    "starts_at_1": "00:00",
                    "ends_at_0": "2030-01-01",
                    "ends_at_1": "00:00",
                },
                *("ends_at", "before it starts"),
            ),
        ):
            with self.subTest(values):
                response = self.add(**values)
                self.assertEqual(response.status_code, 200)
                errors = response.context["adminform"].form.errors
                self.assertEqual(list(errors), [field])
                self.assertIn(words, str(errors[field].as_text()))
        self.assertEqual(Schedule.objects.count(), 1)

    def test_a_user_has_no_more_than_the_settings_let_it(self):
        self.put("taken", user="ann")
        with override_settings(PERFECTQUEUE={"SCHEDULES_PER_USER": 1}):
            response = self.add(every="1h", user="ann")
        self.assertContains(response, "SCHEDULES_PER_USER")

    def test_a_change_keeps_what_is_not_in_the_form_and_is_in_the_trail(self):
        row = self.put(user="ann")
        Schedules()["nightly"].pause("why", by="ann")
        self.assertRedirects(self.save(page(row), every="2h"), SCHEDULES)
        row.refresh_from_db()
        self.assertEqual((row.every, row.note, row.state), (7200, "why", "paused"))
        history = self.client.get(f"{page(row)[:-7]}history/")
        for words in ("3600 → 7200", "boss", "added"):
            self.assertContains(history, words)
        changes = self.client.get("/admin/perfectqueue/change/")
        self.assertContains(changes, "schedule &#x27;nightly&#x27;")

    def test_a_form_that_is_sent_as_it_is_changes_nothing(self):
        row = self.put(
            cron="@daily",
            every=None,
            timezone="Asia/Tokyo",
            limits=["a", "b"],
            time_limit=90.5,
            remaining=3,
            catch_up=None,
            jitter=5,
            deadline="1d",
            starts_at=datetime(2030, 1, 1, tzinfo=timezone.utc),
        )
        before = Schedule.objects.filter(pk=row.pk).values().get()
        self.assertRedirects(self.save(page(row)), SCHEDULES)
        self.assertEqual(Schedule.objects.filter(pk=row.pk).values().get(), before)

    def test_what_is_sensitive_is_masked_and_stays(self):
        row = Schedules().put("nightly", "report", {"password": "hunter2"}, every=60).row()
        response = self.client.get(page(row))
        self.assertNotContains(response, "hunter2")
        self.assertIn("***", response.context["adminform"].form["data"].value())
        self.assertRedirects(self.save(page(row), every="2h"), SCHEDULES)
        row.refresh_from_db()
        self.assertEqual((row.payload, row.every), ('{"password":"hunter2"}', 7200))

    def test_the_page_has_the_next_five_and_the_last_ten_with_their_outcomes(self):
        row = self.put(overlap="allow")
        schedule = Schedules()["nightly"]
        now = schedule.next(1)[0]
        schedule.backfill(now - timedelta(hours=12, minutes=1), now - timedelta(minutes=1))
        response = self.client.get(page(row))
        self.assertEqual(len(response.context["ahead"]), 5)
        self.assertEqual(len(response.context["last"]), 10)
        latest = Task.objects.order_by("-key").first()
        self.assertContains(response, latest.key.rpartition("@")[2])
        self.assertContains(response, reverse("admin:perfectqueue_task_change", args=[latest.pk]))
        self.assertContains(response, "pq-waiting")
        self.assertContains(response, "From submit to end: ")
        self.assertContains(response, '<rect class="pq-bar-all"', count=10)


class TaskTests(ScheduleTestCase):
    def test_the_page_of_a_task_leads_to_its_schedule(self):
        self.put("a b&c")
        task = Schedules()["a b&c"].trigger()
        response = self.story(task)
        self.assertContains(response, f'href="{SCHEDULES}?q=a+b%26c"')
        self.assertContains(response, "<dt>tick</dt>")
        found = self.client.get(SCHEDULES, {"q": "a b&c"}).context["cl"].result_list
        self.assertEqual([row.name for row in found], ["a b&c"])


class SteerTests(ScheduleTestCase):
    def test_actions_of_the_list(self):
        rows = [self.put("a"), self.put("b")]
        self.act(SCHEDULES, "pause", *rows, note="Until it is right")
        found = set(Schedule.objects.values_list("paused", "note", "paused_by"))
        self.assertEqual(found, {(True, "Until it is right", "boss")})
        self.act(SCHEDULES, "unpause", rows[0])
        self.assertEqual(Schedule.objects.filter(paused=True).count(), 1)
        self.assertIn("Done: 2 run now.", self.reported(self.act(SCHEDULES, "run", *rows)))
        self.assertEqual(Task.objects.count(), 2)
        self.assertEqual(LogEntry.objects.count(), 5)
        self.assertEqual(set(Change.objects.exclude(by="").values_list("by")), {("boss",)})

    def test_no_more_rows_are_taken_than_a_page_says(self):
        rows = [self.put(name) for name in "abc"]
        with mock.patch("django_perfectqueue.admin.parts.base.CAP", 2):
            reported = self.reported(self.act(SCHEDULES, "run", *rows))
        self.assertEqual(Task.objects.count(), 2)
        self.assertIn("At most 2 are taken at a time: repeat it for the rest.", reported)

    def test_buttons_of_the_page(self):
        row = self.put()
        self.press_button(row, "Pause", note="why")
        row.refresh_from_db()
        self.assertEqual((row.paused, row.note, row.paused_by), (True, "why", "boss"))
        self.assertContains(self.client.get(page(row)), "Unpause")
        self.press_button(row, "Unpause")
        self.press_button(row, "Run now")
        row.refresh_from_db()
        self.assertEqual((row.paused, Task.objects.count()), (False, 1))
        self.assertEqual(self.forge_verb(row, "explode").status_code, 404)
        url = reverse("admin:perfectqueue_schedule_steer", args=[row.pk, "run"])
        self.assertEqual(self.client.get(url).status_code, 405)

    def test_a_deleted_one_is_in_the_trail(self):
        rows = [self.put("a"), self.put("b")]
        asked = self.client.get(reverse("admin:perfectqueue_schedule_delete", args=[rows[0].pk]))
        press(self.client, asked, "Yes")
        press(self.client, self.act(SCHEDULES, "delete_selected", rows[1]), "Yes")
        self.assertFalse(Schedule.objects.exists())
        found = Change.objects.filter(by="boss").values_list("name", "after")
        self.assertEqual({name for name, after in found if after["did"] == "deleted"}, {"a", "b"})


class PermissionTests(ScheduleTestCase):
    def test_each_act_needs_its_permission(self):
        row = self.put()
        for codename, may_see, may_change, may_add in (
            ("view_schedule", 200, 403, 403),
            ("change_schedule", 200, 302, 403),
            ("add_schedule", 403, 403, 302),
            ("view_task", 403, 403, 403),
        ):
            with self.subTest(codename):
                self.client.force_login(staff(codename, name=codename))
                self.assertEqual(self.client.get(page(row)).status_code, may_see)
                url = reverse("admin:perfectqueue_schedule_steer", args=[row.pk, "pause"])
                self.assertEqual(self.client.post(url).status_code, may_change)
                found = self.client.post(page(row), filled(every="1h")).status_code
                self.assertEqual(found, may_change)
                data = filled(name=codename, every="1h")
                self.assertEqual(self.client.post(f"{SCHEDULES}add/", data).status_code, may_add)

    def test_who_may_only_look_is_offered_no_action_and_no_task_link(self):
        row = self.put()
        Schedules()["nightly"].trigger()
        self.client.force_login(staff("view_schedule"))
        response = self.client.get(page(row))
        self.assertNotContains(response, "Run now")
        self.assertNotContains(response, "/admin/perfectqueue/task/")
        self.forge_action(SCHEDULES, "run", row)
        self.assertEqual(Task.objects.count(), 1)

    def test_who_may_change_some_rows_only_must_be_let_at_the_old_and_the_new_one(self):
        mine, theirs = self.put("mine", user="ann"), self.put("theirs", user="bob")
        self.client.force_login(staff("view_schedule", name="ann"))
        backends = ["django.contrib.auth.backends.ModelBackend", f"{__name__}.OwnRows"]
        with override_settings(AUTHENTICATION_BACKENDS=backends):
            for row, user, status in (
                (mine, "ann", 302),
                (mine, "bob", 403),
                (theirs, "ann", 403),
                (theirs, "bob", 403),
            ):
                with self.subTest(row=row.name, user=user):
                    data = filled(name=row.name, every="3h", user=user)
                    self.assertEqual(self.client.post(page(row), data).status_code, status)
            self.assertEqual(self.forge_verb(theirs, "run").status_code, 403)
            self.assertEqual(self.forge_verb(mine, "run").status_code, 200)
        found = Schedule.objects.order_by("name").values_list("user", "every")
        self.assertEqual(list(found), [("ann", 10800), ("bob", 3600)])


class OwnRows:
    """A backend that lets each user change the schedules of its name."""

    def authenticate(self, request, **credentials):
        return None

    def has_perm(self, user, perm, obj=None):
        own = isinstance(obj, Schedule) and obj.user == user.username
        return own and perm == "perfectqueue.change_schedule"
