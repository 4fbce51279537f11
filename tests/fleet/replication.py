"""A PostgreSQL server and its streaming standby, which can change places."""

import contextlib

from ..databases import PostgreSQL
from ..databases.postgresql import OWNER
from ..databases.server import DATABASE, ServerError, UnavailableError
from ..waiting import wait_until

COPIER = "pg_basebackup"
WAIT_FOR_STANDBY = ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")


class Standby(PostgreSQL):
    """Begins as a copy of another server, and follows it until it is promoted."""

    def __init__(self, primary):
        super().__init__(durable=primary.durable)
        self.primary = primary

    def initialise(self):
        self.programs = self.primary.programs
        self.run(
            *(self.program(COPIER), "-h", self.primary.home, "-U", OWNER, "-D", self.data),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync"),
        )

    def create_database(self):
        """It has that of its primary."""

    def promote(self):
        """Make it take writes; return when it does."""
        if execute(self, "SELECT pg_promote()") != [(True,)]:
            raise ServerError(f"The standby was not promoted:\n{self.end_of_log()}")


class Pair:
    """
    A primary that confirms no commit before its standby has it on disk.

    ``url`` names both, and leads to whichever takes writes.
    """

    def __init__(self):
        self.primary = PostgreSQL(durable=True)
        self.primary.require()
        if not self.primary.program(COPIER).exists():
            raise UnavailableError(
                f"There is no {COPIER} here.", remedy="apt-get install postgresql"
            )
        self.standby = Standby(self.primary)

    @property
    def url(self):
        homes = f"{self.primary.home},{self.standby.home}"
        return f"postgres://{OWNER}@/{DATABASE}?host={homes}&target_session_attrs=read-write"

    def start(self):
        self.primary.start()
        self.standby.start()
        self.wait_for_standby()

    def wait_for_standby(self):
        execute(self.primary, *WAIT_FOR_STANDBY)

        def confirmed():
            wanted = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            return execute(self.primary, wanted) == [(1,)]

        wait_until(confirmed)

    def fail_over(self):
        """Lose the primary for good, and have the standby in its place."""
        self.primary.kill()
        self.standby.start()
        self.standby.promote()

    def remove(self):
        for server in (self.standby, self.primary):
            server.remove()


def execute(server, *statements):
    """Run statements in a connection of their own; return the rows of the last."""
    with contextlib.closing(server.connect(DATABASE)) as link:
        cursor = link.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
