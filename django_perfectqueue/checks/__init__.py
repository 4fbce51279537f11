"""What can be found wrong with a project's settings before anything runs."""

# Each registers its checks.
from . import databases, dotted_paths, project, servers, settings  # noqa: F401
