"""Moves, counters of what workers hold, cordons, selectors, and what a sweep remembers from page to page.

Runs on a live database: each statement is a transaction of its own, and none locks a table for longer than
one look through it takes. So it may be cut off anywhere, and every statement can be repeated.
"""

from alembic import op

from feedq.store.migrations import run_live

revision = "0003"
down_revision = "0002"

COLUMNS = """
    ALTER TABLE feedq.feed ADD COLUMN IF NOT EXISTS selector jsonb NOT NULL DEFAULT '{}';

    ALTER TABLE feedq.worker
        ADD COLUMN IF NOT EXISTS target_state text NOT NULL DEFAULT 'serving'
            CONSTRAINT worker_target_state CHECK (target_state IN ('serving', 'cordoned', 'drained')),
        ADD COLUMN IF NOT EXISTS rows_per_s double precision NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS bytes_per_s double precision NOT NULL DEFAULT 0;
    -- A heartbeat touches no indexed column: with room in the page it leaves nothing for a vacuum.
    ALTER TABLE feedq.worker SET (fillfactor = 50);

    ALTER TABLE feedq.lease
        ADD COLUMN IF NOT EXISTS weight double precision NOT NULL DEFAULT 1,
        ADD COLUMN IF NOT EXISTS promised_to uuid,
        ADD COLUMN IF NOT EXISTS moved_at timestamptz,
        ADD COLUMN IF NOT EXISTS stop_by timestamptz,
        ADD COLUMN IF NOT EXISTS held_for text,
        ADD COLUMN IF NOT EXISTS rows_per_s double precision NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS bytes_per_s double precision NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS reported_at timestamptz;

    ALTER TABLE feedq.fleet
        ADD COLUMN IF NOT EXISTS active_workers integer NOT NULL DEFAULT 1,
        ADD COLUMN IF NOT EXISTS evened_out text,
        ADD COLUMN IF NOT EXISTS waiting_after bigint NOT NULL DEFAULT 0,
        ADD COLUMN IF NOT EXISTS swept_to bigint,
        ADD COLUMN IF NOT EXISTS idle_counts jsonb NOT NULL DEFAULT '{}';
    ALTER TABLE feedq.fleet SET (fillfactor = 10);

    -- Insert-only, so that nobody waits for the row of a worker.
    CREATE TABLE IF NOT EXISTS feedq.held_change (
        worker_id uuid NOT NULL,
        feeds integer NOT NULL,
        weight double precision NOT NULL
    ) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

    CREATE TABLE IF NOT EXISTS feedq.worker_held (
        worker_id uuid PRIMARY KEY REFERENCES feedq.worker ON DELETE CASCADE,
        feeds integer NOT NULL DEFAULT 0,
        weight double precision NOT NULL DEFAULT 0,
        counted_at timestamptz
    ) WITH (fillfactor = 50);
"""

INDEXES = """
    CREATE INDEX IF NOT EXISTS lease_ready ON feedq.lease (feed_id)
        WHERE state = 'idle' AND retry_at IS NULL
            AND reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match');
    CREATE INDEX IF NOT EXISTS lease_unplaced ON feedq.lease (reason, feed_id)
        WHERE state = 'idle' AND reason IN ('no_capacity', 'no_match', 'backoff', 'paused', 'failed');
    CREATE INDEX IF NOT EXISTS lease_assigned_to ON feedq.lease (worker_id) WHERE state = 'assigned';
    CREATE INDEX IF NOT EXISTS lease_due ON feedq.lease (retry_at)
        WHERE state = 'idle' AND retry_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS lease_held_for ON feedq.lease (held_for) WHERE held_for IS NOT NULL;
    CREATE INDEX IF NOT EXISTS lease_stop_by ON feedq.lease (stop_by) WHERE state = 'stopping';
    CREATE INDEX IF NOT EXISTS lease_promised ON feedq.lease (promised_to) WHERE promised_to IS NOT NULL;
    CREATE INDEX IF NOT EXISTS lease_moved ON feedq.lease (moved_at) WHERE moved_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS lease_held_by ON feedq.lease (worker_id, running_since)
        WHERE worker_id IS NOT NULL;
    DROP INDEX IF EXISTS feedq.lease_waiting;
    DROP INDEX IF EXISTS feedq.lease_worker;
"""

# Of the statement, not of the row: an assignment of ten thousand feeds is a row a worker. Which columns a
# statement names cannot be asked for here, so a report of progress comes by as well and finds that nothing
# has changed hands.
COUNT = """
    CREATE OR REPLACE FUNCTION feedq.count_held() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO feedq.held_change (worker_id, feeds, weight)
            SELECT worker_id, count(*), sum(weight) FROM after_it
            WHERE worker_id IS NOT NULL GROUP BY worker_id;
        ELSIF TG_OP = 'DELETE' THEN
            INSERT INTO feedq.held_change (worker_id, feeds, weight)
            SELECT worker_id, -count(*), -sum(weight) FROM before_it
            WHERE worker_id IS NOT NULL GROUP BY worker_id;
        ELSE
            INSERT INTO feedq.held_change (worker_id, feeds, weight)
            SELECT worker_id, sum(n), sum(w) FROM (
                SELECT worker_id, count(*) AS n, sum(weight) AS w FROM after_it
                WHERE worker_id IS NOT NULL GROUP BY worker_id
                UNION ALL
                SELECT worker_id, -count(*), -sum(weight) FROM before_it
                WHERE worker_id IS NOT NULL GROUP BY worker_id
            ) changes
            GROUP BY worker_id HAVING sum(n) <> 0 OR abs(sum(w)) > 1e-6;
        END IF;
        RETURN NULL;
    END $body$
"""

TRIGGERS = """
    CREATE OR REPLACE TRIGGER lease_held_insert AFTER INSERT ON feedq.lease
        REFERENCING NEW TABLE AS after_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();
    CREATE OR REPLACE TRIGGER lease_held_update AFTER UPDATE ON feedq.lease
        REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
        FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();
    CREATE OR REPLACE TRIGGER lease_held_delete AFTER DELETE ON feedq.lease
        REFERENCING OLD TABLE AS before_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();
"""

# One statement sees one moment: changes that it does not count yet keep their line in held_change.
RECOUNT = """
    WITH counted_now AS (DELETE FROM feedq.held_change), held AS (
        SELECT worker_id, count(*) AS feeds, sum(weight) AS weight FROM feedq.lease
        WHERE worker_id IS NOT NULL GROUP BY worker_id
    )
    INSERT INTO feedq.worker_held (worker_id, feeds, weight) SELECT * FROM held
    ON CONFLICT (worker_id) DO UPDATE SET feeds = excluded.feeds, weight = excluded.weight
"""

WEIGHTS_PAGE = 10_000
WEIGHTS = """
    UPDATE feedq.lease l SET weight = f.weight FROM feedq.feed f
    WHERE f.id = l.feed_id AND l.weight <> f.weight AND f.id BETWEEN {first} AND {last}
"""
STOP_BY = """
    UPDATE feedq.lease SET stop_by = clock_timestamp() + interval '30 seconds'
    WHERE state = 'stopping' AND stop_by IS NULL
"""


def upgrade() -> None:
    run_live(COLUMNS, INDEXES, STOP_BY)
    newest = op.get_bind().exec_driver_sql("SELECT coalesce(max(id), 0) FROM feedq.feed").scalar_one()
    pages = range(1, newest + 1, WEIGHTS_PAGE)
    weights = (WEIGHTS.format(first=first, last=first + WEIGHTS_PAGE - 1) for first in pages)
    run_live(*weights, COUNT, TRIGGERS, RECOUNT)
