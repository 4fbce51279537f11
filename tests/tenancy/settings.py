"""Settings of a project with a schema for each customer."""

import os
import sys
from pathlib import Path

from tests.settings import *  # noqa: F403

DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"  # noqa: F405
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "tenancy.Customer", "tenancy.Domain"
TENANT_LIMIT_SET_CALLS = bool(os.environ.get("TENANCY_LIMIT_SET_CALLS"))
SHARED_APPS = [
    "django_tenants",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_perfectqueue",
    "tests.tenancy",
    "tests.tenancy.rows",
]
TENANT_APPS = ["django.contrib.contenttypes", "tests.tenancy.rows"]
INSTALLED_APPS = SHARED_APPS
MIDDLEWARE, TEMPLATES, TASKS = [], [], {}
SILENCED_SYSTEM_CHECKS += ["perfectqueue.W018"]  # noqa: F405

# The modules that the page shows.
sys.path.insert(0, str(Path(os.environ["TENANCY_FOLDER"])))
PERFECTQUEUE = {
    "CONTEXT": ["shop.tenants.schema"],
    "DISPATCH": "tests.tenancy.handlers.TenancyDispatch",
    "POLL_INTERVAL": 0.05,
    "RETRY_WAIT": 0,
}
