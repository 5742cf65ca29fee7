-- The control tables, and the triggers on them. docs/reference/control-tables.md says what each column means; a test
-- compares the two.
--
-- The first migration runs this file, and no later one does: what a release changes is a migration of its own.

-- Statements on these tables read no other clock, so whoever replaces these two functions moves all of feedq
-- through time, as tests and the simulation do. They belong to the tables, which need them for their defaults,
-- and not to a version of the protocol. The planner puts what they call in their place.
--
-- One is not enough. An index can be searched only for a value that is stable, so `now` finds the rows that are
-- due or old. But a function of several statements, or one that has waited for a lock, sees what others wrote
-- meanwhile. By `now` these rows would lie in the future, which is the sign of a clock that was put back, and
-- what the function itself writes would seem older than it is. So `clock` stamps rows and judges those that
-- others stamp.

-- When the statement began that the client sent.
CREATE FUNCTION feedq.now() RETURNS timestamptz LANGUAGE sql STABLE RETURN statement_timestamp();

-- This moment.
CREATE FUNCTION feedq.clock() RETURNS timestamptz LANGUAGE sql VOLATILE RETURN clock_timestamp();

-- One row: who this control database is, beside others whose feeds land in the same sinks.
CREATE TABLE feedq.installation (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    is_this boolean NOT NULL DEFAULT true CONSTRAINT installation_is_one CHECK (is_this),
    PRIMARY KEY (is_this)
);
INSERT INTO feedq.installation DEFAULT VALUES;

-- Desired state: the feeds that people, catalogs and backfills have declared.
CREATE TABLE feedq.feed (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    tenant text NOT NULL DEFAULT '',
    connector text NOT NULL,
    source jsonb NOT NULL,
    -- Not jsonb, which sorts the names of columns: a table is made in the order of the manifest.
    sink json NOT NULL,
    labels jsonb NOT NULL DEFAULT '{}',
    weight double precision NOT NULL DEFAULT 1 CONSTRAINT feed_weight CHECK (weight > 0),
    process text NOT NULL DEFAULT 'shared' CONSTRAINT feed_process CHECK (process IN ('shared', 'own')),
    target_state text NOT NULL DEFAULT 'running'
        CONSTRAINT feed_target_state CHECK (target_state IN ('running', 'paused')),
    generation integer NOT NULL DEFAULT 1,
    stream_generation integer NOT NULL DEFAULT 1,
    dirty boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT feedq.clock(),
    updated_at timestamptz NOT NULL DEFAULT feedq.clock(),
    removed_at timestamptz,
    selector jsonb NOT NULL DEFAULT '{}',
    uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    catalog text,
    initial_cursor jsonb,
    expect jsonb NOT NULL DEFAULT '{}',
    parent bigint,
    backfill jsonb,
    -- What a text is searched in, so that a search need not fold and write a hundred thousand of them.
    search text COLLATE "C" NOT NULL GENERATED ALWAYS AS (lower(
        name || chr(1) || tenant || chr(1) || connector || chr(1) || CAST(labels AS text)
    ) COLLATE "C") STORED
);
-- A removed feed keeps its row until nobody streams it, and its name is free at once.
CREATE UNIQUE INDEX feed_name ON feedq.feed (name) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX feed_uuid ON feedq.feed (uuid);
-- Pages of feeds, removed ones included.
CREATE INDEX feed_by_name ON feedq.feed (name);
CREATE INDEX feed_dirty ON feedq.feed (id) WHERE dirty;
-- Feeds of a tenant are counted while a rate limit is held.
CREATE INDEX feed_tenant ON feedq.feed (tenant) WHERE tenant <> '';
CREATE INDEX feed_of_catalog ON feedq.feed (catalog) WHERE catalog IS NOT NULL;
CREATE INDEX feed_expect ON feedq.feed (id) WHERE expect <> '{}';
CREATE INDEX feed_parent ON feedq.feed (parent) WHERE parent IS NOT NULL;

