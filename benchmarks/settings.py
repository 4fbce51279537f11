"""The settings of every peer that runs on Django; the environment says what differs."""

import json
import os

from benchmarks.database import this_target
from django_perfectqueue.conf import Options

given = json.loads(os.environ.get("BENCHMARK_DJANGO", "{}"))

SECRET_KEY = "not a secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = given.pop("apps", [])
DATABASES = {"default": this_target().django(persistent=given.pop("persistent", False))}

# What is no setting, but a constant of the package.
for _name, _value in given.pop("constants", {}).items():
    setattr(Options, _name, _value)

globals().update(given)
