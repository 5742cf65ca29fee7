"""What a checkpoint in a sink is known by: the feed, for good, and the installation.

Ids of feeds declared from here on begin at a number of this installation's own, so that no other one, and no
control database made anew, gives out the same.
"""

import secrets

from feedq.store.migrations import run_live

revision = "0012"
down_revision = "0011"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.installation (
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        is_this boolean NOT NULL DEFAULT true CONSTRAINT installation_is_one CHECK (is_this),
        made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (is_this)
    );

    INSERT INTO feedq.installation DEFAULT VALUES ON CONFLICT DO NOTHING;

    ALTER TABLE feedq.feed ADD COLUMN IF NOT EXISTS uuid uuid NOT NULL DEFAULT gen_random_uuid();

    CREATE UNIQUE INDEX IF NOT EXISTS feed_uuid ON feedq.feed (uuid)
"""
RANGE_BITS = 24
"""Feeds that an installation can declare before it comes to the numbers of another one, as a power of two."""
RANGES = 2**26
"""Ids stay below 2**50, which is exact wherever a number is a double."""


def upgrade() -> None:
    first = (1 + secrets.randbelow(RANGES - 1)) << RANGE_BITS
    run_live(STATEMENTS, f"ALTER TABLE feedq.feed ALTER COLUMN id RESTART WITH {first}")
