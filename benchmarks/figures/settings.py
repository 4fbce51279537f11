"""A small project on the database that DATABASE_URL names."""

import sys

import environ

from benchmarks.database import SQLITE

sys.modules["psycopg"] = None  # type: ignore[assignment]  # the table is counted with psycopg2

env = environ.Env()

SECRET_KEY = "not a secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = ["perfectqueue.W008"]  # the server is fast and forgets
INSTALLED_APPS = ["django.contrib.contenttypes", "django_perfectqueue"]
PERFECTQUEUE = {"TASK_PREFETCH": 200}  # otherwise a batch is what runs in a quarter of a second
DATABASES = {"default": env.db("DATABASE_URL")}

if env.bool("PERFECTQUEUE_FIGURES_DJANGO_TASKS", default=True):
    TASKS = {
        "default": {
            "BACKEND": "django_perfectqueue.backend.PerfectQueueBackend",
            "OPTIONS": {"modules": ["benchmarks.figures.tasks"]},
        },
    }

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE
