"""Event times of feeds, and why there is none; the reason beside what is not as expected."""

from feedq.store.migrations import run_live

revision = "0017"
down_revision = "0016"

STATEMENTS = """
    ALTER TABLE feedq.lease
        ADD COLUMN IF NOT EXISTS event_at timestamptz,
        ADD COLUMN IF NOT EXISTS event_fault text;

    ALTER TABLE feedq.unmet ADD COLUMN IF NOT EXISTS why text;

    ALTER TABLE feedq.alert ADD COLUMN IF NOT EXISTS why text
"""


def upgrade() -> None:
    run_live(STATEMENTS)