-- Whoever changes what is declared, by a command or by hand, has the next pass look at the feed, and wakes it.
--
-- An edit starts a stream anew only if it makes another one of it: a source that cannot resume loses records
-- each time. Labels, weights and most expectations do not concern the worker. A generation that changes
-- nothing else asks for a restart.
CREATE FUNCTION feedq.follow_edit() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    is_another constant boolean := (NEW.tenant, NEW.connector, NEW.source, NEW.sink::jsonb, NEW.selector,
            NEW.process, NEW.target_state, NEW.initial_cursor, NEW.expect -> 'max_event_lag')
        IS DISTINCT FROM (OLD.tenant, OLD.connector, OLD.source, OLD.sink::jsonb, OLD.selector,
            OLD.process, OLD.target_state, OLD.initial_cursor, OLD.expect -> 'max_event_lag');
    is_edited constant boolean := is_another
        OR (NEW.labels, NEW.weight, NEW.expect) IS DISTINCT FROM (OLD.labels, OLD.weight, OLD.expect);
BEGIN
    IF is_edited AND NEW.generation = OLD.generation THEN
        NEW.generation := OLD.generation + 1;
    END IF;
    IF NEW.generation <> OLD.generation AND (is_another OR NOT is_edited) THEN
        NEW.stream_generation := NEW.generation;
    END IF;
    NEW.dirty := true;
    PERFORM pg_notify('feedq_wake', '');
    RETURN NEW;
END $body$;
CREATE TRIGGER feed_edited BEFORE UPDATE OF tenant, connector, source, sink, labels, weight, process, target_state,
    generation, removed_at, selector, initial_cursor, expect ON feedq.feed FOR EACH ROW
    WHEN ((NEW.tenant, NEW.connector, NEW.source, NEW.sink::jsonb, NEW.labels, NEW.weight, NEW.process,
            NEW.target_state, NEW.generation, NEW.removed_at IS NULL, NEW.selector, NEW.initial_cursor, NEW.expect)
        IS DISTINCT FROM (OLD.tenant, OLD.connector, OLD.source, OLD.sink::jsonb, OLD.labels, OLD.weight,
            OLD.process, OLD.target_state, OLD.generation, OLD.removed_at IS NULL, OLD.selector, OLD.initial_cursor,
            OLD.expect))
    EXECUTE FUNCTION feedq.follow_edit();

-- Whoever changes a feed, one or thousands, by a command or by hand, changes its backfill in the same transaction.
-- The backfill ends if its cursors would mean something else from now on, or if its rows would be duplicates.
CREATE FUNCTION feedq.follow_parent() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    WITH followed AS (
        UPDATE feedq.feed f SET
            name = NEW.name || '~backfill', tenant = NEW.tenant, labels = NEW.labels, weight = NEW.weight,
            selector = NEW.selector, target_state = NEW.target_state, sink = NEW.sink,
            source = NEW.source || jsonb_build_object('limits', f.source -> 'limits'),
            removed_at = CASE WHEN NEW.removed_at IS NOT NULL OR NEW.connector <> f.connector
                    OR coalesce(NEW.sink::jsonb -> 'key', '[]') = '[]' THEN feedq.clock() END,
            generation = f.generation + 1, updated_at = feedq.clock()
        WHERE f.parent = NEW.id AND f.removed_at IS NULL
        RETURNING f.removed_at
    )
    INSERT INTO feedq.event (kind, feed_id, detail)
    SELECT 'backfill_cancelled', NEW.id, jsonb_build_object('why',
        CASE WHEN NEW.removed_at IS NULL THEN 'feed edited' ELSE 'feed removed' END)
    FROM followed WHERE removed_at IS NOT NULL;
    RETURN NULL;
END $body$;
CREATE TRIGGER feed_followed AFTER UPDATE ON feedq.feed FOR EACH ROW
    WHEN (NEW.parent IS NULL
        AND (NEW.generation <> OLD.generation OR NEW.removed_at IS DISTINCT FROM OLD.removed_at))
    EXECUTE FUNCTION feedq.follow_parent();

