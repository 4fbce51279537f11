"""One verb on a task a file."""
