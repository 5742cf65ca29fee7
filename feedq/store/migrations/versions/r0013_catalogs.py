"""Which catalog a feed was made from, and how each catalog was last synced."""

from feedq.store.migrations import run_live

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    run_live(
        """
        CREATE TABLE IF NOT EXISTS feedq.catalog (
            name text NOT NULL,
            version text,
            owned text NOT NULL,
            report jsonb NOT NULL,
            synced_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (name)
        );

        ALTER TABLE feedq.feed ADD COLUMN IF NOT EXISTS catalog text;

        DROP INDEX IF EXISTS feedq.feed_of_catalog;

        CREATE INDEX feed_of_catalog ON feedq.feed (catalog) WHERE catalog IS NOT NULL
        """
    )
