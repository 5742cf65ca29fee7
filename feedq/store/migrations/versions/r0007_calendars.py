"""Named calendars of days that schedules leave out, and their dates beside each schedule that does."""

from feedq.store.migrations import run_live

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
    run_live(STATEMENTS)
