import errno
import os
import socket
import stat
import threading
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TransactionTestCase, override_settings

from django_perfectqueue import store
from django_perfectqueue.exceptions import AlreadyExistsError
from django_perfectqueue.models import FairShare
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.notify import datagrams, postgres
from django_perfectqueue.store.notify import ring as sending
from django_perfectqueue.store.notify.messages import AT_REST, Notification, parsed

from ...factories import acquire, failed, running, settle, submit
from ...waiting import wait_until

SEND_IF_AWAKE = "django_perfectqueue.store.notify.postgres.send_if_awake"
MESSAGE_OF = "django_perfectqueue.store.tasks.submit.message_of"


class UndoneError(Exception):
    pass


class RingCase(TransactionTestCase):
    def setUp(self):
        self.rung = []
        for way in (postgres, datagrams):
            patch = mock.patch.object(way, "send", self.send)
            patch.start()
            self.addCleanup(patch.stop)
        # What the statements send by themselves is heard in EarTests.
        for name, nothing in ((SEND_IF_AWAKE, False), (MESSAGE_OF, "")):
            patch = mock.patch(name, return_value=nothing)
            patch.start()
            self.addCleanup(patch.stop)

    def send(self, message, connection):
        self.rung += parsed([message])

    def queues(self):
        return [one.queue for one in self.rung if one.holder is None]

    def calls(self):
        return [one.holder for one in self.rung if one.holder is not None]


class RingTests(RingCase):
    def test_a_submit_rings_when_it_has_committed_and_not_before(self):
        with transaction.atomic():
            submit(queue="mail")
            self.assertEqual(self.rung, [])
        self.assertEqual(self.rung, [Notification("mail")])

    def test_a_submit_that_is_rolled_back_does_not_ring(self):
        with self.assertRaises(UndoneError), transaction.atomic():
            submit()
            raise UndoneError
        self.assertEqual(self.rung, [])

    def test_a_transaction_rings_once_for_each_queue(self):
        with transaction.atomic():
            for _time in range(3):
                submit(queue="a")
                submit(queue="b")
                Queue("b").submit_many({"key": f"{_time}-{n}", "type": "report"} for n in range(3))
        self.assertEqual(sorted(self.queues()), ["a", "b"])

    def test_every_transaction_rings(self):
        for _time in range(2):
            with transaction.atomic():
                submit()
        self.assertEqual(self.queues(), ["default", "default"])

    def test_a_ring_is_not_lost_with_a_savepoint_that_another_submit_outlives(self):
        """
        A callback registered in a savepoint goes with it; so it can't stand for what comes later.
        """
        with transaction.atomic():
            with self.assertRaises(UndoneError), transaction.atomic():
                submit()
                raise UndoneError
            submit()
        self.assertEqual(self.queues(), ["default"])

    def test_a_savepoint_that_is_undone_takes_no_ring_from_what_was_before(self):
        with transaction.atomic():
            submit()
            with self.assertRaises(UndoneError), transaction.atomic():
                submit()
                raise UndoneError
        self.assertEqual(self.queues(), ["default"])

    def test_a_ring_inside_a_savepoint_that_stays_is_heard(self):
        with transaction.atomic():
            with transaction.atomic():
                submit()
            submit()
        self.assertEqual(set(self.queues()), {"default"})

    def test_a_key_that_is_taken_does_not_ring(self):
        submit("k0")
        self.rung.clear()
        with self.assertRaises(AlreadyExistsError):
            submit("k0")
        submit("k0", on_conflict="ignore")
        with self.assertRaises(AlreadyExistsError):
            Queue().submit_many([{"key": "k0", "type": "report"}])
        self.assertEqual(self.rung, [])
        submit("k0", on_conflict="replace")
        self.assertEqual(self.queues(), ["default"])

    def test_what_is_due_soon_rings_with_its_delay_and_what_is_due_later_does_not(self):
        """
        A worker that looks only every so often must know when the next task is due.
        """
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 10.0 / AT_REST}):
            submit(run_at=60.0)
            self.assertEqual(self.rung, [])
            submit(run_at=5.0)
            Queue().submit_many({"key": str(n), "type": "report", "run_at": n} for n in (9.0, 7.0))
        self.assertEqual(self.queues(), ["default", "default"])
        for ring, due in zip(self.rung, (5.0, 7.0), strict=True):
            self.assertAlmostEqual(ring.delay, due, delta=1.0)

    def test_the_soonest_of_a_transaction_is_what_it_rings_for(self):
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 10.0}), transaction.atomic():
            submit(run_at=5.0)
            submit()
            submit(run_at=7.0)
        self.assertEqual(self.rung, [Notification("default")])

    def test_without_the_bell_nothing_rings(self):
        with override_settings(PERFECTQUEUE={"NOTIFY": False}):
            submit()
            task, _held = running()
            task.cancel_request()
        self.assertEqual(self.rung, [])

    def test_who_holds_what_is_to_stop_or_has_ended_is_called_once_that_is_committed(self):
        holders = [41, 41, 42]
        for number, holder in enumerate(holders):
            submit(f"k{number}")
            acquire(holder=holder)
        waits = submit("waits")
        with transaction.atomic():
            for number in range(2):
                Queue()[f"k{number}"].cancel_request()
            waits.cancel_request()
            self.assertEqual(self.calls(), [])
        # Each of them is steered in a transaction of its own.
        self.assertEqual(self.calls(), [41, 41])
        Queue()["k2"].force_finish()
        self.assertEqual(self.calls(), [41, 41, 42])

    def test_trouble_with_the_bell_is_no_trouble_for_the_submit(self):
        broken = mock.Mock(side_effect=OSError("no socket"))
        with (
            mock.patch.object(postgres, "send", broken),
            mock.patch.object(datagrams, "send", broken),
            self.assertLogs("django_perfectqueue.notify", "DEBUG"),
        ):
            task = submit("k0")
        self.assertTrue(task.exists())


