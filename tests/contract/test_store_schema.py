"""What the migrations make of an empty database: all of it valid and documented, once, and no step back."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedq.control.store import migrate
from feedq.control.store.database import connect_once
from feedq.errors import Conflict, SchemaBehind
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.database_checks import check_database

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[2] / "docs/reference/control-tables.md"


def columns(url: str) -> dict[str, set[str]]:
    """The columns of every control table."""
    sql = """
        SELECT c.relname, array_agg(a.attname::text) FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relkind = 'r' AND c.relnamespace = 'feedq'::regnamespace AND c.relname <> 'alembic_version'
        GROUP BY c.relname
    """
    with connect_once(url) as connection:
        return {table: set(names) for table, names in connection.execute(sql)}


def test_every_control_column_is_documented_and_no_other(control_database_url: str) -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    documented = {}
    for table, section in sections.items():
        # The first table of a section; others explain states and reasons.
        rows = section.partition("| column | meaning |")[2].partition("\n\n")[0]
        cells = re.findall(r"^\| (`[^|]*`) +\|", rows, re.MULTILINE)
        documented[table] = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert documented == columns(control_database_url)


def test_indexes_and_constraints_are_valid(control_database_url: str) -> None:
    sql = """
        SELECT x.indexrelid::regclass::text FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
        WHERE c.relnamespace = 'feedq'::regnamespace AND NOT x.indisvalid
        UNION ALL
        SELECT conname FROM pg_constraint WHERE connamespace = 'feedq'::regnamespace AND NOT convalidated
    """
    with connect_once(control_database_url) as connection:
        assert connection.execute(sql) == []


def test_a_database_that_was_not_migrated_is_said_to_be_behind(database_url: str) -> None:
    with pytest.raises(
        SchemaBehind, match=r"at revision none, this release needs 0001: run `feedq db upgrade`"
    ):
        migrate.require_current(database_url)
    assert migrate.upgrade(database_url) == 1
    migrate.require_current(database_url)
    assert migrate.upgrade(database_url) == 0


def test_a_database_of_a_newer_release_stops_no_worker_and_is_told(database_url: str) -> None:
    migrate.upgrade(database_url)
    with connect_once(database_url) as connection:
        connection.execute("UPDATE feedq.alembic_version SET version_num = '0999'")
    assert migrate.upgrade(database_url) == 0
    migrate.require_current(database_url)
    (check,) = (c for c in check_database(database_url, workers=0) if c.name == "migrations")
    assert check.level is Level.WARN
    assert check.detail == "at 0999, which this release of feedq does not know: its latest is 0001"


def test_two_that_migrate_at_once_do_it_once(database_url: str) -> None:
    at_once = threading.Barrier(3)

    def upgrade() -> int:
        at_once.wait(10)
        return migrate.upgrade(database_url)

    with ThreadPoolExecutor(max_workers=3) as threads:
        done = [job.result(60) for job in [threads.submit(upgrade) for _ in range(3)]]
    assert sorted(done) == [0, 0, 1]


def test_whoever_waits_too_long_for_another_to_migrate_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_PATIENCE_S", 0.2)
    with connect_once(database_url) as other:
        other.execute("SELECT pg_advisory_lock(%(key)s)", {"key": migrate.MIGRATION_LOCK})
        with pytest.raises(Conflict, match=r"another process has been migrating it for 0\.2 s"):
            migrate.upgrade(database_url)
    assert migrate.upgrade(database_url) == 1
