-- Workers: their sessions register, say with each heartbeat that they live, and leave.
--
-- A worker session is one row. A process that restarts, or comes back after it was declared gone, is a new one. A
-- worker renews all that it holds with one row of its own, however many feeds that is: `expires_at` is what it may be
-- declared gone after.
--
-- Locks. A heartbeat locks the worker's row and then, once a second at most, that of the fleet, which comes last
-- everywhere. A pass locks the rows of workers that it judges, in the order of their ids, before any lease: a heartbeat
-- that came first is seen, a later one waits, and finds its worker gone.

-- Since when the database was heard from without a break. A break of more than half a ttl, or another start of the
-- server, means that nobody could renew; it may still be under way. Then nobody is declared gone before a full ttl of
-- service has given everybody the chance to renew: the first heartbeat interval may have passed before the break, and
-- the rest of the ttl must still be ahead when the first one is back.
--
-- When it was last heard of in the future, the clock was put back: what had been served by then counts all the same.
CREATE FUNCTION feedq_1.served_since(f feedq.fleet, ttl_s float8) RETURNS timestamptz LANGUAGE sql VOLATILE AS $body$
    SELECT CASE WHEN f.server_started_at IS DISTINCT FROM pg_postmaster_start_time()
            OR feedq.clock() - f.alive_at > make_interval(secs => ttl_s / 2)
        THEN feedq.clock()
        ELSE f.alive_since - greatest(f.alive_at - feedq.clock(), interval '0') END
$body$;

-- Writes down that the database was heard from: at most once a second, so that a thousand heartbeats do not queue for
-- one row. With a short ttl more often, or every stamp would look like the end of a silence.
CREATE FUNCTION feedq_1.stamp_alive(ttl_s float8) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.fleet f SET
        alive_since = feedq_1.served_since(f, ttl_s), alive_at = feedq.clock(),
        server_started_at = pg_postmaster_start_time()
    WHERE f.server_started_at IS DISTINCT FROM pg_postmaster_start_time() OR f.alive_at > feedq.clock()
        OR f.alive_at < feedq.clock() - make_interval(secs => least(1, ttl_s / 8));
    RETURN FOUND;
END $body$;

-- Whether a pass has to look at a worker: it has not renewed in time, or the clock was put back.
CREATE FUNCTION feedq_1.is_overdue(w feedq.worker) RETURNS boolean LANGUAGE sql VOLATILE AS $body$
    SELECT w.expires_at < feedq.clock() OR greatest(w.started_at, w.heartbeat_at) > feedq.clock()
$body$;

-- Whether a worker may be given feeds.
CREATE FUNCTION feedq_1.is_serving(w feedq.worker) RETURNS boolean LANGUAGE sql VOLATILE AS $body$
    SELECT w.state = 'active' AND w.target_state = 'serving' AND w.expires_at > feedq.clock()
        AND w.suspected_at IS NULL
$body$;

-- The locks that sessions of workers hold: those of their workers (class FEED01), and each session its own (FEED05).
-- All in one reading: the server's table of locks is gone through as a whole each time, and a fleet of a thousand
-- workers has thousands.
CREATE VIEW feedq_1.session_locks AS
    SELECT k.classid::bigint AS class, k.objid::bigint AS key, k.pid FROM pg_locks k
    WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2 AND k.classid IN (x'FEED01'::int, x'FEED05'::int)
        AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- The worker as JSON, as `feedq.core.model.Worker` has it.
CREATE FUNCTION feedq_1.worker_json(w feedq.worker) RETURNS json LANGUAGE sql STABLE AS $body$
    SELECT json_build_object(
        'id', w.id, 'name', w.name, 'queue', w.queue, 'capacity', w.capacity, 'host', w.host, 'pid', w.pid,
        'version', w.version, 'labels', w.labels, 'state', w.state, 'lock_key', w.lock_key,
        'started_at', w.started_at, 'heartbeat_at', w.heartbeat_at, 'expires_at', w.expires_at,
        'suspected_at', w.suspected_at, 'target_state', w.target_state, 'job_slots', w.job_slots, 'loss', w.loss,
        'load', json_build_object(
            'feeds', w.feeds, 'cpu', w.cpu, 'rss', w.rss, 'loop_lag_s', w.loop_lag_s, 'rows_per_s', w.rows_per_s,
            'bytes_per_s', w.bytes_per_s, 'sinks_up', w.sinks_up, 'sinks_down', w.sinks_down))
