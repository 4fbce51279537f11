"""Staff that ADMIN_SCOPE narrows to some users see and steer nothing of others."""

import json
import re
from contextlib import suppress
from urllib.parse import urlencode

from django.contrib.admin import site
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.db import IntegrityError, transaction
from django.db.models import CharField, Q, TextField
from django.test import Client, override_settings, tag
from django.urls import URLPattern, URLResolver, include, path

from django_perfectqueue import store
from django_perfectqueue.admin.parts.actions import VERBS
from django_perfectqueue.bulk import TYPE
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.fairness.limits import set_limit
from django_perfectqueue.fairness.shares import set_share
from django_perfectqueue.models import (
    Account,
    Attempt,
    Batch,
    Change,
    DeadLetter,
    FairShare,
    Limit,
    Schedule,
    Task,
    Ticket,
)
from django_perfectqueue.payload.journal import entry
from django_perfectqueue.queue import Queue
from django_perfectqueue.schedules import Schedules
from django_perfectqueue.store.records import sign
from django_perfectqueue.store.values import Note
from django_perfectqueue.test import drain

from ..factories import acquire, fail, finish, processor, register, submit
from ..health.test_queues import now
from ..inspection.test_statistics import ran
from .forms import press
from .staff import AdminTestCase

APP = "/admin/perfectqueue/"
FIGURES = f"{APP}overview/figures/"
HERE = "tests.admin.test_scope"
SCOPED = {"ADMIN_SCOPE": f"{HERE}.users_of"}
MARKS = ("user", "queue", "type", "key", "data", "group", "message", "log", "result", "schedule",
         "batch")  # fmt: skip
OURS, THEIRS = "ours", "theirs"
KEPT = (Batch, Task, Ticket, DeadLetter, Attempt, Account, FairShare, Schedule, Limit)

urlpatterns = [
    path("admin/", site.urls),
    path("metrics", include("django_perfectqueue.metrics.urls")),
]


def users_of(request):
    return None if request.user.username == "boss" else [f"{OURS}user"]


def nobody(request):
    return ()


def text_of(request):
    return f"{OURS}user"


def fill(whose):
    """Store one of all that a customer can have; each text says of what and whose it is."""
    name = {mark: whose + mark for mark in MARKS}
    common = {"queue": name["queue"], "user": name["user"], "type": name["type"]}
    task, lease = held(f"{name['key']}-2", **common)
    lines = entry(1.9e9, "WARNING", name["log"], name["log"])
    store.records.write_journal(
        [Note(task_id=task.id, key=task.key, attempt=1, stage=name["log"], lines=lines)],
        using="default",
    )
    fail(lease, error=name["group"], message=name["message"])
    _task, lease = held(f"{name['key']}-3", **common)
    finish(lease, result=json.dumps(name["result"]), now=None)
    submit(f"{name['key']}-1", data={"x": name["data"]}, now=None, **common)
    sign([(name["queue"], f"{name['key']}-1")], "retried", by=name["log"], using="default")
    set_share(name["user"], weight=2, by=name["user"])
    set_limit(name["user"], scope="user", max_running=2)
    with Queue(name["queue"]).batch(name["batch"], user=name["user"]) as batch:
        for member in ("a", "b"):
            batch.submit(f"{name['key']}-{member}", name["type"], user=name["user"])
    ran(1.0, at=now(), queue=name["queue"], type=name["type"], user=name["user"])
    register(name["queue"], states=[processor(1, task.id)], now=None)
    Schedules().put(name["schedule"], "report", every="1h", user=name["user"])


def canary(whose):
    """Write a text into every text column of a customer's rows that has none yet."""
    for model in (Task, DeadLetter, Attempt, Account, FairShare, Schedule, Batch, Change):
        for field in model._meta.fields:
            is_text = isinstance(field, (CharField, TextField)) and not field.choices
            if not is_text or field.primary_key or field.is_relation:
                continue
            rows = model._base_manager.filter(pk__in=theirs(model)).filter(
                Q(**{field.name: ""}) | Q(**{f"{field.name}__isnull": True})
            )
            # Some must be JSON; in some the database lets no text stand.
            with suppress(IntegrityError), transaction.atomic():
                rows.update(**{field.name: json.dumps(f"{whose}text")})


