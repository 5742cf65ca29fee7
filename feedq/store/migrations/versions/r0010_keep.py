"""Which schedules keep a history of their own.

Runs on a live database, as 0003 does: a statement at a time, and each can be repeated.
"""

from alembic import op

revision = "0010"
down_revision = "0009"

INDEX = """
    CREATE INDEX IF NOT EXISTS schedule_keeping ON feedq.schedule (id)
        WHERE jsonb_exists_any(policy, ARRAY['keep_runs', 'keep_days'])
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        op.execute(INDEX)
