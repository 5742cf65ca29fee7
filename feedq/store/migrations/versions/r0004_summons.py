"""What waits for a worker, to be claimed or let go of, in one index, which every heartbeat looks into."""

from feedq.store.migrations import run_live

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_live("""
        CREATE INDEX IF NOT EXISTS lease_summons ON feedq.lease (worker_id, state)
            WHERE state IN ('assigned', 'stopping');
        -- Workers of the release before find the same rows through the new one.
        DROP INDEX IF EXISTS feedq.lease_assigned_to;
        DROP INDEX IF EXISTS feedq.lease_stopping
    """)
