"""Queries that no page of the admin makes, and that a person may write."""

from .staff import AdminTestCase
from .test_scope import APP


class HostileTests(AdminTestCase):
    def test_half_a_character_or_a_nul_is_no_error(self):
        for page in ("task", "deadletter", "schedule", "limit", "fairshare", "account", "batch"):
            for name in ("user", "queue", "name", "q"):
                for text in ("%ED%A0%80", "%00"):
                    with self.subTest(page=page, name=name, text=text):
                        response = self.client.get(f"{APP}{page}/?{name}={text}", follow=True)
                        self.assertIn(response.status_code, (200, 400))
