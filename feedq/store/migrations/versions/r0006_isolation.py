"""What tells whose fault a failure is: of a feed, of a worker, or of a sink."""

from feedq.store.migrations import run_live

revision = "0006"
down_revision = "0005"

COLUMNS = """
    ALTER TABLE feedq.lease
        ADD COLUMN IF NOT EXISTS failures integer NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS avoid jsonb NOT NULL DEFAULT '{}',
        ADD COLUMN IF NOT EXISTS dead_per_s double precision NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS dead_letter_error text,
        ADD COLUMN IF NOT EXISTS dead_letter_at timestamptz,
        ADD COLUMN IF NOT EXISTS sink_error text,
        ADD COLUMN IF NOT EXISTS blamed integer NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS blamed_at timestamptz,
        ADD COLUMN IF NOT EXISTS blame text,
        ADD COLUMN IF NOT EXISTS quarantined boolean NOT NULL DEFAULT false,
        ADD COLUMN IF NOT EXISTS lost_worker uuid,
        ADD COLUMN IF NOT EXISTS lost_at timestamptz;

    ALTER TABLE feedq.worker
        ADD COLUMN IF NOT EXISTS sinks_up text[] NOT NULL DEFAULT '{}',
        ADD COLUMN IF NOT EXISTS sinks_down text[] NOT NULL DEFAULT '{}',
        ADD COLUMN IF NOT EXISTS loss text;

    CREATE INDEX IF NOT EXISTS lease_quarantined ON feedq.lease (feed_id) WHERE quarantined;
    CREATE INDEX IF NOT EXISTS lease_avoid ON feedq.lease (feed_id) WHERE avoid <> '{}';
"""


def upgrade() -> None:
    run_live(COLUMNS)
