"""Tables that no record lands in: what a declaration may not name, and what each kind of database keeps."""

from __future__ import annotations

import pytest

from feedq.errors import InvalidInput
from feedq.sinks.base import parse_sink, why_nowhere
from feedq.sinks.postgresql import why_not_in_postgresql
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession
from feedq.sinks.target_table import TableName


@pytest.mark.parametrize(
    "table",
    [
        "feedq.feed",
        "FEEDQ.lease",
        '"feedq"."feed"',
        "feedq_checkpoint",
        "acme.Feedq_Dead_Letter",
        "pg_catalog.pg_authid",
        "pg_toast.pg_toast_2619",
        "PG_CATALOG.pg_proc",
        "information_schema.sql_features",
        "INFORMATION_SCHEMA.USER_PRIVILEGES",
    ],
)
def test_a_declaration_names_neither_tables_of_feedq_nor_a_catalog(table: str) -> None:
    assert why_nowhere(table) is not None
    with pytest.raises(InvalidInput, match=r"name (another table|a table of yours)"):
        parse_sink({"table": table})


def test_postgresql_keeps_every_schema_whose_name_begins_as_its_own_do() -> None:
    for schema in ("pg_catalog", "pg_toast", "pg_temp_7", "pg_toast_temp_7", "information_schema"):
        assert "kept by the database" in str(why_not_in_postgresql(schema, "landed"))
    assert why_not_in_postgresql(None, "pg_things") is why_not_in_postgresql("PG_UPPER", "landed") is None


@pytest.mark.parametrize(
    ("session", "kept", "free"),
    [
        (
            MySqlSession,
            ["mysql.user", "SYS.sys_config", "performance_schema.setup_actors"],
            ["shop.sys", "pg_x"],
        ),
        (SqliteSession, ["sqlite_sequence", "main.SQLITE_master"], ["mysql.user", "main.landed"]),
    ],
)
def test_each_kind_of_database_keeps_tables_of_its_own(
    session: type[SqlSession], kept: list[str], free: list[str]
) -> None:
    for table in kept:
        assert session.is_system(TableName.parse(table), "public"), table
    for table in free:
        assert not session.is_system(TableName.parse(table), "public"), table
