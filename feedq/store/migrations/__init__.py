"""Migrations of the control database, which are the one description of its schema in code.

What each table and column is for is said in docs/reference/control-tables.md, and a test compares the two.
"""

from alembic import op


def run_live(*scripts: str) -> None:
    """Execute statements on a live database: one at a time, each a transaction of its own.

    None may lock a table for longer than one scan of it takes, and each must be one that can be repeated:
    the migration may be cut off anywhere. A script is several statements, unless it has a body of its own.
    """
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for script in scripts:
            for statement in [script] if "$body$" in script else filter(str.strip, script.split(";")):
                op.execute(statement)