$body$;

-- Registers a worker session, and wakes reconcile. `tasks`, in order, are the Celery tasks that it knows; NULL does not
-- say. Workers that know the same share a row, which goes once nobody has registered with it for a day.
CREATE FUNCTION feedq_1.register(new json, ttl_s float8) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    given record;
    known bigint;
    made feedq.worker;
BEGIN
    SELECT * INTO given FROM json_to_record(new) AS given (
        id uuid, name text, queue text, capacity int, labels jsonb, host text, pid int, version text, job_slots int,
        tasks text[]);
    DELETE FROM feedq.task_set t WHERE used_at < feedq.clock() - interval '1 day'
        AND NOT EXISTS (SELECT FROM feedq.worker w WHERE w.task_set_id = t.id);
    IF given.tasks IS NOT NULL THEN
        INSERT INTO feedq.task_set (digest, tasks)
        VALUES (encode(sha256(convert_to(array_to_string(given.tasks, E'\n'), 'UTF8')), 'hex'), given.tasks)
        ON CONFLICT (digest) DO UPDATE SET used_at = feedq.clock() RETURNING id INTO known;
    END IF;
    INSERT INTO feedq.worker
        (id, name, queue, capacity, labels, host, pid, version, job_slots, task_set_id, expires_at)
    VALUES (given.id, given.name, given.queue, given.capacity, given.labels, given.host, given.pid, given.version,
        given.job_slots, known, feedq.clock() + make_interval(secs => ttl_s))
    RETURNING * INTO made;
    PERFORM feedq_1.stamp_alive(ttl_s);
    INSERT INTO feedq.event (kind, worker_id) VALUES ('worker_joined', made.id);
    PERFORM pg_notify('feedq_wake', '');
    RETURN feedq_1.worker_json(made);
END $body$;

-- Renews everything that the worker holds. Answers with NULL when it was declared gone: then nothing of it is its own
-- any more. Otherwise with what the worker must look at, without its having asked for it.
--
-- Sent on a session of its own, every few seconds. Frozen before it, the worker expires; killed after it, its session
-- ends, which is noticed at once.
CREATE FUNCTION feedq_1.heartbeat(session uuid, load json, ttl_s float8) RETURNS json
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $body$
DECLARE
    given record;
    told json;
BEGIN
    SELECT * INTO given FROM json_to_record(load) AS given (
        feeds int, cpu float8, rss bigint, loop_lag_s float8, rows_per_s float8, bytes_per_s float8,
        sinks_up text[], sinks_down text[]);
    UPDATE feedq.worker w SET
        heartbeat_at = feedq.clock(), expires_at = feedq.clock() + make_interval(secs => ttl_s),
        suspected_at = NULL, feeds = given.feeds, cpu = given.cpu, rss = given.rss, loop_lag_s = given.loop_lag_s,
        rows_per_s = given.rows_per_s, bytes_per_s = given.bytes_per_s, sinks_up = given.sinks_up,
        sinks_down = given.sinks_down
    FROM feedq.fleet f
    WHERE w.id = session AND w.state <> 'gone'
    RETURNING json_build_object(
        'state', w.state,
        -- In the order that only `lease_summons` has: it is the way in, even if there was no lease yet when this was
        -- planned.
        'stops_pending', coalesce('stopping' = (
            SELECT l.state FROM feedq.lease l WHERE l.worker_id = session AND l.state IN ('assigned', 'stopping')
            ORDER BY l.state DESC LIMIT 1), false),
        'claims_pending', coalesce('assigned' = (
            SELECT l.state FROM feedq.lease l WHERE l.worker_id = session AND l.state IN ('assigned', 'stopping')
            ORDER BY l.state LIMIT 1), false),
        'pass_age_s', extract(epoch FROM feedq.clock() - f.pass_at)::float8,
        'active_workers', f.active_workers,
        -- Of the sinks that this worker cannot write to, which is none nearly always: what the others know of them.
        'sinks_up_elsewhere', (SELECT coalesce(json_agg(sink ORDER BY sink), '[]')
            FROM feedq_1.sinks_elsewhere(session, given.sinks_down) WHERE is_up),
        'sinks_untried_elsewhere', (SELECT coalesce(json_agg(sink ORDER BY sink), '[]')
            FROM feedq_1.sinks_elsewhere(session, given.sinks_down) WHERE NOT is_up AND is_untried),
        -- The feeds of this worker that somebody listens to. A look-up of the lease for each of the few taps: joined,
        -- the planner might go through all leases of the worker.
        'tapped', ARRAY(
            SELECT DISTINCT t.feed_id FROM feedq.tap t
            WHERE feedq_1.is_listening(t)
                AND session = (SELECT l.worker_id FROM feedq.lease l WHERE l.feed_id = t.feed_id)))
    INTO told;
    PERFORM feedq_1.stamp_alive(ttl_s);
    RETURN told;
