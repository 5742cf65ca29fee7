"""What waits for a worker, to be claimed or let go of, in one index, which every heartbeat looks into.

Runs on a live database, as 0003 does: a statement at a time, and each can be repeated.
"""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        op.execute("""
            CREATE INDEX IF NOT EXISTS lease_summons ON feedq.lease (worker_id, state)
                WHERE state IN ('assigned', 'stopping')
        """)
        # Workers of the release before find the same rows through the new one.
        op.execute("DROP INDEX IF EXISTS feedq.lease_assigned_to")
        op.execute("DROP INDEX IF EXISTS feedq.lease_stopping")
