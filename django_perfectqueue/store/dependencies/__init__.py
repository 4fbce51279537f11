"""Tasks that wait for other tasks: stored as blocked, and released when these have ended."""