class BackAgainTests(RingCase):
    """What else may run at once."""

    def test_a_release_rings(self):
        _task, lease = running()
        self.rung.clear()
        store.settle([lease], store.Ending.release(60.0), using="default")
        self.assertEqual(self.rung, [])
        _task, lease = running()
        self.rung.clear()
        store.settle([lease], store.Ending.release(), using="default")
        self.assertEqual(self.queues(), ["default"])

    def test_a_retry_rings(self):
        _task, lease = running()
        self.rung.clear()
        settle(
            lease, store.Ending.retry(wait=0.0, why=store.Failure()), seconds=0.0, using="default"
        )
        self.assertEqual(self.queues(), ["default"])

    def test_a_retry_rings_with_its_wait(self):
        """Else a worker looks in vain, and then only at its next poll."""
        _task, lease = running()
        self.rung.clear()
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 60.0}):
            settle(
                lease,
                store.Ending.retry(wait=5.0, why=store.Failure()),
                seconds=0.0,
                using="default",
            )
        [ring] = self.rung
        self.assertAlmostEqual(ring.delay, 5.0, delta=1.0)

    def test_what_a_dead_processor_held_rings(self):
        holder = store.new_holder()
        submit(now=None)
        acquire(holder=holder, now=None)
        self.rung.clear()
        terms = {"using": "default", "alive_time": 60.0, "loss": store.Loss()}
        store.give_back(holder, **terms)
        self.assertEqual(self.queues(), [""])
        store.give_back(holder, **terms)
        self.assertEqual(self.queues(), [""])

    def test_a_task_that_is_put_back_rings(self):
        task = failed("k0")
        self.rung.clear()
        store.steer(store.retry, task.id, using="default")
        self.assertEqual(self.queues(), ["default"])

    def test_a_cap_that_is_raised_rings(self):
        share = FairShare.objects.create(user="ann", paused=True)
        submit(user="ann", now=None)
        acquire(now=None)
        self.rung.clear()
        share.paused = False
        share.save()
        self.assertEqual(self.queues(), ["default"])


def heard_by(ear, *, within=10.0):
    """Return the first rings that it hears."""
    rings = []

    def heard():
        rings.extend(ear.read())
        return rings

    wait_until(heard, within=within)
    return rings


