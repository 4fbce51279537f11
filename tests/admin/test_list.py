from datetime import timedelta
from unittest import mock

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_perfectqueue.admin.parts import base, filters
from django_perfectqueue.models import DeadLetter, Status, Task

from ..factories import acquire, failed, finish, running, submit, submit_many
from ..health.test_queues import now
from .staff import LIST, AdminTestCase, staff

HOUR = 3600
DEAD = "/admin/perfectqueue/deadletter/"


def narrowed_to_anna(_request):
    return ["anna"]


class CompletionTests(AdminTestCase):
    def known(self, name, start):
        return self.client.get(f"{LIST}known/", {"of": name, "q": start}).json()["known"]

    def test_users_types_and_tags_are_offered_by_their_beginning(self):
        for number in range(20):
            submit(user=f"user-{number:02}", type="report", tags=[f"t{number}"], now=None)
        submit(user="anna", type="mail.send", tags=["blue", "black"], now=None)
        submit(user="Anna", type="mail.fetch", tags=["blue"], now=None)
        self.assertEqual(self.known("user", "an"), ["anna"])
        self.assertEqual(self.known("type", "mail"), ["mail.fetch", "mail.send"])
        self.assertEqual(self.known("tag", "bl"), ["black", "blue"])
        self.assertEqual(len(self.known("user", "")), filters.KNOWN)
        for name in ("user", "type", "tag"):
            sent = self.statements(f"{LIST}known/", of=name, q="")
            self.assertLessEqual(len(sent), 3 + filters.KNOWN)

    def test_of_others_than_ones_own_nothing_is_offered(self):
        submit(user="anna", type="mail", tags=["blue"], now=None)
        submit(user="andrew", type="more", tags=["black"], now=None)
        where = f"{__name__}.narrowed_to_anna"
        with override_settings(PERFECTQUEUE={"ADMIN_SCOPE": where}):
            found = [self.known(name, "") for name in ("user", "type", "tag")]
        self.assertEqual(found, [["anna"], ["mail"], ["blue"]])
        self.client.force_login(staff("view_batch"))
        self.assertEqual(self.client.get(f"{LIST}known/", {"of": "user"}).status_code, 403)

    def test_of_nothing_else_is_known(self):
        self.assertEqual(self.client.get(f"{LIST}known/", {"of": "payload"}).status_code, 404)