-- The Celery tasks that workers know, so that each claims only runs that it can do.
CREATE TABLE feedq.task_set (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest text NOT NULL CONSTRAINT task_set_digest UNIQUE,
    tasks text[] NOT NULL,
    used_at timestamptz NOT NULL DEFAULT feedq.clock()
);

-- Worker sessions: a process that restarts, or comes back after it was declared gone, is a new row.
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
    started_at timestamptz NOT NULL DEFAULT feedq.clock(),
    heartbeat_at timestamptz NOT NULL DEFAULT feedq.clock(),
    expires_at timestamptz NOT NULL,
    suspected_at timestamptz,
    feeds integer NOT NULL DEFAULT 0,
    cpu double precision NOT NULL DEFAULT 0,
    rss bigint NOT NULL DEFAULT 0,
    loop_lag_s double precision NOT NULL DEFAULT 0,
    target_state text NOT NULL DEFAULT 'serving'
        CONSTRAINT worker_target_state CHECK (target_state IN ('serving', 'cordoned', 'drained')),
    rows_per_s double precision NOT NULL DEFAULT 0,
    bytes_per_s double precision NOT NULL DEFAULT 0,
    job_slots integer NOT NULL DEFAULT 0,
    sinks_up text[] NOT NULL DEFAULT '{}',
    sinks_down text[] NOT NULL DEFAULT '{}',
    loss text,
    task_set_id bigint REFERENCES feedq.task_set
-- A heartbeat touches no indexed column: with room in the page it leaves nothing for a vacuum.
) WITH (fillfactor = 50);
CREATE INDEX worker_live ON feedq.worker (id) WHERE state <> 'gone';

