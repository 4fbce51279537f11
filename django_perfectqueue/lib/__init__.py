"""Plain helpers that know nothing of tasks: durations, processes, imports, text."""
