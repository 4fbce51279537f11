"""Settings of a project whose admin has another look, and two admin sites."""

import os

from tests.settings import *  # noqa: F403

SKINS = {"plain": [], "unfold": ["unfold"], "grappelli": ["grappelli"], "jazzmin": ["jazzmin"]}

INSTALLED_APPS = [*SKINS[os.environ["PERFECTQUEUE_TEST_SKIN"]], *INSTALLED_APPS]  # noqa: F405
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
ROOT_URLCONF = "tests.skins.urls"
