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
from django_perfectqueue.store.notify.datagrams import AT_REST, Notification, parsed
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.values import new_holder

from ...factories import acquire, failed, running, settle, submit
from ...waiting import LONG, wait_until

SEND_IF_AWAKE = "django_perfectqueue.store.notify.postgres.send_if_awake"
MESSAGE_OF = "django_perfectqueue.store.tasks.submit.message_of"


class UndoneError(Exception):
    pass


class NotifyCase(TransactionTestCase):
    def setUp(self):
        self.sent = []
        for way in (postgres, datagrams):
            patch = mock.patch.object(way, "send", self.send)
            patch.start()
            self.addCleanup(patch.stop)
        # What the statements send by themselves is heard in ListenerTests.
        for name, nothing in ((SEND_IF_AWAKE, False), (MESSAGE_OF, "")):
            patch = mock.patch(name, return_value=nothing)
            patch.start()
            self.addCleanup(patch.stop)

    def send(self, message, connection):
        self.sent += parsed([message])

    def queues(self):
        return [one.queue for one in self.sent if one.holder is None]

    def calls(self):
        return [one.holder for one in self.sent if one.holder is not None]


class NotifyTests(NotifyCase):
    def test_a_submit_notifies_when_it_has_committed_and_not_before(self):
        with transaction.atomic():
            submit(queue="mail")
            self.assertEqual(self.sent, [])
        self.assertEqual(self.sent, [Notification("mail")])

    def test_a_submit_that_is_rolled_back_does_not_notify(self):
        with self.assertRaises(UndoneError), transaction.atomic():
            submit()
            raise UndoneError
        self.assertEqual(self.sent, [])

    def test_a_transaction_notifies_once_for_each_queue(self):
        with transaction.atomic():
            for _time in range(3):
                submit(queue="a")
                submit(queue="b")
                Queue("b").submit_many({"key": f"{_time}-{n}", "type": "report"} for n in range(3))
        self.assertEqual(sorted(self.queues()), ["a", "b"])

    def test_every_transaction_notifies(self):
        for _time in range(2):
            with transaction.atomic():
                submit()
        self.assertEqual(self.queues(), ["default", "default"])

    def test_a_notification_is_not_lost_with_a_savepoint_that_another_submit_outlives(self):
        """
        A callback registered in a savepoint goes with it; so it can't stand for what comes later.
        """
        with transaction.atomic():
            with self.assertRaises(UndoneError), transaction.atomic():
                submit()
                raise UndoneError
            submit()
        self.assertEqual(self.queues(), ["default"])

    def test_a_savepoint_that_is_undone_takes_no_notification_from_what_was_before(self):
        with transaction.atomic():
            submit()
            with self.assertRaises(UndoneError), transaction.atomic():
                submit()
                raise UndoneError
        self.assertEqual(self.queues(), ["default"])

    def test_a_notification_inside_a_savepoint_that_stays_is_heard(self):
        with transaction.atomic():
            with transaction.atomic():
                submit()
            submit()
        self.assertEqual(set(self.queues()), {"default"})

    def test_a_key_that_is_taken_does_not_notify(self):
        submit("k0")
        self.sent.clear()
        with self.assertRaises(AlreadyExistsError):
            submit("k0")
        submit("k0", on_conflict="ignore")
        with self.assertRaises(AlreadyExistsError):
            Queue().submit_many([{"key": "k0", "type": "report"}])
        self.assertEqual(self.sent, [])
        submit("k0", on_conflict="replace")
        self.assertEqual(self.queues(), ["default"])

    def test_what_is_due_soon_notifies_with_its_delay_and_what_is_due_later_does_not(self):
        """
        A worker that looks only every so often must know when the next task is due.
        """
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 10.0 / AT_REST}):
            submit(run_at=60.0)
            self.assertEqual(self.sent, [])
            submit(run_at=5.0)
            Queue().submit_many({"key": str(n), "type": "report", "run_at": n} for n in (9.0, 7.0))
        self.assertEqual(self.queues(), ["default", "default"])
        for one, due in zip(self.sent, (5.0, 7.0), strict=True):
            self.assertAlmostEqual(one.delay, due, delta=1.0)

    def test_the_soonest_of_a_transaction_is_what_it_notifies_for(self):
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 10.0}), transaction.atomic():
            submit(run_at=5.0)
            submit()
            submit(run_at=7.0)
        self.assertEqual(self.sent, [Notification("default")])

    def test_without_the_setting_nothing_is_sent(self):
        with override_settings(PERFECTQUEUE={"NOTIFY": False}):
            submit()
            task, _held = running()
            task.cancel_request()
        self.assertEqual(self.sent, [])

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

    def test_trouble_with_sending_is_no_trouble_for_the_submit(self):
        broken = mock.Mock(side_effect=OSError("no socket"))
        with (
            mock.patch.object(postgres, "send", broken),
            mock.patch.object(datagrams, "send", broken),
            self.assertLogs("django_perfectqueue.notify", "DEBUG"),
        ):
            task = submit("k0")
        self.assertTrue(task.exists())


