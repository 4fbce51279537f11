"""What can be found wrong with a project's settings before anything runs."""

# Each registers its checks.
from . import backends, databases, dotted_paths, schedules, servers, settings  # noqa: F401
