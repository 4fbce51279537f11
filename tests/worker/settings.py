"""The settings of a test's worker: those of the tests, and what the test wrote to a file."""

import json
import os
import sys
import threading
import types
from pathlib import Path

import django_perfectqueue  # noqa: F401
from tests.constants import set_constants
from tests.fleet.disguise import pretend
from tests.settings import *  # noqa: F403
from tests.worker.statements import log_statements

pretend()
given = {}
# A template of workers has none.
if path := os.environ.get("PERFECTQUEUE_TEST_SETTINGS"):
    with open(f"{path}.read", "a") as read:
        read.write(f"{os.getpid()}\n")
    given = json.loads(Path(path).read_text())

level = given.pop("LOG_LEVEL", "INFO")
if log := given.pop("LOG", None):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"file": {"class": "logging.FileHandler", "filename": log}},
        "loggers": {"django_perfectqueue": {"handlers": ["file"], "level": level}},
    }

if pool := given.pop("POOL", None):
    DATABASES["default"]["OPTIONS"]["pool"] = pool  # noqa: F405

if given.pop("PATCHED", None):
    # What gevent leaves behind that has patched Python's modules.
    patcher = types.ModuleType("gevent.monkey")
    patcher.is_module_patched = lambda name: name == "os"
    sys.modules["gevent.monkey"] = patcher

if given.pop("THREAD", None):
    threading.Thread(target=threading.Event().wait, daemon=True).start()

# Hundreds of workers start, a fifth faster without these. Those of the example have them.
PAGES = ("admin", "sessions", "messages", "staticfiles")
INSTALLED_APPS = [app for app in INSTALLED_APPS if app.rpartition(".")[2] not in PAGES]  # noqa: F405

if statements := given.pop("STATEMENTS", None):
    log_statements(statements)

DATABASES["default"]["OPTIONS"] |= given.pop("OPTIONS", {})  # noqa: F405
TASKS = given.pop("TASKS", TASKS)  # noqa: F405

set_constants(given)
PERFECTQUEUE = given
