"""
The processes that run tasks.

    launcher ── supervisor ─┬─ processors: runner, monitor
                            ├─ listener
                            └─ janitor

The launcher is the command itself. It starts the supervisor as a fresh interpreter and
forwards signals. The supervisor forks the others, watches them and replaces them. It
never connects to the database. Processors hold leases, never row locks.
"""
