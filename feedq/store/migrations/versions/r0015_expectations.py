"""What is expected of feeds, what is not so, and the alerts about it; and where feeds begin."""

from feedq.store.migrations import run_live

revision = "0015"
down_revision = "0014"

STATEMENTS = """
    ALTER TABLE feedq.feed
        ADD COLUMN IF NOT EXISTS initial_cursor jsonb,
        ADD COLUMN IF NOT EXISTS expect jsonb NOT NULL DEFAULT '{}';

    CREATE INDEX IF NOT EXISTS feed_expect ON feedq.feed (id) WHERE expect <> '{}';

    CREATE TABLE IF NOT EXISTS feedq.unmet (
        feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
        kind text NOT NULL,
        since timestamptz NOT NULL,
        bound jsonb NOT NULL,
        found double precision NOT NULL,
        PRIMARY KEY (feed_id, kind)
    );

    CREATE TABLE IF NOT EXISTS feedq.landed_sample (
        feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
        kind text NOT NULL,
        at timestamptz NOT NULL,
        records bigint NOT NULL,
        dead_letters bigint NOT NULL,
        PRIMARY KEY (feed_id, kind, at)
    );

    CREATE TABLE IF NOT EXISTS feedq.alert (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        feed_id bigint NOT NULL,
        feed text NOT NULL,
        tenant text NOT NULL,
        kind text NOT NULL,
        begins boolean NOT NULL,
        since timestamptz NOT NULL,
        bound jsonb NOT NULL,
        found double precision NOT NULL
    );

    CREATE TABLE IF NOT EXISTS feedq.alert_target (
        target text PRIMARY KEY,
        sent_to bigint NOT NULL,
        sent_at timestamptz,
        failures integer NOT NULL DEFAULT 0,
        error text
    )
"""


def upgrade() -> None:
    run_live(STATEMENTS)
