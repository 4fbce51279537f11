"""A family of limits: each name that it covers is limited for itself."""

from unittest import mock

from django.db import connection
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_perfectqueue import store
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.fairness.limits import remove_limit, set_limit
from django_perfectqueue.inspection.why_waiting import why_waiting
from django_perfectqueue.models import Hold, Limit, Meter, Task
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.database.transaction import reading
from django_perfectqueue.store.lanes import apply
from django_perfectqueue.store.limits import meters
from django_perfectqueue.store.limits.meters import forget_limits

from ...factories import NOON, acquire, after, finish, keys, register, submit
from ...scale.case import refresh
from . import test_holds


class FamilyTests(TestCase):
    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")
        self.enterContext(test_holds.without_sweep())

    def edit(self, name="stripe:*", **terms):
        """Change a limit as a committed transaction does, or delete it."""
        with self.captureOnCommitCallbacks(execute=True):
            set_limit(name, **terms) if terms else remove_limit(name)

    def fill(self, names="abc", each=3, prefix="stripe:", **options):
        for number in range(each):
            for name in names:
                submit(f"{name}-{number}", limits=[f"{prefix}{name}"], **options)

    def test_each_name_has_a_meter_of_its_own(self):
        set_limit("stripe:*", max_running=2)
        self.fill("abc", each=3)
        submit("free", limits=["other"])
        taken = acquire(20)
        self.assertCountEqual(keys(taken), ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1", "free"])
        counted = Meter.objects.values_list("key", "running")
        self.assertCountEqual(counted, [(f"name:stripe:{name}", 2) for name in "abc"])
        self.assertEqual(acquire(20), [])
        finish(taken[0])
        self.assertEqual(keys(acquire(20)), ["a-2"])

    def test_a_row_of_its_own_goes_before_the_longest_family(self):
        set_limit("*", max_running=4)
        set_limit("stripe:*", max_running=2)
        set_limit("stripe:a", max_running=1)
        self.fill("ab", each=5)
        self.fill("c", each=5, prefix="mail:")
        taken = acquire(20)
        counts = [sum(key[0] == name for key in keys(taken)) for name in "abc"]
        self.assertEqual(counts, [1, 2, 4])

    def test_a_rate_is_that_of_each_name(self):
        set_limit("stripe:*", rate=2, period=60)
        self.fill("ab", each=4)
        counts = []
        for second in (0, 29, 30, 59, 60):
            taken = acquire(20, now=after(second))
            finish(*taken, now=after(second))
            counts.append(len(taken))
        self.assertEqual(counts, [4, 0, 2, 0, 2])

    def test_each_user_also_those_never_seen(self):
        set_limit("*", scope="user", max_running=1)
        for user in ("ann", "bob", ""):
            for number in range(2):
                submit(f"{user}-{number}", user=user)
        self.assertCountEqual(keys(acquire(10)), ["ann-0", "bob-0", "-0", "-1"])
        submit("carl-0", user="carl")
        submit("carl-1", user="carl")
        self.assertEqual(keys(acquire(10)), ["carl-0"])

    def test_queues_and_types(self):
        set_limit("mail-*", scope="queue", max_running=1)
        set_limit("pdf.*", scope="type", max_running=1)
        for number in range(2):
            submit(f"m-{number}", queue="mail-1", type="send")
            submit(f"n-{number}", queue="mail-2", type="send")
            submit(f"p-{number}", queue="other", type="pdf.draw")
        taken = acquire(10, queues=["mail-1", "mail-2", "other"])
        self.assertCountEqual(keys(taken), ["m-0", "n-0", "p-0"])

    def test_a_paused_family_of_queues_pauses_each_but_one_with_its_own_row(self):
        set_limit("mail-*", scope="queue", paused=True)
        set_limit("mail-2", scope="queue", max_running=5)
        submit("a", queue="mail-1")
        submit("b", queue="mail-2")
        self.assertEqual(keys(acquire(10, queues=["mail-1", "mail-2"])), ["b"])
        self.assertTrue(Queue("mail-1").is_paused())
        self.assertFalse(Queue("mail-2").is_paused())
        names = store.records.counts.names(using="default")
        self.assertEqual([names.is_paused(f"mail-{one}") for one in (1, 2)], [True, False])

    def test_a_change_reaches_all_that_it_holds_back(self):
        set_limit("stripe:*", max_running=1)
        self.fill("abc", each=4)
        self.assertEqual(len(acquire(20)), 3)
        self.assertEqual(acquire(20), [])
        self.edit(max_running=2)
        self.assertEqual(len(acquire(20)), 3)
        self.edit(max_running=1)
        self.assertEqual(acquire(20), [])
        with mock.patch.object(apply, "PART", 2):
            self.edit()
        self.assertEqual(len(acquire(20)), 6)

    def test_a_change_touches_no_name_beside_the_family(self):
        set_limit("stripe:*", max_running=0)
        set_limit("stripe", max_running=0)
        set_limit("stripf", max_running=0)
        for name in ("stripe:a", "stripe", "stripf", "stripe:"):
            submit(name, limits=[name])
        self.assertEqual(acquire(20), [])
        opened = Hold.objects.filter(opens_at__isnull=False)
        self.edit(max_running=1)
        self.assertCountEqual(
            opened.values_list("key", flat=True), ["name:stripe:a", "name:stripe:"]
        )

    def test_a_tighter_row_made_later_holds_for_what_waits_and_ends_with_it(self):
        set_limit("stripe:*", max_running=3)
        self.fill("ab", each=4)
        self.edit("stripe:a", max_running=1)
        self.assertEqual(len(acquire(20)), 4)
        self.edit("stripe:a")
        self.assertCountEqual(keys(acquire(20)), ["a-1", "a-2"])

    def test_one_made_later_holds_for_what_waits(self):
        self.fill("ab", each=3)
        self.edit(max_running=1)
        self.assertCountEqual(keys(acquire(10) + acquire(10)), ["a-0", "b-0"])

    def test_a_meter_goes_when_idle_and_comes_back(self):
        set_limit("stripe:*", max_running=1)
        self.fill("a", each=2)
        finish(*acquire(10))
        store.upkeep.forget_meters("", using="default")
        self.assertFalse(Meter.objects.exists())
        self.assertEqual(keys(acquire(10)), ["a-1"])
        self.assertEqual(Meter.objects.get().running, 1)

    def test_it_is_said_which_name_a_task_waits_for(self):
        set_limit("stripe:*", max_running=1)
        self.fill("a", each=2)
        register()
        acquire(10)
        reason = why_waiting(Task.objects.get(key="a-1"), using="default", now=NOON)
        self.assertEqual((reason.code.value, reason.name), ("limit_cap", "stripe:a"))
        self.assertEqual((reason.running, reason.most), (1, 1))

    def test_a_task_can_not_list_a_family(self):
        with self.assertRaisesMessage(InvalidTaskError, "not the family 'stripe:*' itself"):
            submit(limits=["stripe:*"])

    def test_where_there_are_very_many_limits_each_name_is_asked_for(self):
        set_limit("stripe:*", max_running=1)
        with mock.patch.object(meters, "MOST", 0):
            known = meters.known_limits({"name:stripe:a", "name:other"}, using="default")
        self.assertEqual(known, {"name:stripe:a"})

    def test_of_very_many_families_each_name_has_its_longest(self):
        for most, name in enumerate(("*", "s*", "stripe:*", "stripe:ab*", "mail:*", "t*")):
            set_limit(name, max_running=most)
        set_limit("stripe:own", max_running=9)
        set_limit("*", scope="user", max_running=7)
        for number in range(20):
            set_limit(f"other-{number:02}*", max_running=99)
        held = {
            "name:stripe:a": 2,
            "name:stripe:ab": 3,
            "name:stripe:abc": 3,
            "name:stripe:own": 9,
            "name:sms": 1,
            "name:mail:": 4,
            "name:else": 0,
            "user:t": 7,
        }
        for few in (1, 26, 27, 100):
            with mock.patch.object(meters, "FEW_FAMILIES", few), reading("default", now=NOON) as db:
                found = meters.allowances(db, {*held, "type:t"})
                self.assertEqual({key: one.max_running for key, one in found.items()}, held)

    def test_a_row_of_another_scope_with_the_same_name_is_none_of_a_key(self):
        set_limit("mail", scope="queue", max_running=1)
        set_limit("mail-*", scope="type", max_running=1)
        with reading("default", now=NOON) as db:
            wanted = {"name:mail", "queue:other", "type:mail", "name:mail-1"}
            self.assertEqual(meters.allowances(db, wanted), {})


class StatementTests(TransactionTestCase):
    """What needs no answer goes with the next statement where the driver takes several."""

    setUp = test_holds.CostTests.setUp
    sent = {"postgresql": (8, 5), "mysql": (9, 6), "sqlite": (24, 9)}

    def test_ten_names_that_are_new(self):
        set_limit("stripe:*", max_running=2)
        for number in range(21):
            submit(f"{number}", limits=[f"stripe:{number}"])
        acquire(1, now=None)
        with CaptureQueriesContext(connection) as taking:
            taken = acquire(10, now=None)
        with CaptureQueriesContext(connection) as finishing:
            finish(*taken, now=None)
        self.assertEqual(len(taken), 10)
        sent = len(taking), len(finishing)
        self.assertEqual(sent, self.sent[connection.vendor], taking.captured_queries)
        self.assertEqual(set(Meter.objects.values_list("running", flat=True)), {0, 1})


class ManyNamesTests(TestCase):
    """A user has tasks of more names than one acquire looks at."""

    def setUp(self):
        forget_limits("default")
        self.addCleanup(forget_limits, "default")

    def test_all_that_may_start_are_taken_those_that_wait_longest_first(self):
        set_limit("stripe:*", max_running=1)
        for number in range(100):
            submit(f"{number:03}", limits=[f"stripe:{number}"], now=after(number))
        late = after(200)
        self.assertEqual(keys(acquire(1, now=late)), ["000"])
        self.assertEqual(keys(acquire(20, now=late)), [f"{n:03}" for n in range(1, 21)])
        self.assertEqual(len(acquire(100, now=late)), 79)
        self.assertEqual(Meter.objects.count(), 100)

    def test_full_names_in_front_hold_up_no_other(self):
        set_limit("stripe:*", max_running=1)
        for each in "ab":
            for number in range(40):
                submit(f"{each}-{number}", limits=[f"stripe:{number}"], now=after(number))
        self.assertEqual(len(acquire(100, now=after(100))), 40)
        submit("free", limits=["stripe:free"], now=after(100))
        submit("other", user="bob", now=after(100))
        taken = acquire(1, now=after(101)) + acquire(1, now=after(101))
        self.assertCountEqual(keys(taken), ["free", "other"])

    def test_of_several_users(self):
        set_limit("stripe:*", max_running=1)
        for number in range(60):
            for user in ("ann", "bob", "carl"):
                submit(f"{user}-{number}", user=user, limits=[f"stripe:{user}-{number}"])
        taken = acquire(3)
        self.assertEqual(len(taken), 3)
        self.assertLessEqual(Meter.objects.count(), 3 * 8)
        while some := acquire(10):
            taken += some
        self.assertEqual(len({lease.key for lease in taken}), 180)


class CostTests(TransactionTestCase):
    """An acquire costs the same with few names of one family, and with many."""

    few, many = 10, 500

    setUp = test_holds.CostTests.setUp
    measured = test_holds.CostTests.measured
    assert_flat = test_holds.CostTests.assert_flat
    assert_taken = test_holds.CostTests.assert_taken
    user = ""

    def fill(self, names, most, limit):
        set_limit("tenant-*", max_running=most)
        Queue().submit_many(
            {
                "key": f"{number}",
                "type": "report",
                "user": self.user.format(number),
                "limits": [limit.format(number)],
            }
            for number in names
        )
        while store.schedules.fire_due_timers(using="default"):
            pass
        refresh()

    def test_of_one_user(self):
        self.assert_flat(lambda: self.assert_taken(1), most=2)

    def test_of_as_many_users(self):
        self.user = "user-{}"
        self.assert_flat(lambda: self.assert_taken(1), most=2)

    def test_beside_more_families_than_are_read(self):
        self.fill(range(self.few), 2, "tenant-{}")
        measured = []
        for names in (range(150), range(150, self.many)):
            Limit.objects.bulk_create(
                Limit(name=f"other-{number}-*", max_running=1) for number in names
            )
            refresh()
            measured.append(self.measured(lambda: self.assert_taken(1)))
        few, many = measured
        allowed = few.rows + test_holds.ODD * test_holds.UNIT[connection.vendor]
        self.assertLessEqual(many.rows, allowed, many.worst())
        self.assertEqual(len(many.readings), len(few.readings))

    def test_beside_those_that_were_done(self):
        self.fill(range(10_000, 10_000 + self.many), 2, "tenant-{}")
        while taken := acquire(100, now=None):
            finish(*taken, now=None)
        self.assert_flat(lambda: self.assert_taken(1), most=2)