class BackAgainTests(NotifyCase):
    """What else may run at once."""

    def test_a_release_notifies(self):
        _task, lease = running()
        self.sent.clear()
        store.settle([lease], store.Ending.release(60.0), using="default")
        self.assertEqual(self.sent, [])
        _task, lease = running()
        self.sent.clear()
        store.settle([lease], store.Ending.release(), using="default")
        self.assertEqual(self.queues(), ["default"])

    def test_a_retry_notifies(self):
        _task, lease = running()
        self.sent.clear()
        settle(
            lease, store.Ending.retry(wait=0.0, why=store.Failure()), seconds=0.0, using="default"
        )
        self.assertEqual(self.queues(), ["default"])

    def test_a_retry_notifies_with_its_wait(self):
        """Else a worker looks in vain, and then only at its next poll."""
        _task, lease = running()
        self.sent.clear()
        with override_settings(PERFECTQUEUE={"POLL_INTERVAL": 60.0}):
            settle(
                lease,
                store.Ending.retry(wait=5.0, why=store.Failure()),
                seconds=0.0,
                using="default",
            )
        [one] = self.sent
        self.assertAlmostEqual(one.delay, 5.0, delta=1.0)

    def test_what_a_dead_processor_held_notifies(self):
        holder = new_holder()
        submit(now=None)
        acquire(holder=holder, now=None)
        self.sent.clear()
        terms = {"using": "default", "alive_time": 60.0, "loss": Loss()}
        store.upkeep.give_back(holder, **terms)
        self.assertEqual(self.queues(), [""])
        store.upkeep.give_back(holder, **terms)
        self.assertEqual(self.queues(), [""])

    def test_a_task_that_is_put_back_notifies(self):
        task = failed("k0")
        self.sent.clear()
        store.steer(store.retry, task.id, using="default")
        self.assertEqual(self.queues(), ["default"])

    def test_a_cap_that_is_raised_notifies(self):
        share = FairShare.objects.create(user="ann", paused=True)
        submit(user="ann", now=None)
        acquire(now=None)
        self.sent.clear()
        share.paused = False
        share.save()
        self.assertEqual(self.queues(), ["default"])


def first_read(listener, *, within=10.0):
    """Return the first found that it hears."""
    found = []

    def heard():
        found.extend(listener.read())
        return found

    wait_until(heard, within=within)
    return found