def entangle():
    """Have tasks of our customer hang on those of another, in each way."""
    other, ours = Queue("shared"), Queue(f"{OURS}queue")
    common = {"type": "report", "user": f"{OURS}user"}
    apart = {"queue": f"{THEIRS}apart", "type": "x", "user": f"{THEIRS}user"}
    parent, lease = held(f"{THEIRS}key-8", **apart)
    waits = [
        ours.submit(f"{OURS}key-{mode}", after=[parent], if_failed=mode, **common)
        for mode in ("wait", "cancel")
    ]
    for name in ("open", "failed"):
        with other.batch(f"{THEIRS}batch-{name}", user=f"{THEIRS}user") as batch:
            batch.submit(f"{THEIRS}key-{name}", "x", user=f"{THEIRS}user")
            batch.submit(f"{OURS}key-in-{name}", **common)
            waits.append(batch.then(f"{OURS}key-after-{name}", when="finished", **common))
    other[f"{THEIRS}key-failed"].cancel_request()
    other[f"{OURS}key-in-failed"].cancel_request()
    fail(lease, error=f"{THEIRS}group", message=f"{THEIRS}message", now=None)
    store.records.follow(using="default")
    return waits


def held(key, *, queue, **options):
    """Return a task that runs, and its lease."""
    task = submit(key, queue=queue, now=None, **options)
    [lease] = acquire(queues=(queue,), now=None)
    return task, lease


def pages():
    """Return the URL of every page of the app, with each object and verb that it can name."""
    return list(dict.fromkeys(routes()))


def routes():
    """Yield those URLs; one that names no verb comes with each."""
    for model, door in site._registry.items():
        if model._meta.app_label == "perfectqueue":
            for pattern in flat(door.get_urls()):
                for values in named(model, pattern.pattern.converters):
                    route = str(pattern.pattern)
                    for name, converter in pattern.pattern.converters.items():
                        kind = type(converter).__name__.removesuffix("Converter").lower()
                        for written in (f"<{kind}:{name}>", f"<{name}>"):
                            route = route.replace(written, str(values[name]))
                    assert "<" not in route, route
                    yield f"{APP}{model._meta.model_name}/{route}"


def shown_pages():
    """Return the URLs of pages; the others answer 405 to a GET."""
    return [url for url in pages() if "steer" not in url]


