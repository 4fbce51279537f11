"""
The processes that run tasks.

    launcher ── supervisor ─┬─ processors: runner, monitor
                            ├─ listener
                            └─ janitor

The launcher is the command itself; it starts the supervisor as a fresh interpreter and
passes signals on. The supervisor forks the others, watches them and replaces them, and
never touches the database. What they hold are leases, never rows.
"""
