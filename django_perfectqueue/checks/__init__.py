"""What can be found wrong with a project's settings before anything runs."""

# Each registers its checks.
from . import databases, project, servers, settings  # noqa: F401
