"""A standby of an embedded PostgreSQL, by streaming replication, that can be held back and promoted.

::

    with PlainProxy(primary.url()) as replication:
        standby = Standby(directory, primary, replication)
        standby.start()
        replication.hang()  # what is committed from now on stays on the primary
        primary.kill()
        standby.promote()

Replication is asynchronous, as it is unless an operator asks for more. Roles and passwords are the primary's.
"""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from feedq.local.postgres import USER, Postgres
from feedq.local.server import make_private_dir, write_private
from tests.proxy import PlainProxy

PROMOTED_S = 20
BACKUP_LIMIT_S = 60.0


class Standby(Postgres):
    """Another server, whose files are a base backup of the primary's. Once promoted it is a primary itself."""

    def __init__(self, data_dir: Path, primary: Postgres, replication: PlainProxy) -> None:
        super().__init__(data_dir, settings=primary.settings)
        self._from = replication.url
        write_private(self.home / f"{self.kind}.password", _password(primary.url()), account=self.account)

    def promote(self) -> None:
        """End the replication for good; returns once it can be written to."""
        with closing(psycopg2.connect(self.url(), connect_timeout=5)) as session, session.cursor() as cursor:
            cursor.execute("SELECT pg_promote(wait_seconds => %s)", (PROMOTED_S,))
            assert cursor.fetchone() == (True,), f"not promoted within {PROMOTED_S} s"

    def _init_cluster(self) -> None:
        primary = urlsplit(self._from)
        make_private_dir(self.cluster, account=self.account)
        subprocess.run(
            [
                str(self.binaries.bin / "pg_basebackup"),
                f"--pgdata={self.cluster}",
                f"--host={primary.hostname}",
                f"--port={primary.port}",
                f"--username={USER}",
                *("--no-sync", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf"),
            ],
            check=True,
            timeout=BACKUP_LIMIT_S,
            cwd=self.home,
            env={"PGPASSWORD": _password(self._from), "LC_ALL": "C", "TZ": "UTC"},
            user=self.account.uid if self.account else None,
            group=self.account.gid if self.account else None,
            extra_groups=[] if self.account else None,
        )


def _password(url: str) -> str:
    found = urlsplit(url).password
    assert found is not None
    return found
