"""Queries that no page of the admin makes, and that a person may write."""

from django.test import tag

from .staff import AdminTestCase
from .test_scope import APP


@tag("any-database")
class HostileTests(AdminTestCase):
    def test_half_a_character_is_no_error(self):
        for name in ("user", "queue", "q"):
            response = self.client.get(f"{APP}task/?{name}=%ED%A0%80")
            self.assertLess(response.status_code, 400)
