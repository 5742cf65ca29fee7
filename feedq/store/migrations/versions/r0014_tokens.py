"""Tokens of the API, by their hashes; and feeds in the order of their names, for pages of them."""

from feedq.store.migrations import run_live

revision = "0014"
down_revision = "0013"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.token (
        name text PRIMARY KEY,
        hash bytea NOT NULL CONSTRAINT token_hash UNIQUE,
        role text NOT NULL CONSTRAINT token_role CHECK (role IN ('viewer', 'operator', 'admin')),
        tenant text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        expires_at timestamptz NOT NULL
    );

    CREATE INDEX CONCURRENTLY IF NOT EXISTS feed_by_name ON feedq.feed (name, id)
"""


def upgrade() -> None:
    run_live(STATEMENTS)
