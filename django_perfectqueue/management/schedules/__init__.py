"""Schedules on the command line: the options of their terms, and how one is shown."""
