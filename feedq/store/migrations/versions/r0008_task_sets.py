"""The tasks that workers know, so that each claims only runs that it can do; and an index of what waits."""

from feedq.store.migrations import run_live

revision = "0008"
down_revision = "0006"

STATEMENTS = """
    CREATE TABLE IF NOT EXISTS feedq.task_set (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        digest text NOT NULL CONSTRAINT task_set_digest UNIQUE,
        tasks text[] NOT NULL,
        used_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );

    ALTER TABLE feedq.worker ADD COLUMN IF NOT EXISTS task_set_id bigint REFERENCES feedq.task_set;

    CREATE INDEX IF NOT EXISTS run_lane ON feedq.run
        (queue, (coalesce(job ->> 'task', '')), (coalesce(job -> 'selector', '{}'::jsonb)), rank_at)
        WHERE state = 'waiting' AND NOT (exclusive AND kind = 'backfill');
    DROP INDEX IF EXISTS feedq.run_waiting;
    DROP INDEX IF EXISTS feedq.run_deadline;
"""


def upgrade() -> None:
    run_live(STATEMENTS)