END $body$;

-- Whether somebody who listens to a feed was heard of lately: one who was killed ends by himself.
CREATE FUNCTION feedq_1.is_listening(t feedq.tap) RETURNS boolean LANGUAGE sql STABLE AS $body$
    SELECT t.listened_at > feedq.clock() - interval '600 s'
$body$;

-- Of these sinks, whether another worker has written to them lately, and whether one has not found them to be away.
CREATE FUNCTION feedq_1.sinks_elsewhere(session uuid, sinks text[])
RETURNS TABLE (sink text, is_up boolean, is_untried boolean) LANGUAGE sql STABLE AS $body$
    SELECT down.sink, bool_or(down.sink = ANY (o.sinks_up)), bool_or(NOT down.sink = ANY (o.sinks_down))
    FROM unnest(sinks) AS down (sink), feedq.worker o
    WHERE o.id <> session AND o.state = 'active' AND o.target_state = 'serving' AND o.capacity > 0
        AND o.expires_at > feedq.clock()
    GROUP BY down.sink
$body$;

-- The process is ending: it takes no more feeds, and releases those that it has by itself. What it has not claimed is
-- freed by a call of its own (`free`): to hold the worker's row while waiting for leases is what a pass does the other
-- way round. Killed between the two, the assignment runs out of time. Answers with whether the worker is there.
CREATE FUNCTION feedq_1.drain(session uuid) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.worker SET state = 'draining' WHERE id = session AND state <> 'gone';
    IF FOUND THEN
        INSERT INTO feedq.event (kind, worker_id) VALUES ('worker_draining', session);
        PERFORM pg_notify('feedq_wake', '');
    END IF;
    RETURN FOUND;
END $body$;

-- What a person wants of a worker: serving, cordoned (no more feeds) or drained (those that it has go elsewhere, too).
-- What it runs is handed over by passes; what it has not claimed is freed by a call of its own, as with `drain`.
-- `detail` says who asked for it. Answers with whether the worker is there.
CREATE FUNCTION feedq_1.set_target(session uuid, target text, detail jsonb) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    before text;
BEGIN
    SELECT target_state INTO before FROM feedq.worker WHERE id = session AND state <> 'gone' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF before <> target THEN
        UPDATE feedq.worker SET target_state = target WHERE id = session;
        INSERT INTO feedq.event (kind, worker_id, detail)
        VALUES (CASE target WHEN 'serving' THEN 'worker_uncordoned' WHEN 'cordoned' THEN 'worker_cordoned'
            ELSE 'worker_draining' END, session, detail);
        PERFORM pg_notify('feedq_wake', '');
    END IF;
    RETURN true;
END $body$;

-- Says goodbye: frees what is left, ends the session, and wakes reconcile.
CREATE FUNCTION feedq_1.leave(session uuid) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.worker SET state = 'gone' WHERE id = session AND state <> 'gone';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM feedq_1.free(ARRAY[session], '{assigned,running,stopping}', 'released');
    INSERT INTO feedq.event (kind, worker_id) VALUES ('worker_left', session);
    PERFORM pg_notify('feedq_wake', '');
    RETURN true;
END $body$;

-- Writes down how the process of a worker session was lost, and holds it against the feed that is to blame, if one is.
-- Once a session; answers with false when it is known already. Wakes reconcile.
CREATE FUNCTION feedq_1.report_loss(session uuid, said text, detail jsonb, culprit bigint, is_certain boolean)
RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    called text;
BEGIN
    UPDATE feedq.worker SET loss = said WHERE id = session AND loss IS NULL RETURNING name INTO called;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO feedq.event (kind, worker_id, detail) VALUES ('worker_lost', session, detail);
    IF culprit IS NOT NULL THEN
        PERFORM feedq_1.blame(culprit, session, is_certain, 'worker ' || called || ' was lost: ' || said);
    END IF;
    RETURN true;
END $body$;
