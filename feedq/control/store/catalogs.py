"""The lock of whoever syncs a catalog.

The feeds of a catalog are marked with its name; `feedq.control.store.feeds` changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg2

from feedq.control.store.channels import CATALOG_LOCK_CLASS
from feedq.control.store.database import connect, translate_driver_errors
from feedq.errors import Conflict


@contextmanager
def exclusively(url: str, catalog: str) -> Iterator[None]:
    """Sync a catalog here and nowhere else for the length of the block. Raises `Conflict`, `Unavailable`."""
    with closing(connect(url, application_name="feedq-sync")) as session:
        with translate_driver_errors(url), session.cursor() as cursor:
            lock = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
            cursor.execute(lock, (CATALOG_LOCK_CLASS, catalog))
            found = cursor.fetchone()
        if found != (True,):
            raise Conflict(f"catalog {catalog!r} is being synced elsewhere; try again when that has ended")
        try:
            yield
        finally:
            # The server notices the end of a session a moment later, and the next sync may come at once.
            with suppress(psycopg2.Error), session.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock_all()")
