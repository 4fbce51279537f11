"""A project needs the driver of its own database alone."""

import subprocess
import sys

from django.test import SimpleTestCase

CODE = """
import sys
from django.conf import settings
for name in ("psycopg", "psycopg2", "MySQLdb"):
    sys.modules[name] = None
engine = "django.db.backends.sqlite3"
settings.configure(
    USE_TZ=True,
    DATABASES={"default": {"ENGINE": engine, "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django_perfectqueue"],
)
import django
django.setup()
import django_perfectqueue.management.commands.pq_worker
"""


class DriverTests(SimpleTestCase):
    def test_no_other_driver_is_imported(self):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
