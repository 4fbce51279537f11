"""How the documentation is built: sphinx-build -W -b html docs build/docs."""

from importlib import metadata

project = "django-perfectqueue"
author = "The django-perfectqueue developers"
copyright = author  # noqa: A001

try:
    release = metadata.version("django-perfectqueue")
except metadata.PackageNotFoundError:
    release = ""

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = project
exclude_patterns = ["_build"]
nitpicky = True