class ListTests(AdminTestCase):
    def test_every_status_has_its_filter(self):
        running("running", now=None)
        failed("failed", now=None)
        _task, held = running("finished", now=None)
        finish(held, now=None)
        submit("waiting", now=None)
        submit("scheduled", run_at=HOUR, now=None)

        for status in Status:
            expected = [status.value] if Task.objects.filter(key=status.value).exists() else []
            with self.subTest(status.value):
                self.assertEqual(self.keys(status=status.value), expected)

    def test_an_unknown_status_is_no_server_error(self):
        self.assertRedirects(self.client.get(LIST, {"status": "asleep"}), f"{LIST}?e=1")

    def test_a_filter_that_is_refused_is_named(self):
        for name, value in (("since", "nonsense"), ("status", "asleep"), ("batch", "x")):
            with self.subTest(name):
                shown = self.client.get(LIST, {name: value}, follow=True)
                self.assertContains(shown, "one filter is refused")
                self.assertContains(shown, value)

    def test_queue_user_and_type_narrow_the_list(self):
        submit("a", queue="imports", user="ann", type="report.pdf")
        submit("b", queue="imports", user="bob", type="report.csv")
        submit("c", queue="exports", user="ann", type="mail")

        self.assertEqual(self.keys(queue="imports"), ["b", "a"])
        self.assertEqual(self.keys(user="ann"), ["c", "a"])
        self.assertEqual(self.keys(type="mail"), ["c"])
        self.assertEqual(self.keys(type="report.*"), ["b", "a"])
        self.assertEqual(self.keys(type="Report.*"), [])
        self.assertEqual(self.keys(user="ann", queue="imports"), ["a"])

    def test_a_nul_character_is_no_server_error(self):
        for name in ("queue", "user", "type", "q"):
            with self.subTest(name):
                self.assertLess(self.client.get(LIST, {name: "a\x00"}).status_code, 500)
        for name in ("status", "group", "queue"):
            with self.subTest(name, page="dead letters"):
                self.assertLess(self.client.get(DEAD, {name: "a\x00"}).status_code, 500)
        values = {"group": "a\x00", "status": "a\x00", "since": "\x00"}
        self.assertLess(self.client.get(f"{DEAD}bulk/", values).status_code, 500)

    def test_a_user_is_a_link_to_its_tasks(self):
        submit("a", user="ann & bob")

        self.assertContains(self.client.get(LIST), f'href="{LIST}?user=ann+%26+bob"')

    def test_columns_that_no_filter_offers_cannot_be_searched(self):
        """A URL could otherwise have any column scanned, and payloads guessed."""
        self.assertEqual(self.client.get(LIST, {"payload__contains": "x"}).status_code, 400)

    def test_no_url_has_it_sorted_otherwise(self):
        submit("a")
        submit("b")

        self.assertEqual(self.keys(o="2"), ["b", "a"])

    def test_what_is_stored_is_escaped(self):
        submit("<i>key</i>", user="<i>user</i>", type="<i>type</i>", queue="<i>queue</i>")

        self.assertNotContains(self.client.get(LIST), "<i>")

    def test_payloads_are_not_fetched(self):
        submit("a", data={"secret": "x"})

        for statement in self.statements(LIST):
            self.assertNotIn(f"{connection.ops.quote_name('data')}", statement)

    def test_staff_without_permission_sees_nothing(self):
        self.client.force_login(staff())

        self.assertEqual(self.client.get(LIST).status_code, 403)

    def test_nothing_can_be_added_edited_or_deleted(self):
        submit("a")
        task = Task.objects.get()

        for page in ("add/", f"{task.pk}/delete/"):
            self.assertEqual(self.client.get(LIST + page).status_code, 403)
        self.assertNotContains(self.client.get(LIST), "delete_selected")

    @override_settings(LANGUAGE_CODE="de")
    def test_it_speaks_german(self):
        submit("a")

        self.assertContains(self.client.get(LIST), "wartend")

    @override_settings(PERFECTQUEUE={"DATABASE": "jobs"})
    def test_tasks_are_read_from_their_own_database(self):
        from django.contrib import admin

        for model in ("task", "deadletter", "fairshare"):
            [door] = [
                door
                for each, door in admin.site._registry.items()
                if each._meta.label_lower == f"perfectqueue.{model}"
            ]
            self.assertEqual(door.get_queryset(None).db, "jobs")


class SearchTests(AdminTestCase):
    def test_a_key_is_found_by_its_beginning_in_every_queue(self):
        submit("upload-1")
        submit("upload-2", queue="other")
        submit("Upload-3")
        submit("download-4")

        self.assertEqual(self.keys(q="upload-"), ["upload-2", "upload-1"])
        self.assertEqual(self.keys(q="upload-1"), ["upload-1"])
        self.assertEqual(self.keys(q="upload-", queue="other"), ["upload-2"])
        self.assertEqual(self.keys(q="oad"), [])

    def test_the_queue_is_reported_where_there_are_several(self):
        submit("a", queue="only-one")
        self.assertNotContains(self.client.get(LIST), 'class="field-of_queue"')
        submit("b", queue="other")
        self.assertContains(self.client.get(LIST), 'class="field-of_queue"')

    def test_wildcards_mean_themselves(self):
        submit("a%b")
        submit("axb")

        self.assertEqual(self.keys(q="a%"), ["a%b"])

    def test_it_reads_the_index_and_no_more(self):
        submit_many(30)
        submit("upload-1")

        for statement in self.statements(LIST, q="upload-"):
            self.assertNotIn("LIKE", statement)