class EarTests(TransactionTestCase):
    """However this database notifies, from end to end."""

    def test_a_submit_is_heard(self):
        self.assertEqual(self.heard_after(lambda: submit(queue="仕事 1")), [Notification("仕事 1")])

    def test_leases_that_lapse_are_heard(self):
        submit()
        acquire(now=None, holder=7)

        def lapse():
            self.assertEqual(store.lapse([7], using="default", alive_time=60.0), 1)

        self.assertEqual(self.heard_after(lapse), [Notification("")])

    def heard_after(self, act):
        """Return what another thread hears of it first."""
        opened, done, rings = threading.Event(), threading.Event(), []

        def listen():
            with closing(store.listener_of("default")) as ear:
                ear.open()
                opened.set()
                rings.extend(heard_by(ear))
            connections.close_all()
            done.set()

        threading.Thread(target=listen).start()
        opened.wait(10)
        act()
        done.wait(10)
        return rings


class NoticesTests(TransactionTestCase):
    def setUp(self):
        if connection.vendor != "postgresql":
            self.skipTest("Only PostgreSQL has LISTEN.")

    def in_thread(self, act):
        """Run it with connections of its own."""
        failed = []

        def run():
            try:
                with closing(store.listener_of("default")) as ear:
                    ear.open()
                    act(ear)
            except BaseException as error:
                failed.append(error)
            connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        if failed:
            raise failed[0]

    def test_what_comes_with_the_answer_to_another_statement_is_heard(self):
        def act(ear):
            postgres.send("0 k", connection)
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")
            self.assertEqual(list(ear.read()), [Notification("k")])

        self.in_thread(act)

    def test_a_proof_arrives(self):
        def act(ear):
            ear.prove()

            def proven():
                self.assertEqual(list(ear.read()), [])
                return ear.proven

            wait_until(proven)

        self.in_thread(act)

    def test_a_connection_that_was_closed_is_not_listening(self):
        def act(ear):
            self.assertTrue(ear.is_open)
            connections["default"].close()
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")
            self.assertFalse(ear.is_open)
            ear.open()
            self.assertTrue(ear.is_open)

        self.in_thread(act)

    def test_its_connection_is_of_no_pool(self):
        """
        A pool would take the connection back, and give another one that does not listen.
        """
        given = connection.settings_dict["OPTIONS"]
        with mock.patch.dict(given, {"pool": True}):
            self.assertNotIn("pool", postgres.apart("default").settings_dict["OPTIONS"])
            self.assertIn("pool", given)


