"""
Chartroom's settings.

``DATABASE_URL`` chooses the database, ``CHARTROOM_MEDIA`` where files are kept.
"""

from pathlib import Path

import django
import environ
from django.core.exceptions import ImproperlyConfigured

env = environ.Env()

HERE = Path(__file__).resolve().parent.parent

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="for this example only")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_perfectqueue",
    "reports",
]

url = env.str("DATABASE_URL", default="") or f"sqlite:///{HERE / 'chartroom.sqlite3'}"
if not url.startswith(("sqlite:", "postgres:", "postgresql:", "psql:", "mysql:")):
    raise ImproperlyConfigured(
        "DATABASE_URL must be like sqlite:////path/to/file, postgres://user:password@host/name"
        " or mysql://user:password@host/name."
    )
DATABASES = {"default": env.db_url_config(url)}

database = DATABASES["default"]
if database["ENGINE"] == "django.db.backends.sqlite3":
    database.setdefault("OPTIONS", {}).update(
        transaction_mode="IMMEDIATE",
        timeout=20,
        init_command="PRAGMA journal_mode=WAL",
    )
if database["ENGINE"] == "django.db.backends.mysql":
    database.setdefault("OPTIONS", {}).update(charset="utf8mb4")

PERFECTQUEUE = {"PROCESSORS": 2}
TASKS = {"default": {"BACKEND": "django_perfectqueue.backend.PerfectQueueBackend"}}
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]

CHARTROOM_RESAMPLES = env.int("CHARTROOM_RESAMPLES", default=10_000)

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "chartroom.urls"
STATIC_URL = "static/"
MEDIA_URL = "media/"
MEDIA_ROOT = env.path("CHARTROOM_MEDIA", default=str(HERE / "media"))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