class ListenerTests(TransactionTestCase):
    """However this database notifies, from end to end."""

    def test_a_submit_is_heard(self):
        self.assertEqual(self.read_after(lambda: submit(queue="仕事 1")), [Notification("仕事 1")])

    def test_leases_that_lapse_are_heard(self):
        submit()
        acquire(now=None, holder=7)

        def lapse():
            self.assertEqual(store.leases.lapse([7], using="default", alive_time=60.0), 1)

        self.assertEqual(self.read_after(lapse), [Notification("")])

    def read_after(self, act):
        """Return what another thread hears of it first."""
        opened, done, found = threading.Event(), threading.Event(), []

        def listen():
            with closing(store.notify.listener_of("default")) as listener:
                listener.open()
                opened.set()
                found.extend(first_read(listener))
            connections.close_all()
            done.set()

        threading.Thread(target=listen).start()
        opened.wait(10)
        act()
        done.wait(10)
        return found


class NoticesTests(TransactionTestCase):
    def setUp(self):
        if connection.vendor != "postgresql":
            self.skipTest("Only PostgreSQL has LISTEN.")

    def in_thread(self, act):
        """Run it with connections of its own."""
        failed = []

        def run():
            try:
                with closing(store.notify.listener_of("default")) as listener:
                    listener.open()
                    act(listener)
            except BaseException as error:
                failed.append(error)
            connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        if failed:
            raise failed[0]

    def test_what_comes_with_the_answer_to_another_statement_is_heard(self):
        def act(listener):
            postgres.send("0 k", connection)
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")
            self.assertEqual(list(listener.read()), [Notification("k")])

        self.in_thread(act)

    def test_a_proof_arrives(self):
        def act(listener):
            listener.prove()

            def proven():
                self.assertEqual(list(listener.read()), [])
                return listener.proven

            wait_until(proven)

        self.in_thread(act)

    def test_a_connection_that_was_closed_is_not_listening(self):
        def act(listener):
            self.assertTrue(listener.is_open)
            connections["default"].close()
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")
            self.assertFalse(listener.is_open)
            listener.open()
            self.assertTrue(listener.is_open)

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
        self.folder = Path(datagrams.folder_of(connections["default"]))

    def listener(self):
        listener = store.notify.SocketListener("default")
        self.addCleanup(listener.close)
        listener.open()
        return listener

    def send(self, message="0 default"):
        datagrams.send(message, connection)

    def test_all_who_listen_hear_it(self):
        listeners = [self.listener(), self.listener()]
        self.send()
        self.assertEqual(
            [list(listener.read()) for listener in listeners], [[Notification("default")]] * 2
        )

    def test_notifying_where_no_one_listens_is_nothing(self):
        self.send()
        self.assertFalse(self.folder.exists())

    def test_who_leaves_takes_everything_away(self):
        first, second = self.listener(), self.listener()
        first.close()
        self.send()
        self.assertEqual(list(second.read()), [Notification("default")])
        second.close()
        self.assertEqual(list(self.parent.iterdir()), [])

    def test_one_who_leaves_meanwhile_keeps_no_one_from_hearing_it(self):
        listeners = [self.listener(), self.listener()]

        def found(entries, most):
            first, *rest = entries
            listeners.pop(first.path == listeners[1].path).close()
            return first, *rest

        with mock.patch.object(datagrams, "islice", found):
            self.send()
        [left] = listeners
        self.assertEqual(list(left.read()), [Notification("default")])

    def test_the_socket_of_one_who_died_is_removed(self):
        listener = self.listener()
        listener.socket.close()
        self.assertTrue(Path(listener.path).exists())
        self.send()
        self.assertFalse(Path(listener.path).exists())

    def test_a_listener_that_does_not_listen_holds_no_one_up(self):
        listener = self.listener()
        began = time.monotonic()
        for _time in range(2000):
            self.send()
        self.assertLess(time.monotonic() - began, LONG)
        self.assertTrue(list(listener.read()))

    def test_other_users_of_the_host_may_notify_but_not_remove(self):
        listener = self.listener()
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o755)
        self.assertEqual(stat.S_IMODE(os.stat(listener.path).st_mode), 0o666)

    def test_a_folder_that_others_may_write_to_is_not_used(self):
        """They could take the socket away, or lay 64 others before it."""
        self.folder.mkdir()
        for mode in (0o1777, 0o775):
            self.folder.chmod(mode)
            refused = self.assertRaisesMessage(PermissionError, "set NOTIFY")
            with self.subTest(oct(mode)), refused:
                self.listener()
        self.folder.chmod(0o755)
        self.listener()

    def test_a_folder_that_another_user_has_made_first_is_not_used(self):
        self.folder.mkdir(mode=0o755)
        other = self.folder.stat().st_uid + 1
        with (
            mock.patch("os.geteuid", return_value=other),
            mock.patch.object(datagrams, "ROOT", -1),
            self.assertRaisesMessage(PermissionError, "set NOTIFY"),
        ):
            self.listener()

    def test_a_link_in_the_place_of_the_folder_is_not_followed(self):
        elsewhere = self.parent / "elsewhere"
        elsewhere.mkdir()
        self.folder.symlink_to(elsewhere)
        with self.assertRaises(NotADirectoryError):
            self.listener()
        self.assertEqual(self.received(elsewhere / "socket"), b"")

    def test_a_link_to_a_socket_is_not_followed(self):
        """
        Someone could lay a link to a socket of the system's there.
        """
        self.listener()
        (self.folder / "link").symlink_to(self.parent / "socket")
        self.assertEqual(self.received(self.parent / "socket"), b"")

    def received(self, path):
        """Ring, and return what comes to a socket of ours."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(str(path))
            receiver.setblocking(False)
            self.send()
            try:
                return receiver.recv(100)
            except BlockingIOError:
                return b""

    def test_a_path_that_is_too_long_for_a_socket_is_reported(self):
        long = self.parent / ("x" * 100)
        with override_settings(PERFECTQUEUE={"NOTIFY": long}):
            self.assertFalse(datagrams.fits(datagrams.folder_of(connections["default"])))
            with self.assertRaises(OSError) as caught:
                self.listener()
        self.assertEqual(caught.exception.errno, errno.ENAMETOOLONG)

    def test_no_name_is_longer_than_is_reckoned_with(self):
        name = Path(self.listener().path).name
        longest = len(name) - len(str(os.getpid())) + len(str(2**22))
        self.assertLessEqual(longest, datagrams.LONGEST_NAME)

    def test_a_socket_that_was_swept_away_is_not_open(self):
        """
        Temporary folders are tidied by others.
        """
        listener = self.listener()
        self.assertTrue(listener.is_open)
        os.unlink(listener.path)
        self.assertFalse(listener.is_open)
        listener.open()
        self.send()
        self.assertEqual(list(listener.read()), [Notification("default")])

    def test_rubbish_is_no_notification(self):
        listener = self.listener()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for message in (b"", b"\xff\xfe", b"soon default", b"x" * 5000):
                sender.sendto(message, listener.path)
        self.send("nan default")
        self.assertEqual(list(listener.read()), [Notification("default", 0.0)])

    def test_each_database_has_a_folder_of_its_own(self):
        with mock.patch.dict(connection.settings_dict, {"NAME": "/nowhere/else"}):
            self.assertNotEqual(datagrams.folder_of(connections["default"]), str(self.folder))

    def test_a_database_in_memory_has_none(self):
        if connection.vendor != "sqlite":
            self.skipTest("Only SQLite can be in memory.")
        with mock.patch.dict(connection.settings_dict, {"NAME": ":memory:"}):
            self.assertIsNone(datagrams.folder_of(connections["default"]))
            self.send()


class AskedTests(TransactionTestCase):
    def test_a_thousand_submits_in_one_transaction_ask_once(self):
        """
        Looking through all callbacks for each submit would take their number squared.
        """
        with transaction.atomic():
            for _time in range(1000):
                sending.notify_workers("default", using="default")
            self.assertEqual(len(connection.run_on_commit), 1)
