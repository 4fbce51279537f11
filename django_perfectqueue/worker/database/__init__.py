"""A connection that waits and repeats."""
