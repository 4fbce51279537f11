"""The settings of both releases' processes: one database, named by DATABASE_URL."""

import environ

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL",
    }
SECRET_KEY = "not a secret"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_perfectqueue", "shop"]
SILENCED_SYSTEM_CHECKS = ["perfectqueue.W008"]  # the servers of tests are fast and forgetful
USE_TZ = True
PERFECTQUEUE = {"PROCESSORS": 2, "POLL_INTERVAL": 0.5}
