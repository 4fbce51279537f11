"""What can be found wrong with a project's settings before anything runs."""

# Each registers its checks.
from . import (  # noqa: F401
    backends,
    databases,
    dotted_paths,
    references,
    schedules,
    servers,
    settings,
)
