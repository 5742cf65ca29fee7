"""The control database under contract, which each test finds empty."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from feedq.control import reconcile
from feedq.control.store import migrate
from feedq.local.postgres import Postgres
from tests.contract.harness import Harness
from tests.contract.jobs_harness import JobsHarness
from tests.contract.sink_harness import PostgresSinkHarness, SqliteHarness, empty_database


@pytest.fixture(scope="session")
def control_database_url(postgres: Postgres) -> Iterator[str]:
    """A migrated control database; each harness empties it."""
    url = postgres.create_database("contract_of_the_store")
    migrate.upgrade(url)
    yield url
    postgres.drop_database("contract_of_the_store")


@pytest.fixture(autouse=True)
def _unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass sweeps because a test let time pass."""
    monkeypatch.setattr(reconcile, "SWEEP_INTERVAL_S", 3600.0)


@pytest.fixture
def harness(control_database_url: str) -> Iterator[Harness]:
    made = Harness(control_database_url)
    yield made
    made.close()


@pytest.fixture
def jobs(control_database_url: str) -> Iterator[JobsHarness]:
    """Schedules and runs, in a database whose clock is a day ahead of that of this process."""
    with closing(JobsHarness(control_database_url, ahead_days=1)) as made:
        yield made


@pytest.fixture
def sqlite_path(servers_dir: Path) -> Iterator[Path]:
    """A file for a database, where each commit does not wait for a disk."""
    path = servers_dir / f"{uuid.uuid4().hex}.sqlite3"
    yield path
    for left in servers_dir.glob(f"{path.name}*"):
        left.unlink()


@pytest.fixture
def postgresql_sink(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    """The sink for PostgreSQL, over an empty database."""
    with closing(PostgresSinkHarness(empty_database(postgres))) as made:
        yield made


@pytest.fixture
def sqlite_sink(sqlite_path: Path) -> Iterator[SqliteHarness]:
    """The sink for SQLite, over an empty file."""
    with closing(SqliteHarness(sqlite_path)) as made:
        yield made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For what is asked of the database at the same moment."""
    with ThreadPoolExecutor(max_workers=16) as executor:
        yield executor
