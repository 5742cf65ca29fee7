"""The servers that something is measured with: they run for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from feedq.local.postgres import Postgres
from feedq.local.server import Server
from feedq.local.valkey import Valkey

COMMIT_TIMES: Mapping[str, str] = {"track_commit_timestamp": "on"}
"""For `running`: PostgreSQL keeps when each transaction was committed."""

S = TypeVar("S", bound=Server)


@contextmanager
def started(server: S) -> Iterator[S]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def running(
    directory: Path, *, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Postgres, Valkey]]:
    """A PostgreSQL, with these settings beside its usual ones, and a Valkey; both keep their data here."""
    with started(Postgres(directory, settings=settings)) as postgres, started(Valkey(directory)) as valkey:
        yield postgres, valkey
