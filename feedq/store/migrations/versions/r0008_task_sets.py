"""Which tasks workers know, so that each claims only runs that it can do; and runs in lanes by what they ask for.

Runs on a live database, as 0003 does: a statement at a time, and each can be repeated.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

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
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for statement in filter(str.strip, STATEMENTS.split(";")):
            op.execute(statement)
