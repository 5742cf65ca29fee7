"""Schedules, their runs, the limits of job queues, and how many runs a worker takes.

What is there already is touched only by a column with a constant default, which rewrites nothing.
"""

from feedq.store.migrations import run_live

revision = "0005"
down_revision = "0004"

TABLES = """
    ALTER TABLE feedq.worker ADD COLUMN IF NOT EXISTS job_slots integer NOT NULL DEFAULT 0;

    -- One for the whole cluster, so that it grows whatever becomes of a run.
    CREATE SEQUENCE IF NOT EXISTS feedq.run_fence;

    CREATE TABLE IF NOT EXISTS feedq.schedule (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        -- In the order of bytes, as its index is, whatever language the database speaks: pages go by it.
        name text COLLATE "C" NOT NULL,
        job jsonb NOT NULL,
        timing jsonb NOT NULL,
        policy jsonb NOT NULL DEFAULT '{}',
        state text NOT NULL DEFAULT 'active'
            CONSTRAINT schedule_state CHECK (state IN ('active', 'paused')),
        paused_until timestamptz,
        pause_reason text,
        generation integer NOT NULL DEFAULT 1,
        next_tick_at timestamptz,
        next_fire_at timestamptz,
        failures integer NOT NULL DEFAULT 0,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        removed_at timestamptz,
        CONSTRAINT schedule_watermark CHECK ((next_tick_at IS NULL) = (next_fire_at IS NULL))
    -- The watermark moves with every tick, and its index with it: that keeps dead rows few.
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

    CREATE TABLE IF NOT EXISTS feedq.run (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        schedule_id bigint NOT NULL REFERENCES feedq.schedule,
        kind text NOT NULL DEFAULT 'tick',
        key text NOT NULL,
        tick_at timestamptz NOT NULL,
        ticks integer NOT NULL DEFAULT 1 CONSTRAINT run_ticks CHECK (ticks > 0),
        last_tick_at timestamptz,
        due_at timestamptz NOT NULL,
        rank_at timestamptz NOT NULL,
        start_by timestamptz,
        state text NOT NULL DEFAULT 'waiting'
            CONSTRAINT run_state CHECK (state IN (
                'waiting', 'running', 'succeeded', 'failed', 'timed_out', 'lost', 'cancelled',
                'skipped_overlap', 'missed_deadline', 'missed_catchup'
            )),
        reason text,
        attempt integer NOT NULL DEFAULT 1,
        losses integer NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0,
        -- No foreign key: sessions of workers are forgotten sooner than runs, and claims must not lock them.
        worker_id uuid,
        started_at timestamptz,
        deadline_at timestamptz,
        ended_at timestamptz,
        job jsonb NOT NULL,
        queue text NOT NULL DEFAULT 'default',
        exclusive boolean NOT NULL DEFAULT true,
        segment smallint,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT run_owner CHECK ((state = 'running') = (worker_id IS NOT NULL AND ended_at IS NULL)),
        CONSTRAINT run_ended CHECK ((state IN ('waiting', 'running')) = (ended_at IS NULL))
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

    CREATE TABLE IF NOT EXISTS feedq.job_queue (
        name text PRIMARY KEY,
        rate_per_s double precision CONSTRAINT job_queue_rate CHECK (rate_per_s > 0),
        burst double precision NOT NULL DEFAULT 1 CONSTRAINT job_queue_burst CHECK (burst >= 1),
        concurrency integer CONSTRAINT job_queue_concurrency CHECK (concurrency > 0),
        tokens double precision NOT NULL DEFAULT 0,
        tokens_at timestamptz NOT NULL DEFAULT clock_timestamp()
    ) WITH (fillfactor = 50);
"""

INDEXES = """
    -- A removed schedule keeps its row as long as its history, and its name is free at once.
    CREATE UNIQUE INDEX IF NOT EXISTS schedule_name ON feedq.schedule (name) WHERE removed_at IS NULL;
    CREATE INDEX IF NOT EXISTS schedule_due ON feedq.schedule (next_fire_at)
        WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS schedule_paused_until ON feedq.schedule (paused_until)
        WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL;
    CREATE INDEX IF NOT EXISTS schedule_removed ON feedq.schedule (removed_at) WHERE removed_at IS NOT NULL;

    -- Once per tick, whoever fires it and however often.
    CREATE UNIQUE INDEX IF NOT EXISTS run_key ON feedq.run (schedule_id, key);
    CREATE INDEX IF NOT EXISTS run_of_schedule ON feedq.run (schedule_id, id);
    -- What people look for first.
    CREATE INDEX IF NOT EXISTS run_unsuccessful ON feedq.run (id)
        WHERE state IN ('failed', 'timed_out', 'lost', 'cancelled', 'skipped_overlap', 'missed_deadline',
            'missed_catchup');
    -- The overlap policies, whoever claims at the same moment.
    CREATE UNIQUE INDEX IF NOT EXISTS run_one_at_a_time ON feedq.run (schedule_id)
        WHERE state = 'running' AND exclusive;
    CREATE INDEX IF NOT EXISTS run_running ON feedq.run (schedule_id, fence) WHERE state = 'running';
    CREATE INDEX IF NOT EXISTS run_waiting ON feedq.run (queue, rank_at)
        WHERE state = 'waiting' AND NOT (exclusive AND kind = 'backfill');
    -- A backfill waits in a line of its own.
    CREATE INDEX IF NOT EXISTS run_backfill ON feedq.run (schedule_id, tick_at)
        WHERE state = 'waiting' AND exclusive AND kind = 'backfill';
    CREATE INDEX IF NOT EXISTS run_line ON feedq.run (schedule_id, tick_at)
        WHERE state = 'waiting' AND exclusive;
    CREATE INDEX IF NOT EXISTS run_start_by ON feedq.run (start_by)
        WHERE state = 'waiting' AND start_by IS NOT NULL;
    CREATE INDEX IF NOT EXISTS run_in_queue ON feedq.run (queue) WHERE state = 'running';
    CREATE INDEX IF NOT EXISTS run_waiting_due ON feedq.run (due_at) WHERE state = 'waiting';
    CREATE INDEX IF NOT EXISTS run_unfinished ON feedq.run (schedule_id, state)
        WHERE state IN ('waiting', 'running');
    CREATE INDEX IF NOT EXISTS run_held_by ON feedq.run (worker_id) WHERE state = 'running';
    CREATE INDEX IF NOT EXISTS run_deadline ON feedq.run (deadline_at) WHERE state = 'running';
    CREATE INDEX IF NOT EXISTS run_ended_at ON feedq.run (ended_at) WHERE ended_at IS NOT NULL;
"""


def upgrade() -> None:
    run_live(TABLES, INDEXES)