class BoundTests(AdminTestCase):
    """A list costs the same however many tasks are stored."""

    def test_no_page_counts_a_whole_table(self):
        submit_many(3)
        failed("failed")

        for page in ("task", "deadletter", "fairshare"):
            for statement in self.statements(f"/admin/perfectqueue/{page}/", status="failed"):
                if statement.startswith("SELECT COUNT(") and "perfectqueue_" in statement:
                    self.assertIn("LIMIT", statement)

    def test_no_page_asks_for_distinct_values(self):
        submit_many(3)

        for page in ("task", "deadletter"):
            for statement in self.statements(f"/admin/perfectqueue/{page}/"):
                if "'paused'" not in statement:  # MariaDB's loose scan of the queues' names
                    self.assertNotIn("DISTINCT", statement)

    @mock.patch.object(base, "COUNTED", 3)
    def test_a_long_list_says_that_it_is_not_counted_to_its_end(self):
        submit_many(5)

        response = self.client.get(LIST)
        self.assertEqual(response.context["cl"].result_count, 3)
        self.assertContains(response, "Only the first 10,000 are counted")

    @mock.patch.object(filters, "REACH", 3)
    def test_what_no_index_finds_is_looked_for_among_the_newest(self):
        submit("old", type="rare")
        submit_many(3)
        submit("new", type="rare")

        self.assertEqual(self.keys(type="rare"), ["new"])
        self.assertEqual(self.keys(type="rare", reach="all"), ["new", "old"])
        self.assertContains(self.client.get(LIST, {"type": "rare"}), "All (may be slow)")

    @mock.patch.object(filters, "REACH", 3)
    def test_what_has_yet_to_end_is_found_behind_the_newest(self):
        submit("ended", queue="nightly").cancel_request()
        submit("old", queue="nightly")
        for number in range(4):
            submit(f"new-{number}").cancel_request()

        self.assertEqual(self.keys(queue="nightly"), ["old"])
        self.assertEqual(self.keys(queue="nightly", status="cancelled", reach="all"), ["ended"])
        nothing = self.client.get(LIST, {"queue": "other"})
        self.assertContains(nothing, "0 of the newest 100,000")

    @mock.patch.object(filters, "REACH", 3)
    def test_a_users_newest_are_its_own(self):
        submit("old", user="ann", type="rare")
        submit_many(5, user="bob")
        submit("new", user="ann", type="rare")

        self.assertEqual(self.keys(user="ann", type="rare"), ["new", "old"])

    @mock.patch.object(filters, "REACH", 3)
    def test_what_has_yet_to_end_is_found_behind_all_that_has_ended(self):
        submit("old", run_at=HOUR, now=None)
        submit_many(5, now=None)
        finish(*acquire(5, now=None), now=None)
        self.assertEqual(self.keys(status="scheduled"), ["old"])

        for number in range(4):
            submit(f"new-{number}", run_at=HOUR, now=None)
        newest = ["new-3", "new-2", "new-1"]
        self.assertEqual(self.keys(status="scheduled"), newest)
        self.assertEqual(self.keys(status="scheduled", reach="all"), [*newest, "new-0", "old"])

    @mock.patch.object(filters, "REACH", 3)
    def test_what_runs_is_found_behind_any_backlog(self):
        running("oldest", now=None)
        submit_many(5, now=None)

        self.assertEqual(self.keys(status="running"), ["oldest"])


class PlanTests(TransactionTestCase):
    """It takes fresh statistics, which MariaDB commits, to see what a database would do."""

    def setUp(self):
        self.client.force_login(User.objects.create_superuser("boss"))

    def test_lists_are_read_through_indexes(self):
        for _ in range(3):
            failed()
        submit_many(300)
        with connection.cursor() as cursor:
            for table in ("task", "ticket", "deadletter"):
                name = connection.ops.quote_name(f"perfectqueue_{table}")
                verb = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
                cursor.execute(f"{verb} {name}")

        for query in ({}, {"user": "ann"}, {"status": "failed"}, {"q": "many"}):
            with self.subTest(query):
                for plan in self.plans(**query):
                    self.assertNotRegex(plan, FULL_SCAN[connection.vendor])

    def plans(self, **query):
        with CaptureQueriesContext(connection) as captured:
            self.client.get(LIST, query)
        statements = [each["sql"] for each in captured if "perfectqueue_task" in each["sql"]]
        self.assertTrue(statements)
        explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
        with transaction.atomic(), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off")  # so few rows need no index
            for statement in statements:
                cursor.execute(f"{explain} {statement}")
                yield "\n".join(str(row) for row in cursor.fetchall())