def flat(patterns):
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from flat(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            yield pattern


def named(model, converters):
    """Return the values for the parts of a URL: other customers' rows, and each verb."""
    ids = theirs(model) or [1]
    verbs = [*VERBS, "run", "pause", "unpause"]
    words = verbs if converters.keys() - {"object_id", "pk"} else [""]
    return [dict.fromkeys(converters, word) | dict.fromkeys({"object_id", "pk"}, id_)
            for id_ in ids for word in words]  # fmt: skip


def theirs(model):
    """Return the ids of the rows that are not of our customer."""
    of_task = dict.fromkeys(("deadletter", "ticket", "attempt"), "task__user")
    paths = {**of_task, "limit": "name", "worker": "", "overview": "", "usage": ""}
    name = model._meta.model_name
    fields = {field.name for field in model._meta.fields}
    of = paths.get(name, "user" if "user" in fields else "")
    rows = model._base_manager.all()
    return list((rows.filter(**{of: f"{THEIRS}user"}) if of else rows).values_list("pk", flat=True))


@override_settings(PERFECTQUEUE=SCOPED, ROOT_URLCONF=HERE)
class ScopeTests(AdminTestCase):
    @classmethod
    def setUpTestData(cls):
        super().setUpTestData()
        cls.support = User.objects.create_user("support", is_staff=True)
        cls.support.user_permissions.set(
            Permission.objects.filter(content_type__app_label="perfectqueue")
        )
        fill(OURS)
        fill(THEIRS)
        store.upkeep.wake_forgotten_lanes(using="default")

    def setUp(self):
        self.client = Client(raise_request_exception=True)
        self.client.force_login(self.support)

    def queries(self, url):
        """Yield queries of a page: its filters with what the other customer has, and others."""
        yield {}
        if any(letter.isdecimal() for letter in url):
            return
        for name in ("user", "queue", "type", "group"):
            yield {name: THEIRS + name}
        yield {"status": "all"}
        yield {"q": THEIRS}
        yield {"queue": f"{THEIRS}queue", "user": f"{OURS}user", "type": f"{THEIRS}type"}
        yield {"queue": f"{THEIRS}queue", "user": f"{THEIRS}user", "over": "day"}
        if url.endswith("/task/"):
            for status in ("waiting", "running", "finished", "failed"):
                yield {"status": status, "reach": "all"}

    def leaks(self, response, sent):
        """Return the marks of the other customer that an answer has and the request had not."""
        shown = response.content.decode(errors="replace") + str(response.headers)
        return [
            mark
            for mark in MARKS
            if THEIRS + mark in shown and THEIRS + mark not in json.dumps(sent, default=str)
        ]

    @tag("any-database")
    def test_no_page_shows_anything_of_others(self):
        seen = set()
        for url in [APP, "/metrics", *shown_pages()]:
            for query in self.queries(url):
                with self.subTest(url=url, query=query):
                    sent = [url, query]
                    response = self.client.get(url, query, follow=True)
                    self.assertLess(response.status_code, 500)
                    self.assertEqual(self.leaks(response, sent), [])
                    content = str(response.content)
                    seen.update(mark for mark in MARKS if OURS + mark in content)
        self.assertGreaterEqual(
            seen, {"user", "queue", "type", "key", "group", "schedule", "batch"}
        )

    @tag("any-database")
    def test_who_is_not_narrowed_sees_all_of_it(self):
        """Otherwise the test above would hold of empty pages."""
        self.client.force_login(self.boss)
        self.client.raise_request_exception = False
        seen = set()
        for url in shown_pages():
            is_list = not re.search(r"\d", url)
            for query in ({}, {"status": "all"}) if is_list else ({},):
                content = str(self.client.get(url, query, follow=True).content)
                seen.update(mark for mark in MARKS if THEIRS + mark in content)
        self.assertEqual(seen, set(MARKS))

    @tag("any-database")
    def test_nothing_steers_the_tasks_of_others(self):
        before = self.rows()
        ids = theirs(Task)
        data = {
            "_do": "1",
            "ids": ",".join(map(str, ids)), "group": f"{THEIRS}group",
            "status": "all", "name": f"{THEIRS}schedule", "user": f"{THEIRS}user", "type": "report",
            "queue": f"{THEIRS}queue", "weight": "9", "scope": "user", "max_running": "1",
            "every": "60", "data": "{}", "post": "yes", "note": "x", "period": "1",
            "overlap": "skip", "catch_up": "0", "priority": "0",
        }  # fmt: skip
        of_batch = {**data, "batch": theirs(Batch)[0]}
        for url in pages():
            for sent in (data, of_batch) if "steer" in url else (data,):
                with self.subTest(url=url, sent=sent):
                    response = self.client.post(url, sent, follow=True)
                    self.assertLess(response.status_code, 500)
                    self.assertEqual(self.leaks(response, [url, sent]), [])
        self.assertEqual(self.rows(), before)

    def test_no_action_does_either(self):
        before = self.rows()
        done = set()
        for model, door in site._registry.items():
            if model._meta.app_label != "perfectqueue":
                continue
            url = f"{APP}{model._meta.model_name}/"
            for action in [*door.actions, *dict(site.actions)]:
                for across in (0, 1):
                    sent = {
                        "action": action,
                        "_selected_action": theirs(model),
                        "select_across": across,
                        "post": "yes",
                    }
                    query = {"q": THEIRS} if across else {}
                    with self.subTest(url=url, sent=sent):
                        response = self.client.post(f"{url}?{urlencode(query)}", sent, follow=True)
                        self.assertEqual(self.leaks(response, [sent, query]), [])
                        done.add(action)
        self.assertEqual(self.rows(), before)
        self.assertGreaterEqual(done, {"retry", "purge", "cancel", "force_finish", "pause", "run"})

    def rows(self):
        """Return all that belongs to the other customer."""
        found = {model: model._base_manager.filter(pk__in=theirs(model)) for model in KEPT}
        return {model: list(rows.order_by("pk").values()) for model, rows in found.items()}

    def test_a_signal_is_sent_to_ones_own_tasks_only(self):
        for whose, code, count in ((OURS, 302, 1), (THEIRS, 404, 0)):
            task = Task.objects.get(key=f"{whose}key-1")
            sent = self.client.post(f"{APP}task/{task.pk}/signal/", {"name": "approved"})
            self.assertEqual((sent.status_code, task.steps.count()), (code, count))

    def test_ones_own_tasks_are_found_and_steered(self):
        names = ("b", "a", 1, 3, 2)
        self.mine = [f"{OURS}key-{name}" for name in names]
        self.assertEqual(self.keys(), self.mine)
        self.assertEqual(self.keys(q=OURS), self.mine)
        self.assertEqual(self.keys(q=THEIRS), [])
        failed = Task.objects.get(key=f"{OURS}key-2")
        self.choose("retry", failed.pk)
        self.assertFalse(DeadLetter.objects.filter(pk=failed.pk).exists())
        mine = {"queue": f"{OURS}queue", "user": f"{OURS}user"}
        self.assertEqual(self.client.get(FIGURES, mine).status_code, 200)

    def test_the_groups_of_a_filter_are_those_of_ones_users(self):
        page = self.client.get(f"{APP}deadletter/").content.decode()
        self.assertIn(f"{OURS}group (1)", page)

    def test_bulk_work_is_confined_to_ones_users(self):
        url, waiting = f"{APP}task/bulk/", {"status": "waiting", "verb": "cancel"}
        page = self.client.get(url, waiting)
        self.assertContains(page, f"{OURS}key-1")
        self.assertNotContains(page, THEIRS)
        of_others = {**waiting, "queue": f"{THEIRS}queue"}
        self.assertNotContains(self.client.get(url, of_others), f"{THEIRS}key")
        press(self.client, self.client.get(url, waiting), "Request cancel")
        [task] = Task.objects.filter(type=TYPE)
        self.assertIn(f'"users": ["{OURS}user"]', json.dumps(task.data))

    def test_bulk_work_of_who_sees_nobody_does_nothing(self):
        drain("bulk")
        before = self.rows()
        with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": f"{HERE}.nobody"}):
            for status, verb in (("waiting", "cancel"), ("failed", "delete"), ("all", "retry")):
                sent = {"status": status, "verb": verb, "rate": "100", "run_in": "bulk"}
                sent |= {"_do": "Do", "shown": json.dumps([verb, "", None])}
                self.client.post(f"{APP}task/bulk/", sent)
        drain("bulk")
        self.assertEqual(self.rows(), before)

    def test_who_began_a_bulk_operation_follows_and_cancels_it(self):
        waiting = {"status": "waiting", "verb": "cancel"}
        page = press(self.client, self.client.get(f"{APP}task/bulk/", waiting), "Request cancel")
        self.assertEqual(page.status_code, 200)
        task = Task.objects.get(type=TYPE)
        self.assertEqual(page.redirect_chain[-1][0], f"{APP}task/{task.pk}/change/")
        self.assertContains(page, task.key)
        self.assertNotIn(task.key, self.keys())
        other = User.objects.create_user("other", is_staff=True)
        other.user_permissions.set(self.support.user_permissions.all())
        story, cancel = f"{APP}task/{task.pk}/change/", {"ids": task.pk, "_do": "1"}
        self.client.force_login(other)
        self.assertNotContains(self.client.get(story, follow=True), task.key)
        self.client.post(f"{APP}task/steer/cancel/", cancel)
        self.assertEqual(Task.objects.get(pk=task.pk).outcome, "")
        self.client.force_login(self.support)
        self.client.post(f"{APP}task/steer/cancel/", cancel)
        self.assertEqual(Task.objects.get(pk=task.pk).outcome, "cancelled")

    def test_who_loses_the_customers_of_a_bulk_operation_loses_sight_of_it(self):
        waiting = {"status": "waiting", "verb": "cancel"}
        press(self.client, self.client.get(f"{APP}task/bulk/", waiting), "Request cancel")
        task = Task.objects.get(type=TYPE)
        with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": f"{HERE}.nobody"}):
            page = self.client.get(f"{APP}task/{task.pk}/change/")
        self.assertRedirects(page, "/admin/")

    def test_a_batch_is_seen_by_who_sees_its_user_with_their_tasks_alone(self):
        batch = Queue(f"{OURS}queue").batch_named(f"{OURS}batch")
        batch.submit("foreign", f"{THEIRS}type", user=f"{THEIRS}user")
        batch.then(f"{THEIRS}callback", f"{THEIRS}type", user=f"{THEIRS}user")
        with batch.batch(f"{THEIRS}inner", user=f"{THEIRS}user") as inner:
            inner.submit("foreign-2", f"{THEIRS}type", user=f"{THEIRS}user")
        url = f"{APP}batch/{batch.id}/change/"
        page = self.client.get(url)
        self.assertContains(page, f"{OURS}key-a")
        for name in ("foreign", THEIRS):
            self.assertNotContains(page, name)
        sent = {"batch": batch.id, "back": url, "_do": "1"}
        self.client.post(f"{APP}task/steer/cancel/", sent)
        ended = Task.objects.filter(outcome="cancelled").values_list("key", flat=True)
        self.assertEqual(set(ended), {f"{OURS}key-a", f"{OURS}key-b"})
        self.assertFalse(Batch.objects.get(pk=inner.id).stopped)

    def test_the_data_of_anothers_task_is_not_shown_before_an_edit(self):
        for whose, shown in ((OURS, True), (THEIRS, False)):
            task = Task.objects.get(key=f"{whose}key-1")
            page = self.client.post(f"{APP}task/steer/edit/", {"ids": task.pk})
            self.assertEqual(f"{whose}data" in page.content.decode(), shown)

    def test_another_users_parent_is_not_named(self):
        parent = Queue(f"{THEIRS}queue").submit(
            f"{THEIRS}key-9", type="report", user=f"{THEIRS}user"
        )
        child = Queue(f"{OURS}queue").submit(
            f"{OURS}key-9", type="report", user=f"{OURS}user", after=[parent]
        )
        story = f"{APP}task/{child.id}/change/"
        self.assertNotContains(self.client.get(story), THEIRS)
        self.client.force_login(self.boss)
        self.assertContains(self.client.get(story), f"{THEIRS}key-9")

    @tag("any-database")
    def test_no_text_of_anothers_rows_is_on_pages_of_ones_own(self):
        waits = entangle()
        canary(THEIRS)
        statuses = [task.metadata().status for task in waits]
        self.assertEqual(statuses, ["blocked", "cancelled", "blocked", "blocked"])
        for model, door in site._registry.items():
            opts = model._meta
            if opts.app_label != "perfectqueue":
                continue
            base = f"{APP}{opts.model_name}/"
            urls = [base, f"{base}?status=all", f"{base}?q={OURS}key", f"{base}bulk/?status=all"]
            rows = door.get_queryset(self.client.get(base).wsgi_request)
            ids = rows.values_list("pk", flat=True) if door.user_path else []
            urls += [f"{base}{pk}/{end}/" for pk in ids for end in ("change", "history")]
            for url in urls:
                with self.subTest(url):
                    shown = self.client.get(url, follow=True).content.decode()
                    self.assertEqual(re.findall(f"{THEIRS}\\S*", shown), [])
        for task in waits:
            for verb in VERBS:
                shown = self.forge(verb, ids=str(task.id), back=f"{APP}task/").content.decode()
                self.assertEqual(re.findall(f"{THEIRS}\\S*", shown), [])

    def test_rules_are_stored_only_for_ones_users(self):
        data = {"queue": "", "weight": "3", "max_running": ""}
        for user, status in ((f"{OURS}user", 302), (f"{THEIRS}user", 403), ("*", 403)):
            FairShare.objects.all().delete()
            response = self.client.post(f"{APP}fairshare/add/", {**data, "user": user})
            self.assertEqual(response.status_code, status)
            self.assertEqual(FairShare.objects.exists(), status == 302)

    def test_pages_of_everyone_are_refused(self):
        for page in ("overview", "worker", "queueshare", "limit", "change"):
            self.assertEqual(self.client.get(f"{APP}{page}/").status_code, 403, page)
        self.assertEqual(self.client.get("/metrics").status_code, 401)
        for query in (
            {"queue": f"{OURS}queue"},
            {"queue": f"{OURS}queue", "user": f"{OURS}user", "type": f"{OURS}type"},
            {"queue": f"{OURS}queue", "user": f"{THEIRS}user"},
        ):
            self.assertEqual(self.client.get(FIGURES, query).status_code, 403, query)

    def test_a_scope_of_nobody_shows_nothing(self):
        with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": f"{HERE}.nobody"}):
            self.assertEqual(self.keys(), [])
        with (
            override_settings(PERFECTQUEUE={"ADMIN_SCOPE": f"{HERE}.text_of"}),
            self.assertRaisesMessage(ConfigError, "returned a text"),
        ):
            self.client.get(f"{APP}task/")

    def test_a_path_that_leads_nowhere_is_found_by_check(self):
        for path_ in (f"{HERE}.missing", f"{HERE}.OURS"):
            with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": path_}):
                found = [message.id for message in checks.run_checks()]
                self.assertIn("perfectqueue.E016", found)


class NoScopeTests(AdminTestCase):
    def test_without_the_setting_everybody_sees_everything(self):
        submit("k1", user="ann")
        self.assertEqual(self.keys(), ["k1"])
        self.assertEqual(Change.objects.count(), 0)
