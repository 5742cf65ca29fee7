"""Named calendars of days that schedules leave out, and their dates beside each schedule that does.

Runs on a live database, as 0003 does: a statement at a time, and each can be repeated.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.calendar (
        name text COLLATE "C" PRIMARY KEY,
        dates jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );

    ALTER TABLE feedq.schedule ADD COLUMN IF NOT EXISTS excluded jsonb;
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for statement in filter(str.strip, STATEMENTS.split(";")):
            op.execute(statement)
