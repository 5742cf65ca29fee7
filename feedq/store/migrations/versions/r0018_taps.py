"""Who listens to the records of a feed, and what they are shown."""

from feedq.store.migrations import run_live

revision = "0018"
down_revision = "0017"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.tap (
        id uuid PRIMARY KEY,
        feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
        listened_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );

    -- Without a reference to the feed: to check it, a worker would wait for whoever has that row locked.
    CREATE UNLOGGED TABLE IF NOT EXISTS feedq.tap_part (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        feed_id bigint NOT NULL,
        epoch bigint NOT NULL,
        worker text NOT NULL,
        records text NOT NULL,
        left_out bigint NOT NULL,
        refused bigint NOT NULL
    );

    CREATE INDEX IF NOT EXISTS tap_part_feed ON feedq.tap_part (feed_id, id)
"""


def upgrade() -> None:
    run_live(STATEMENTS)
