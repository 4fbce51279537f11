"""Settings of a simulation, which has no database."""

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["django_perfectqueue"]
