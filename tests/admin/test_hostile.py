"""Queries that no page of the admin makes, and that a person may write."""

from django.test import tag

from .staff import AdminTestCase
from .test_scope import APP, shown_pages


@tag("any-database")
class HostileTests(AdminTestCase):
    def test_a_query_with_a_nul_is_refused(self):
        for url in shown_pages():
            for name in ("user", "queue", "type", "key", "q", "group", "tag"):
                with self.subTest(url=url, name=name):
                    self.assertEqual(self.client.get(f"{url}?{name}=%00").status_code, 400)

    def test_half_a_character_is_no_error(self):
        for name in ("user", "queue", "q"):
            response = self.client.get(f"{APP}task/?{name}=%ED%A0%80")
            self.assertLess(response.status_code, 400)
