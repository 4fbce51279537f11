from pathlib import Path

import environ

from django_perfectqueue import compat

env = environ.Env()

ROOT = Path(__file__).resolve().parent.parent

SECRET_KEY = "not a secret"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SILENCED_SYSTEM_CHECKS = ["perfectqueue.W008"]  # the tests' servers are fast and forgetful
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TEST_RUNNER = "tests.runner.Runner"

USE_TZ = True
TIME_ZONE = env.str("PERFECTQUEUE_TEST_TIME_ZONE", default="UTC")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_perfectqueue",
    "tests",
]

if compat.HAS_TASKS and compat.APP:
    INSTALLED_APPS.append(compat.APP)

TASKS = {
    "default": {
        "BACKEND": "django_perfectqueue.backend.PerfectQueueBackend",
        "OPTIONS": {"modules": ["tests.backend.jobs"]},
    },
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

DATABASES = {
    "default": env.db("DATABASE_URL", default=f"sqlite:///{ROOT / 'perfectqueue.sqlite3'}"),
}

database = DATABASES["default"]
options = database.setdefault("OPTIONS", {})

if database["ENGINE"].endswith("sqlite3"):
    file = Path(database["NAME"])
    options.update(
        transaction_mode="IMMEDIATE",
        timeout=20,
        init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    )
    database["TEST"] = {"NAME": str(file.with_name(f"test-{file.name}"))}

if database["ENGINE"].endswith("mysql"):
    # mysqldump, which copies the test database for --parallel, looks only here.
    database["HOST"] = options.pop("unix_socket", database["HOST"])
    options["charset"] = "utf8mb4"
    database["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_unicode_ci"}
