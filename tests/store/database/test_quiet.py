import threading

from django.db import connections, transaction
from django.test import TransactionTestCase, skipUnlessDBFeature

from django_perfectqueue import store

from ...factories import acquire, after, submit


class OthersTests(TransactionTestCase):
    @skipUnlessDBFeature("has_select_for_update_skip_locked")
    def test_what_another_is_making_ready_is_no_reason_for_an_empty_answer(self):
        """
        A burst ends at an empty answer. It must not end because a janitor was just then
        admitting the tasks that it came for.
        """
        submit("k0", run_at=after(1))
        busy, ready = threading.Event(), threading.Event()

        def admit_slowly():
            with transaction.atomic():
                store.answer_alarms(using="default", now=after(2))
                busy.set()
                ready.wait(0.1)
            connections.close_all()

        janitor = threading.Thread(target=admit_slowly)
        janitor.start()
        busy.wait()
        taken = acquire(now=after(2))
        ready.set()
        janitor.join()
        self.assertEqual([lease.key for lease in taken], ["k0"])