FULL_SCAN = {
    "sqlite": r"SCAN perfectqueue_task(?! USING)(?!')",
    "postgresql": r"Seq Scan on perfectqueue_task",
    "mysql": r"'perfectqueue_task', 'ALL'",
}


class CountTests(AdminTestCase):
    def test_a_count_that_goes_no_further_says_so(self):
        submit_many(4)
        with mock.patch.object(base, "COUNTED", 3):
            page = self.client.get(LIST)
        self.assertRegex(page.content.decode(), r"3\+\s+Tasks")
        self.assertNotContains(page, "Show all")
        self.assertRegex(self.client.get(LIST).content.decode(), r"4\s+Tasks")

    def test_how_far_back_was_looked_is_reported(self):
        submit("k1")
        reported = "1 of the newest 100,000"
        self.assertContains(self.client.get(LIST, {"type": "report"}), reported)
        self.assertNotContains(self.client.get(LIST, {"type": "report", "reach": "all"}), reported)
        self.assertNotContains(self.client.get(LIST), reported)

    def test_a_list_from_which_nothing_is_chosen_has_a_plain_title(self):
        for page, title in (
            ("worker", "Workers"),
            ("deadletter", "Failed tasks"),
        ):
            response = self.client.get(f"/admin/perfectqueue/{page}/")
            self.assertEqual(response.context["title"], title)


class TimeTests(AdminTestCase):
    def test_what_has_not_ended_is_found_by_when_it_was_submitted(self):
        submit("old", now=now() - timedelta(minutes=50))
        submit("new", now=now() - timedelta(minutes=10))

        self.assertEqual(self.keys(since="15m"), ["new"])
        self.assertEqual(self.keys(since="1h"), ["new", "old"])
        self.assertEqual(self.keys(since="1h", until="30m"), ["old"])
        self.assertContains(self.client.get(LIST), "?since=15m")

    def test_what_has_ended_is_found_by_when_it_ended(self):
        failed("failed")
        for model in (Task, DeadLetter):
            model._base_manager.update(ended_at=now() - timedelta(minutes=30))

        for times, found in (
            ({"since": "15m"}, []),
            ({"since": "1h"}, ["failed"]),
            ({"since": "1h", "until": "15m"}, ["failed"]),
            ({"until": "45m"}, []),
        ):
            with self.subTest(times):
                self.assertEqual(self.keys(**times), found)
                response = self.client.get(DEAD, times)
                keys = [row.task.key for row in response.context["cl"].result_list]
                self.assertEqual(keys, found)

    def test_a_group_is_counted_with_all_other_filters(self):
        failed("a", user="ann", type="mail"), failed("b", user="ben")
        for query, count in (
            ({}, "boom (2)"),
            ({"user": "ann"}, "boom (1)"),
            ({"type": "mail"}, "boom (1)"),
            ({"queue": "default", "group": "boom"}, "boom (2)"),
            ({"until": "1h"}, None),
            ({"queue": "other", "group": "boom"}, None),
        ):
            with self.subTest(query):
                page = self.client.get(DEAD, query)
                if count:
                    self.assertContains(page, count)
                else:
                    self.assertNotContains(page, "boom (")
                    self.assertEqual(page.context["cl"].result_count, 0)

    def test_a_time_that_is_none_is_no_server_error(self):
        for value in ("soon", "2026-13-01", "1h/", "999999999999d", "\x00", "0001-01-01T00:00"):
            with self.subTest(value):
                self.assertLess(self.client.get(LIST, {"since": value}).status_code, 400)

    def test_times_that_no_zone_can_show_are_the_first_and_the_last(self):
        submit("a", now=None)

        self.assertEqual(self.keys(since="0001-01-01T00:00+14:00"), ["a"])
        self.assertEqual(self.keys(since="9999-12-31T23:59-14:00"), [])

    def test_times_say_how_long_ago_they_are(self):
        submit("old", now=now() - timedelta(minutes=50, seconds=20))

        self.assertRegex(self.client.get(LIST).content.decode(), r">50m\d+s ago</time>")
