"""The settings of every process of a run; what is a worker's own is in its host's folder."""

import json
import os

from benchmarks.chaos.faults.clock import pretend
from benchmarks.chaos.terms import HOST, this_folder
from benchmarks.database import this_target
from django_perfectqueue.conf import CHECKS, Options

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["django_perfectqueue"]
DATABASES = {"default": this_target().django(persistent=True)}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"django_perfectqueue": {"handlers": ["stderr"], "level": "INFO"}},
}
PERFECTQUEUE = {
    "DISPATCH": "benchmarks.chaos.workload.handlers.ChaosDispatch",
    "RETENTION": {"*": None},
    "MAX_ATTEMPTS": 30_000,
    "MAX_CRASHES": 30_000,
    "RETRY_WAIT": 0.2,
    "RETRY_WAIT_LIMIT": 2.0,
    **json.loads(this_folder().options(os.environ[HOST]).read_text()),
}

# What is no setting, but a constant of the package.
for _name in PERFECTQUEUE.keys() - CHECKS.keys():
    setattr(Options, _name, PERFECTQUEUE.pop(_name))

pretend(os.environ[HOST], this_folder().clock(os.environ[HOST]))
