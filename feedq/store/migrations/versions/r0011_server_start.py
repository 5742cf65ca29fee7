"""By which start a restarted database is known, whatever its clock says."""

from feedq.store.migrations import run_live

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    run_live("ALTER TABLE feedq.fleet ADD COLUMN IF NOT EXISTS server_started_at timestamptz")
