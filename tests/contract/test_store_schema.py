"""What the migrations make of an empty database: all of it valid, and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import text

from feedq.store.database import connect_once

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
        return {table: set(names) for table, names in connection.execute(text(sql))}


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
        assert connection.execute(text(sql)).all() == []
