"""What workers notice of the records and the answers of a feed."""

from feedq.store.migrations import run_live

revision = "0020"
down_revision = "0019"

STATEMENTS = "ALTER TABLE feedq.lease ADD COLUMN IF NOT EXISTS noticed jsonb"


def upgrade() -> None:
    run_live(STATEMENTS)
