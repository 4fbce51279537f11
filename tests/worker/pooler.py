"""A pgbouncer before a test's PostgreSQL server."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from ..databases import PostgreSQL, UnavailableError, die_with_parent
from ..waiting import wait_until

PORT = 6432
SETTINGS = """
[databases]
* = host={home} user=postgres
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {home}
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits
"""


class Pooler(PostgreSQL):
    """The server as it is seen through the pooler; ``behind`` is the server itself."""

    def __init__(self, behind, mode):
        super().__init__()
        self.behind = behind
        self.mode = mode
        self.folder = behind.folder
        self.process = None

    @property
    def url(self):
        return urlsplit(self.behind.url)._replace(netloc=f"postgres@:{PORT}").geturl()

    def start(self):
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise UnavailableError(
                "There is no pgbouncer here.", remedy="apt-get install pgbouncer"
            )
        settings = Path(self.home, "pgbouncer.ini")
        settings.write_text(SETTINGS.format(home=self.home, port=PORT, mode=self.mode))
        settings.chmod(0o644)
        with open(self.home / "pgbouncer.log", "ab") as log:
            self.process = subprocess.Popen(
                [program, str(settings)],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(signal.SIGKILL),
                **self.as_unprivileged(),
            )
        wait_until(self.listens)

    def listens(self):
        """Return whether it accepts connections: its socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(Path(self.home, f".s.PGSQL.{PORT}"))) == 0

    def remove(self):
        self.process.kill()
        self.process.wait()
