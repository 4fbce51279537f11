"""How the documentation is built: sphinx-build -W -b html docs build/docs."""

import sys
from importlib import metadata
from pathlib import Path

import django
from django.conf import settings

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

# The reference is made from the code; nothing connects to this database.
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_perfectqueue",
    ],
    SECRET_KEY="documentation",  # noqa: S106
    USE_TZ=True,
)
django.setup()

project = "django-perfectqueue"
author = "The django-perfectqueue developers"
copyright = author  # noqa: A001

try:
    release = metadata.version("django-perfectqueue")
except metadata.PackageNotFoundError:
    release = ""

extensions = ["llms", "myst_parser", "reference", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = project
html_baseurl = "https://django-perfectqueue.readthedocs.io/en/latest/"
html_extra_path = ["../django_perfectqueue/AGENTS.md"]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types in signatures, as of Python and Django

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries = False

copybutton_exclude = ".linenos, .gp, .go"

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]
