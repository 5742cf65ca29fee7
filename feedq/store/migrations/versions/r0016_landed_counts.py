"""What feeds have landed, minute by minute, for charts of the last hour and day."""

from feedq.store.migrations import run_live

revision = "0016"
down_revision = "0015"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.landed_count (
        chunk bigint NOT NULL,
        at timestamptz NOT NULL,
        daily boolean NOT NULL,
        places smallint[] NOT NULL,
        records bigint[] NOT NULL,
        dead_letters bigint[] NOT NULL,
        silent_s real[] NOT NULL,
        PRIMARY KEY (chunk, at)
    )
"""


def upgrade() -> None:
    run_live(STATEMENTS)
