"""What the migrations make of an empty database is what `feedq.store.tables` declares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from feedq.store import migrate
from feedq.store.engine import connect_once
from feedq.store.tables import SCHEMA, metadata

pytestmark = pytest.mark.servers

SHADOW = "declared"
"""Schema in which the declared tables are made, to be compared with the migrated ones."""

# What `compare_metadata` is blind to: identities, checks, predicates and methods of indexes, storage parameters.
# PostgreSQL itself says how it understands each.
_CATALOGUE = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
            a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid), s.seqcycle
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_depend o ON o.refobjid = c.oid AND o.refobjsubid = a.attnum AND o.deptype = 'i'
        LEFT JOIN pg_sequence s ON s.seqrelid = o.objid
        WHERE c.relkind = 'r' AND c.relnamespace = :schema::regnamespace
    """,
    "constraints": """
        SELECT c.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated
        FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
        WHERE k.connamespace = :schema::regnamespace AND k.contype <> 'n'
    """,
    "indexes": """
        SELECT c.relname, i.relname, pg_get_indexdef(i.oid), x.indisvalid
        FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
        WHERE c.relnamespace = :schema::regnamespace
    """,
    "storage": """
        SELECT c.relname, array_to_string(ARRAY(SELECT unnest(c.reloptions) ORDER BY 1), ', ')
        FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = :schema::regnamespace
    """,
}


@pytest.fixture
def migrated(database_url: str) -> Iterator[Connection]:
    migrate.upgrade(database_url)
    with connect_once(database_url) as connection:
        yield connection


@pytest.fixture
def declared(database_url: str) -> Iterator[Connection]:
    with connect_once(database_url) as connection:
        connection.execute(text(f"CREATE SCHEMA {SHADOW}"))
        metadata.create_all(connection.execution_options(schema_translate_map={SCHEMA: SHADOW}))
        yield connection


def described(connection: Connection, schema: str, what: str) -> set[str]:
    rows = connection.execute(text(_CATALOGUE[what].replace(":schema", f"'{schema}'"))).all()
    # Names of our schema are in what is named by definitions, such as the table of an index.
    lines = {" | ".join(map(str, row)).replace(f"{schema}.", "") for row in rows}
    return {line for line in lines if not line.startswith("alembic_version")}


def test_alembic_would_generate_nothing(migrated: Connection) -> None:
    context = MigrationContext.configure(
        migrated,
        opts={
            "include_schemas": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
            "version_table_schema": SCHEMA,
            "compare_server_default": True,
        },
    )
    assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("what", list(_CATALOGUE))
def test_postgresql_understands_the_declared_tables_as_it_does_the_migrated_ones(
    migrated: Connection, declared: Connection, what: str
) -> None:
    there, said = described(migrated, SCHEMA, what), described(declared, SHADOW, what)
    assert there - said == set(), "made by the migrations, and not declared like that"
    assert said - there == set(), "declared, and not made by the migrations"
    assert len(there) >= len(metadata.tables)
