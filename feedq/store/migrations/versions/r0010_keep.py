"""Which schedules keep a history of their own."""

from feedq.store.migrations import run_live

revision = "0010"
down_revision = "0009"

INDEX = """
    CREATE INDEX IF NOT EXISTS schedule_keeping ON feedq.schedule (id)
        WHERE jsonb_exists_any(policy, ARRAY['keep_runs', 'keep_days'])
"""


def upgrade() -> None:
    run_live(INDEX)
