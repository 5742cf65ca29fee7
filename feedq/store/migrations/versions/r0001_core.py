"""Feeds, leases, workers, history, the fleet row and the beat's leader row."""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE feedq.feed (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            name text NOT NULL,
            tenant text NOT NULL DEFAULT '',
            connector text NOT NULL,
            source jsonb NOT NULL,
            sink jsonb NOT NULL,
            labels jsonb NOT NULL DEFAULT '{}',
            weight double precision NOT NULL DEFAULT 1 CONSTRAINT feed_weight CHECK (weight > 0),
            target_state text NOT NULL DEFAULT 'running'
                CONSTRAINT feed_target_state CHECK (target_state IN ('running', 'paused')),
            generation integer NOT NULL DEFAULT 1,
            dirty boolean NOT NULL DEFAULT true,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            removed_at timestamptz
        );
        -- A removed feed keeps its row until nobody streams it, and its name is free at once.
        CREATE UNIQUE INDEX feed_name ON feedq.feed (name) WHERE removed_at IS NULL;
        CREATE INDEX feed_dirty ON feedq.feed (id) WHERE dirty;

        CREATE TABLE feedq.worker (
            id uuid PRIMARY KEY,
            name text NOT NULL,
            queue text NOT NULL,
            capacity integer NOT NULL CONSTRAINT worker_capacity CHECK (capacity >= 0),
            labels jsonb NOT NULL DEFAULT '{}',
            host text NOT NULL,
            pid integer NOT NULL,
            version text NOT NULL,
            state text NOT NULL DEFAULT 'active'
                CONSTRAINT worker_state CHECK (state IN ('active', 'draining', 'gone')),
            lock_key integer GENERATED ALWAYS AS IDENTITY (CYCLE) NOT NULL,
            session_locks boolean NOT NULL DEFAULT false,
            started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz NOT NULL,
            suspected_at timestamptz,
            feeds integer NOT NULL DEFAULT 0,
            cpu double precision NOT NULL DEFAULT 0,
            rss bigint NOT NULL DEFAULT 0,
            loop_lag_s double precision NOT NULL DEFAULT 0
        );
        CREATE INDEX worker_live ON feedq.worker (id) WHERE state <> 'gone';

        CREATE TABLE feedq.lease (
            feed_id bigint PRIMARY KEY REFERENCES feedq.feed ON DELETE CASCADE,
            epoch bigint NOT NULL DEFAULT 0,
            state text NOT NULL DEFAULT 'idle'
                CONSTRAINT lease_state CHECK (state IN ('idle', 'assigned', 'running', 'stopping')),
            reason text DEFAULT 'new',
            worker_id uuid REFERENCES feedq.worker,
            generation integer NOT NULL DEFAULT 0,
            assigned_at timestamptz,
            running_since timestamptz,
            retry_at timestamptz,
            attempts integer NOT NULL DEFAULT 0,
            last_error text,
            last_error_at timestamptz,
            connected boolean NOT NULL DEFAULT false,
            stalled boolean NOT NULL DEFAULT false,
            records_total bigint NOT NULL DEFAULT 0,
            bytes_total bigint NOT NULL DEFAULT 0,
            dead_letters_total bigint NOT NULL DEFAULT 0,
            last_record_at timestamptz,
            cursor jsonb,
            CONSTRAINT lease_owner CHECK ((state = 'idle') = (worker_id IS NULL))
        -- Progress is written often and touches no indexed column: there is room for it within the page.
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
        CREATE INDEX lease_waiting ON feedq.lease (feed_id)
            WHERE state = 'idle' AND reason NOT IN ('paused', 'failed', 'removed');
        CREATE INDEX lease_assigned ON feedq.lease (assigned_at) WHERE state = 'assigned';
        CREATE INDEX lease_stopping ON feedq.lease (worker_id) WHERE state = 'stopping';
        CREATE INDEX lease_worker ON feedq.lease (worker_id) WHERE worker_id IS NOT NULL;

        CREATE TABLE feedq.event (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            kind text NOT NULL,
            feed_id bigint,
            worker_id uuid,
            epoch bigint,
            detail jsonb NOT NULL DEFAULT '{}'
        );
        CREATE INDEX event_feed ON feedq.event (feed_id, id) WHERE feed_id IS NOT NULL;
        CREATE INDEX event_at ON feedq.event USING brin (at);

        CREATE TABLE feedq.fleet (
            id smallint PRIMARY KEY DEFAULT 1 CONSTRAINT fleet_one_row CHECK (id = 1),
            alive_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            alive_since timestamptz NOT NULL DEFAULT clock_timestamp(),
            pass_at timestamptz,
            pass_seq bigint NOT NULL DEFAULT 0,
            sweep_at timestamptz
        );
        INSERT INTO feedq.fleet DEFAULT VALUES;

        -- The elected beat, beside its session lock: the expiry is what replaces a frozen leader.
        CREATE TABLE feedq.leader (
            name text PRIMARY KEY,
            holder uuid NOT NULL,
            host text NOT NULL,
            pid integer NOT NULL,
            backend_pid integer NOT NULL,
            elected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz NOT NULL
        );
    """)
