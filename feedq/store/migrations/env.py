"""Alembic's entry: runs on the connection that `feedq.store.migrate` hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="alembic_version",
    version_table_schema="feedq",
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
