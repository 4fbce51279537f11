"""How the documentation is built: sphinx-build -W -b html docs build/docs."""

from importlib import metadata

project = "django-perfectqueue"
author = "The django-perfectqueue developers"
copyright = author  # noqa: A001

try:
    release = metadata.version("django-perfectqueue")
except metadata.PackageNotFoundError:
    release = ""

extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = project
exclude_patterns = ["_build"]
nitpicky = True

copybutton_exclude = ".linenos, .gp, .go"

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]