-- Actual state: who owns each feed under which epoch until when, and what placement needs to know of it.
CREATE TABLE feedq.lease (
    feed_id bigint PRIMARY KEY REFERENCES feedq.feed ON DELETE CASCADE,
    epoch bigint NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'idle'
        CONSTRAINT lease_state CHECK (state IN ('idle', 'assigned', 'running', 'stopping')),
    reason text DEFAULT 'new',
    worker_id uuid REFERENCES feedq.worker,
    generation integer NOT NULL DEFAULT 0,
    running_since timestamptz,
    due_at timestamptz,
    weight double precision NOT NULL DEFAULT 1,
    promised_to uuid,
    moved_at timestamptz,
    held_for text,
    avoid jsonb NOT NULL DEFAULT '{}',
    blamed integer NOT NULL DEFAULT 0,
    blamed_at timestamptz,
    blame text,
    quarantined boolean NOT NULL DEFAULT false,
    lost_worker uuid,
    lost_at timestamptz,
    CONSTRAINT lease_owner CHECK ((state = 'idle') = (worker_id IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- What a pass may place now, and what it may place later, and why.
CREATE INDEX lease_ready ON feedq.lease (feed_id)
    WHERE state = 'idle' AND due_at IS NULL
        AND reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match');
CREATE INDEX lease_unplaced ON feedq.lease (feed_id)
    WHERE state = 'idle' AND reason IN ('no_capacity', 'no_match');
CREATE INDEX lease_held_for ON feedq.lease (held_for) WHERE held_for IS NOT NULL;
-- What is to be tried again, and what is overdue.
CREATE INDEX lease_due ON feedq.lease (state, due_at) WHERE due_at IS NOT NULL;
-- What a worker has, and what waits for it to be claimed or let go of; every heartbeat looks at the latter.
CREATE INDEX lease_held_by ON feedq.lease (worker_id, running_since) WHERE worker_id IS NOT NULL;
CREATE INDEX lease_summons ON feedq.lease (worker_id, state) WHERE state IN ('assigned', 'stopping');
-- Moves under way.
CREATE INDEX lease_promised ON feedq.lease (promised_to) WHERE promised_to IS NOT NULL;
CREATE INDEX lease_moved ON feedq.lease (moved_at) WHERE moved_at IS NOT NULL;
-- Feeds in quarantine, and feeds that have failed on some workers.
CREATE INDEX lease_quarantined ON feedq.lease (feed_id) WHERE quarantined;
CREATE INDEX lease_avoid ON feedq.lease (feed_id) WHERE avoid <> '{}';

-- How each feed fares, as its owners report it: one row a feed, made with its lease.
CREATE TABLE feedq.progress (
    feed_id bigint PRIMARY KEY REFERENCES feedq.feed ON DELETE CASCADE,
    epoch bigint NOT NULL DEFAULT 0,
    connected boolean NOT NULL DEFAULT false,
    stalled boolean NOT NULL DEFAULT false,
    attempts integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    records_total bigint NOT NULL DEFAULT 0,
    bytes_total bigint NOT NULL DEFAULT 0,
    dead_letters_total bigint NOT NULL DEFAULT 0,
    dead_letters bigint NOT NULL DEFAULT 0,
    rows_per_s double precision NOT NULL DEFAULT 0,
    bytes_per_s double precision NOT NULL DEFAULT 0,
    dead_per_s double precision NOT NULL DEFAULT 0,
    reported_at timestamptz,
    last_record_at timestamptz,
    dead_letter_at timestamptz,
    last_error_at timestamptz,
    event_at timestamptz,
    last_error text,
    dead_letter_error text,
    sink_error text,
    event_fault text,
    -- As its source wrote it, which jsonb would not keep.
    cursor json,
    noticed jsonb
-- Written often, and no column of it is indexed: with room in the page it leaves little for a vacuum.
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- What each worker holds, counted, so that a pass need not count leases.
CREATE TABLE feedq.worker_held (
    worker_id uuid PRIMARY KEY REFERENCES feedq.worker ON DELETE CASCADE,
    feeds integer NOT NULL DEFAULT 0,
    weight double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What has changed of these counts since the last pass. Insert-only, so that nobody waits for a worker's row.
CREATE TABLE feedq.held_change (
    worker_id uuid NOT NULL,
    feeds integer NOT NULL,
    weight double precision NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- A trigger for each statement, not for each row: an assignment of ten thousand feeds is one row for each worker.
CREATE FUNCTION feedq.count_held() RETURNS trigger LANGUAGE plpgsql AS $body$
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
END $body$;
CREATE TRIGGER lease_held_insert AFTER INSERT ON feedq.lease
    REFERENCING NEW TABLE AS after_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();
CREATE TRIGGER lease_held_update AFTER UPDATE ON feedq.lease
    REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
    FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();
CREATE TRIGGER lease_held_delete AFTER DELETE ON feedq.lease
    REFERENCING OLD TABLE AS before_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.count_held();

-- A lease is made with its row of progress. One that is idle, and does not match its feed, has the next pass look
-- at the feed, whoever left it so: an owner that released a feed that was edited while it ran, or a person at psql.
-- So nothing has to be compared from time to time.
CREATE FUNCTION feedq.follow_lease() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO feedq.progress (feed_id) SELECT feed_id FROM after_it ON CONFLICT DO NOTHING;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        UPDATE feedq.feed f SET dirty = true FROM before_it l WHERE f.id = l.feed_id;
    ELSE
        UPDATE feedq.feed f SET dirty = true FROM after_it l
        WHERE f.id = l.feed_id AND l.state = 'idle' AND (
            l.reason IS NULL OR (l.reason = 'failed' AND l.due_at IS NULL)
            OR f.removed_at IS NOT NULL OR (f.target_state = 'paused') <> (l.reason = 'paused')
            -- What has failed, or waits, did so under a declaration that was edited since.
            OR (f.stream_generation > l.generation
                AND l.reason IN ('failed', 'backoff', 'fenced', 'quarantined')));
    END IF;
    IF FOUND THEN
        PERFORM pg_notify('feedq_wake', '');
    END IF;
    RETURN NULL;
END $body$;
CREATE TRIGGER lease_followed_insert AFTER INSERT ON feedq.lease
    REFERENCING NEW TABLE AS after_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.follow_lease();
CREATE TRIGGER lease_followed_update AFTER UPDATE ON feedq.lease
    REFERENCING NEW TABLE AS after_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.follow_lease();
CREATE TRIGGER lease_followed_delete AFTER DELETE ON feedq.lease
    REFERENCING OLD TABLE AS before_it FOR EACH STATEMENT EXECUTE FUNCTION feedq.follow_lease();

-- History: what happened to feeds, workers and schedules, and who did it.
CREATE TABLE feedq.event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT feedq.clock(),
    kind text NOT NULL,
    feed_id bigint,
    worker_id uuid,
    epoch bigint,
    detail jsonb NOT NULL DEFAULT '{}',
    count integer NOT NULL DEFAULT 1,
    since timestamptz
);
CREATE INDEX event_feed ON feedq.event (feed_id, id) WHERE feed_id IS NOT NULL;
CREATE INDEX event_at ON feedq.event USING brin (at);

-- Makes one event of the same trouble of a feed again and again, as `feedq.control.store.history` says it. The
-- latest one is kept, so that events stay in the order of their ids. What somebody else is trimming at this moment
-- is not folded: to wait for a pass could be a deadlock.
CREATE FUNCTION feedq.fold_event() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    tries constant text[] := '{lease_assigned,lease_claimed,lease_raised}';
    before feedq.event;
    begins bigint;
BEGIN
    SELECT * INTO before FROM feedq.event
    WHERE feed_id = NEW.feed_id AND kind <> ALL (tries) ORDER BY id DESC LIMIT 1;
    IF before.id IS NULL OR before.kind <> NEW.kind OR before.at < NEW.at - interval '1 hour'
        OR before.detail ->> 'reason' IS DISTINCT FROM NEW.detail ->> 'reason'
    THEN
        RETURN NEW;
    END IF;
    PERFORM FROM feedq.event WHERE id = before.id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    SELECT coalesce(max(id), 0) INTO begins FROM feedq.event
    WHERE feed_id = NEW.feed_id AND id < before.id AND kind <> ALL (tries);
    WITH tried AS (
        SELECT id, kind, at, since, count FROM feedq.event
        WHERE feed_id = NEW.feed_id AND id > begins AND kind = ANY (tries) FOR UPDATE SKIP LOCKED
    ), latest AS (
        SELECT kind, max(id) AS id, sum(count) AS count, min(coalesce(since, at)) AS since
        FROM tried GROUP BY kind HAVING count(*) > 1
    ), dropped AS (
        DELETE FROM feedq.event e USING tried, latest
        WHERE e.id = tried.id AND tried.kind = latest.kind AND tried.id <> latest.id
    )
    UPDATE feedq.event e SET count = latest.count, since = latest.since FROM latest WHERE e.id = latest.id;
    DELETE FROM feedq.event WHERE id = before.id;
    NEW.count := before.count + NEW.count;
    NEW.since := coalesce(before.since, before.at);
    RETURN NEW;
END $body$;
CREATE TRIGGER event_fold BEFORE INSERT ON feedq.event FOR EACH ROW
WHEN (NEW.feed_id IS NOT NULL AND (NEW.kind IN ('lease_overdue', 'sink_rewound') OR (
    NEW.kind = 'lease_released'
    AND NEW.detail ->> 'reason' IN ('backoff', 'fenced', 'quarantined'))))
EXECUTE FUNCTION feedq.fold_event();

-- Feeds that are not as expected.
CREATE TABLE feedq.unmet (
    feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
    kind text NOT NULL,
    since timestamptz NOT NULL,
    bound jsonb NOT NULL,
    found double precision NOT NULL,
    why text,
    PRIMARY KEY (feed_id, kind)
);

-- Counters of feeds at moments of the past, for expectations over a time.
CREATE TABLE feedq.landed_sample (
    feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    records bigint NOT NULL,
    dead_letters bigint NOT NULL,
    PRIMARY KEY (feed_id, kind, at)
);

-- Counters of all feeds once a minute, a thousand feeds a row, for charts of the last hour and day.
CREATE TABLE feedq.landed_count (
    chunk bigint NOT NULL,
    at timestamptz NOT NULL,
    daily boolean NOT NULL,
    places smallint[] NOT NULL,
    records bigint[] NOT NULL,
    dead_letters bigint[] NOT NULL,
    silent_s real[] NOT NULL,
    PRIMARY KEY (chunk, at)
);

-- Alerts: what has begun or ended not to be as expected, in the order in which it is to be sent.
CREATE TABLE feedq.alert (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT feedq.clock(),
    feed text NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    begins boolean NOT NULL,
    since timestamptz NOT NULL,
    bound jsonb NOT NULL,
    found double precision NOT NULL,
    why text
);

-- Who is sent alerts, and how far.
CREATE TABLE feedq.alert_target (
    target text PRIMARY KEY,
    sent_to bigint NOT NULL,
    sent_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    error text
);

-- Who listens to the records of a feed.
CREATE TABLE feedq.tap (
    id uuid PRIMARY KEY,
    feed_id bigint NOT NULL REFERENCES feedq.feed ON DELETE CASCADE,
    listened_at timestamptz NOT NULL DEFAULT feedq.clock()
);

-- What listeners are shown. Without a reference to the feed: to check it, a worker would wait for whoever has
-- that row locked.
CREATE UNLOGGED TABLE feedq.tap_part (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    feed_id bigint NOT NULL,
    epoch bigint NOT NULL,
    worker text NOT NULL,
    records text NOT NULL,
    left_out bigint NOT NULL,
    refused bigint NOT NULL
);
CREATE INDEX tap_part_feed ON feedq.tap_part (feed_id, id);

-- One row: what belongs to no single feed or worker.
CREATE TABLE feedq.fleet (
    id smallint PRIMARY KEY DEFAULT 1 CONSTRAINT fleet_one_row CHECK (id = 1),
    alive_at timestamptz NOT NULL DEFAULT feedq.clock(),
    alive_since timestamptz NOT NULL DEFAULT feedq.clock(),
    pass_at timestamptz,
    pass_seq bigint NOT NULL DEFAULT 0,
    sweep_at timestamptz,
    active_workers integer NOT NULL DEFAULT 1,
    evened_out text,
    waiting_after bigint NOT NULL DEFAULT 0,
    swept_to bigint,
    server_started_at timestamptz
) WITH (fillfactor = 10);
INSERT INTO feedq.fleet DEFAULT VALUES;

-- The elected beat, beside its session lock: the expiry is what replaces a frozen leader.
CREATE TABLE feedq.leader (
    name text PRIMARY KEY,
    holder uuid NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    backend_pid integer NOT NULL,
    elected_at timestamptz NOT NULL DEFAULT feedq.clock(),
    expires_at timestamptz NOT NULL
);

-- Tokens of the HTTP API, by their hashes.
CREATE TABLE feedq.token (
    name text PRIMARY KEY,
    hash bytea NOT NULL CONSTRAINT token_hash UNIQUE,
    role text NOT NULL CONSTRAINT token_role CHECK (role IN ('viewer', 'operator', 'admin')),
    tenant text,
    created_at timestamptz NOT NULL DEFAULT feedq.clock(),
    expires_at timestamptz NOT NULL
);

-- Declared schedules: which job is to be run, and when.
CREATE TABLE feedq.schedule (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- In the order of bytes, as its index is, whatever language the database speaks: pages go by it.
    name text COLLATE "C" NOT NULL,
    declaration jsonb NOT NULL,
    state text NOT NULL DEFAULT 'active' CONSTRAINT schedule_state CHECK (state IN ('active', 'paused')),
    paused_until timestamptz,
    pause_reason text,
    generation integer NOT NULL DEFAULT 1,
    next_tick_at timestamptz,
    next_fire_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT feedq.clock(),
    updated_at timestamptz NOT NULL DEFAULT feedq.clock(),
    removed_at timestamptz,
    CONSTRAINT schedule_watermark CHECK ((next_tick_at IS NULL) = (next_fire_at IS NULL))
-- The watermark moves with every tick, and its index with it: that keeps dead rows few.
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- A removed schedule keeps its row as long as its history, and its name is free at once.
CREATE UNIQUE INDEX schedule_name ON feedq.schedule (name) WHERE removed_at IS NULL;
CREATE INDEX schedule_due ON feedq.schedule (next_fire_at)
    WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL;
CREATE INDEX schedule_paused_until ON feedq.schedule (paused_until)
    WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL;
CREATE INDEX schedule_removed ON feedq.schedule (removed_at) WHERE removed_at IS NOT NULL;
-- Schedules with a history of their own length.
CREATE INDEX schedule_keeping ON feedq.schedule (id)
    WHERE jsonb_exists(declaration, 'keep');

-- Fencing tokens of runs. One sequence for all, so that it grows whatever becomes of a run.
CREATE SEQUENCE feedq.run_fence;

-- Runs of schedules: a tick, a trigger, or a tick of a backfill, whatever became of it.
CREATE TABLE feedq.run (
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
            'buffered', 'waiting', 'running', 'succeeded', 'failed', 'timed_out', 'lost', 'cancelled',
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
    CONSTRAINT run_owner CHECK ((state = 'running') = (worker_id IS NOT NULL AND ended_at IS NULL)),
    CONSTRAINT run_ended CHECK ((state IN ('buffered', 'waiting', 'running')) = (ended_at IS NULL)),
    CONSTRAINT run_buffered CHECK (exclusive OR state <> 'buffered')
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- One run for each tick, whoever fires it and however often.
CREATE UNIQUE INDEX run_key ON feedq.run (schedule_id, key);
CREATE INDEX run_of_schedule ON feedq.run (schedule_id, id);
CREATE INDEX run_unfinished ON feedq.run (schedule_id, state)
    WHERE state IN ('buffered', 'waiting', 'running');
-- The overlap policies: one run of a schedule at a time, and the others in the order of their ticks, those of
-- backfills last.
CREATE UNIQUE INDEX run_one_at_a_time ON feedq.run (schedule_id)
    WHERE exclusive AND state IN ('waiting', 'running');
CREATE INDEX run_turn ON feedq.run (schedule_id, fence) WHERE state IN ('waiting', 'running');
CREATE INDEX run_in_line ON feedq.run (schedule_id, (kind = 'backfill'), tick_at, id) WHERE state = 'buffered';
-- What a worker may claim.
CREATE INDEX run_lane ON feedq.run
    (queue, (coalesce(job ->> 'task', '')), (coalesce(job #> '{selector,required}', '{}'::jsonb)), rank_at)
    WHERE state = 'waiting';
CREATE INDEX run_waiting_due ON feedq.run (due_at) WHERE state = 'waiting';
CREATE INDEX run_start_by ON feedq.run (start_by)
    WHERE state IN ('buffered', 'waiting') AND start_by IS NOT NULL;
CREATE INDEX run_in_queue ON feedq.run (queue) WHERE state = 'running';
CREATE INDEX run_held_by ON feedq.run (worker_id) WHERE state = 'running';
CREATE INDEX run_ended_at ON feedq.run (ended_at) WHERE ended_at IS NOT NULL;
-- What people look for first.
CREATE INDEX run_unsuccessful ON feedq.run (id)
    WHERE state IN ('failed', 'timed_out', 'lost', 'cancelled', 'skipped_overlap', 'missed_deadline',
        'missed_catchup');

-- Limits of job queues; a queue without a row has none.
CREATE TABLE feedq.job_queue (
    name text PRIMARY KEY,
    rate_per_s double precision CONSTRAINT job_queue_rate CHECK (rate_per_s > 0),
    burst double precision NOT NULL DEFAULT 1 CONSTRAINT job_queue_burst CHECK (burst >= 1),
    concurrency integer CONSTRAINT job_queue_concurrency CHECK (concurrency > 0),
    tokens double precision NOT NULL DEFAULT 0,
    tokens_at timestamptz NOT NULL DEFAULT feedq.clock()
) WITH (fillfactor = 50);
