"""Alembic's entry: runs on the connection that `feedq.store.migrate` hands over."""

from alembic import context

from feedq.store.tables import SCHEMA, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    include_schemas=True,
    version_table="alembic_version",
    version_table_schema=SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
