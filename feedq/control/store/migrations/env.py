"""Alembic's entry: runs on the connection, and in the transaction, that `feedq.control.store.migrate` gives it."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="alembic_version",
    version_table_schema="feedq",
)
context.run_migrations()
