"""A PostgreSQL for tests: nothing in it has to outlive a crash, and sessions begin quickly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from feedq.local.postgres import Postgres


@contextmanager
def postgres_server(directory: Path, **settings: str) -> Iterator[Postgres]:
    """Runs in the block, with its files in a directory that the server's account can enter."""
    server = Postgres(directory, settings={"fsync": "off", "scram_iterations": "1", **settings})
    server.start()
    # Thousands of sessions begin in the tests, and 4,096 rounds of hashing are most of what each of them costs.
    with closing(psycopg2.connect(server.url())) as connection, connection, connection.cursor() as cursor:
        cursor.execute("ALTER ROLE CURRENT_USER PASSWORD %s", (urlsplit(server.url()).password,))
    try:
        yield server
    finally:
        server.stop()