class DatagramTests(SimpleTestCase):
    databases = {"default"}

    def setUp(self):
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.parent = Path(folder.name)
        settings = override_settings(PERFECTQUEUE={"NOTIFY": self.parent})
        settings.enable()
        self.addCleanup(settings.disable)
        self.folder = Path(datagrams.folder_of("default"))

    def ear(self):
        ear = store.SocketListener("default")
        self.addCleanup(ear.close)
        ear.open()
        return ear

    def ring(self, message="0 default"):
        datagrams.send(message, connection)

    def test_all_who_listen_hear_it(self):
        ears = [self.ear(), self.ear()]
        self.ring()
        self.assertEqual([list(ear.read()) for ear in ears], [[Notification("default")]] * 2)

    def test_ringing_where_no_one_listens_is_nothing(self):
        self.ring()
        self.assertFalse(self.folder.exists())

    def test_who_leaves_takes_everything_away(self):
        first, second = self.ear(), self.ear()
        first.close()
        self.ring()
        self.assertEqual(list(second.read()), [Notification("default")])
        second.close()
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_one_who_leaves_meanwhile_keeps_no_one_from_hearing_it(self):
        ears = [self.ear(), self.ear()]

        def found(entries, most):
            first, *rest = entries
            ears.pop(first.path == ears[1].path).close()
            return first, *rest

        with mock.patch.object(datagrams, "islice", found):
            self.ring()
        [left] = ears
        self.assertEqual(list(left.read()), [Notification("default")])

    def test_the_socket_of_one_who_died_is_removed(self):
        ear = self.ear()
        ear.socket.close()
        self.assertTrue(Path(ear.path).exists())
        self.ring()
        self.assertFalse(Path(ear.path).exists())

    def test_a_listener_that_does_not_listen_holds_no_one_up(self):
        ear = self.ear()
        began = time.monotonic()
        for _time in range(2000):
            self.ring()
        self.assertLess(time.monotonic() - began, 5.0)
        self.assertTrue(list(ear.read()))

    def test_other_users_of_the_host_may_ring_but_not_remove(self):
        ear = self.ear()
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o755)
        self.assertEqual(stat.S_IMODE(os.stat(ear.path).st_mode), 0o666)

    def test_a_folder_that_others_may_write_to_is_not_used(self):
        """They could take the socket away, or lay 64 others before it."""
        self.folder.mkdir()
        for mode in (0o1777, 0o775):
            self.folder.chmod(mode)
            refused = self.assertRaisesMessage(PermissionError, "set NOTIFY")
            with self.subTest(oct(mode)), refused:
                self.ear()
        self.folder.chmod(0o755)
        self.ear()

    def test_a_folder_that_another_user_has_made_first_is_not_used(self):
        self.folder.mkdir(mode=0o755)
        other = self.folder.stat().st_uid + 1
        with (
            mock.patch("os.geteuid", return_value=other),
            mock.patch.object(datagrams, "ROOT", -1),
            self.assertRaisesMessage(PermissionError, "set NOTIFY"),
        ):
            self.ear()

    def test_a_link_in_the_place_of_the_folder_is_not_followed(self):
        elsewhere = self.parent / "elsewhere"
        elsewhere.mkdir()
        self.folder.symlink_to(elsewhere)
        with self.assertRaises(NotADirectoryError):
            self.ear()
        self.assertEqual(self.received(elsewhere / "socket"), b"")

    def test_a_link_to_a_socket_is_not_followed(self):
        """
        Someone could lay a link to a socket of the system's there.
        """
        self.ear()
        (self.folder / "link").symlink_to(self.parent / "socket")
        self.assertEqual(self.received(self.parent / "socket"), b"")

    def received(self, path):
        """Ring, and return what comes to a socket of ours."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(str(path))
            receiver.setblocking(False)
            self.ring()
            try:
                return receiver.recv(100)
            except BlockingIOError:
                return b""

    def test_a_path_that_is_too_long_for_a_socket_is_reported(self):
        long = self.parent / ("x" * 100)
        with override_settings(PERFECTQUEUE={"NOTIFY": long}):
            self.assertFalse(datagrams.fits(datagrams.folder_of("default")))
            with self.assertRaises(OSError) as caught:
                self.ear()
        self.assertEqual(caught.exception.errno, errno.ENAMETOOLONG)

    def test_no_name_is_longer_than_is_reckoned_with(self):
        name = Path(self.ear().path).name
        longest = len(name) - len(str(os.getpid())) + len(str(2**22))
        self.assertLessEqual(longest, datagrams.LONGEST_NAME)

    def test_a_socket_that_was_swept_away_is_not_open(self):
        """
        Temporary folders are tidied by others.
        """
        ear = self.ear()
        self.assertTrue(ear.is_open)
        os.unlink(ear.path)
        self.assertFalse(ear.is_open)
        ear.open()
        self.ring()
        self.assertEqual(list(ear.read()), [Notification("default")])

    def test_rubbish_is_no_ring(self):
        ear = self.ear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for message in (b"", b"\xff\xfe", b"soon default", b"x" * 5000):
                sender.sendto(message, ear.path)
        self.ring("nan default")
        self.assertEqual(list(ear.read()), [Notification("default", 0.0)])

    def test_each_database_has_a_folder_of_its_own(self):
        with mock.patch.dict(connection.settings_dict, {"NAME": "/nowhere/else"}):
            self.assertNotEqual(datagrams.folder_of("default"), str(self.folder))

    def test_a_database_in_memory_has_none(self):
        if connection.vendor != "sqlite":
            self.skipTest("Only SQLite can be in memory.")
        with mock.patch.dict(connection.settings_dict, {"NAME": ":memory:"}):
            self.assertIsNone(datagrams.folder_of("default"))
            self.ring()


class AskedTests(TransactionTestCase):
    def test_a_thousand_submits_in_one_transaction_ask_once(self):
        """
        Looking through all callbacks for each submit would take their number squared.
        """
        with transaction.atomic():
            for _time in range(1000):
                sending.ring("default", using="default")
            self.assertEqual(len(connection.run_on_commit), 1)
