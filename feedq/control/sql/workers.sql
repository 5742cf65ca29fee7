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

-- Registers the process that a worker has begun for one feed, and hands it the feed's lease, which it then claims like
-- any other worker. It has the name and the labels of that worker, whom people mean by it, and no place for any other feed.
--
-- The epoch stays, for nobody has written under it. Killed before the commit, the lease is the worker's; after it, the
-- process's. Answers with nothing when the worker does not hold the lease any more.
CREATE FUNCTION feedq_1.hand_over(new json, owner uuid, feed bigint, epoch bigint, ttl_s float8) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    claim_within constant interval := '30 s';
    session constant uuid := new ->> 'id';
BEGIN
    PERFORM FROM feedq.lease l WHERE l.feed_id = hand_over.feed AND l.epoch = hand_over.epoch AND l.worker_id = owner
        AND l.state = 'running' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM feedq_1.register(new, ttl_s);
    UPDATE feedq.worker w SET name = o.name, labels = o.labels, target_state = o.target_state
    FROM feedq.worker o WHERE w.id = session AND o.id = owner;
    UPDATE feedq.lease SET worker_id = session, state = 'assigned', due_at = feedq.clock() + claim_within
    WHERE feed_id = feed;
    RETURN (SELECT feedq_1.worker_json(w) FROM feedq.worker w WHERE w.id = session);
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
    w feedq.worker;
    f feedq.fleet;
    -- Of the sinks that this worker cannot write to: what the others know of them.
    up_elsewhere json := '[]';
    untried_elsewhere json := '[]';
    tapped bigint[] := '{}';
BEGIN
    SELECT * INTO given FROM json_to_record(load) AS given (
        feeds int, cpu float8, rss bigint, loop_lag_s float8, rows_per_s float8, bytes_per_s float8,
        sinks_up text[], sinks_down text[]);
    UPDATE feedq.worker SET
        heartbeat_at = feedq.clock(), expires_at = feedq.clock() + make_interval(secs => ttl_s),
        suspected_at = NULL, feeds = given.feeds, cpu = given.cpu, rss = given.rss, loop_lag_s = given.loop_lag_s,
        rows_per_s = given.rows_per_s, bytes_per_s = given.bytes_per_s, sinks_up = given.sinks_up,
        sinks_down = given.sinks_down
    WHERE id = session AND state <> 'gone'
    RETURNING * INTO w;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF given.sinks_down <> '{}' THEN
        SELECT coalesce(json_agg(sink ORDER BY sink) FILTER (WHERE is_up), '[]'),
            coalesce(json_agg(sink ORDER BY sink) FILTER (WHERE NOT is_up AND is_untried), '[]')
        INTO up_elsewhere, untried_elsewhere FROM feedq_1.sinks_elsewhere(session, given.sinks_down);
    END IF;
    -- The feeds of this worker that somebody listens to. A look-up of the lease for each of the few taps: joined, the
    -- planner might go through all leases of the worker.
    IF EXISTS (SELECT FROM feedq.tap) THEN
        tapped := ARRAY(
            SELECT DISTINCT t.feed_id FROM feedq.tap t
            WHERE feedq_1.is_listening(t)
                AND session = (SELECT l.worker_id FROM feedq.lease l WHERE l.feed_id = t.feed_id));
    END IF;
    PERFORM feedq_1.stamp_alive(ttl_s);
    SELECT * INTO f FROM feedq.fleet;
    RETURN json_build_object(
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
        'sinks_up_elsewhere', up_elsewhere,
        'sinks_untried_elsewhere', untried_elsewhere,
        'tapped', tapped);
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
-- It holds for the processes that run feeds of it apart, too. `detail` says who asked for it. Answers with whether the worker is there.
CREATE FUNCTION feedq_1.set_target(session uuid, target text, detail jsonb) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    before text;
BEGIN
    SELECT target_state INTO before FROM feedq.worker WHERE id = session AND state <> 'gone' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF before <> target THEN
        UPDATE feedq.worker w SET target_state = target FROM feedq.worker o
        WHERE o.id = session AND (w.id = session OR w.name = o.name AND w.queue = '' AND w.state <> 'gone');
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
-- Once a session; answers with false when it is known already. Wakes reconcile. Of a process that is known to have ended
-- (`has_ended`) what it held is free before anybody is blamed: nobody has to find out that it is gone.
CREATE FUNCTION feedq_1.report_loss(
    session uuid, said text, detail jsonb, culprit bigint, is_certain boolean, has_ended boolean
) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    called text;
BEGIN
    IF has_ended THEN
        PERFORM feedq_1.expire(ARRAY[session]);
    END IF;
    UPDATE feedq.worker SET loss = said WHERE id = session AND loss IS NULL
    RETURNING CASE WHEN queue = '' THEN 'its own process at ' ELSE 'worker ' END || name INTO called;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO feedq.event (kind, worker_id, detail) VALUES ('worker_lost', session, detail);
    IF culprit IS NOT NULL THEN
        PERFORM feedq_1.blame(culprit, session, is_certain, called || ' was lost: ' || said);
    END IF;
    RETURN true;
END $body$;

-- Liveness ------------------------------------------------------------------------------------------------------------
--
-- One beat is elected, by a session lock; a leader row with an expiry stands beside it, because a *frozen* leader keeps
-- its lock. Nothing depends on there being one: two would ask for two passes, of which the second finds nothing to do.

-- Writes down who leads now, whose session holds the lock.
CREATE FUNCTION feedq_1.lead(election text, candidate uuid, host text, pid int, backend int, ttl_s float8)
RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO feedq.leader (name, holder, host, pid, backend_pid, expires_at)
    VALUES (election, candidate, host, pid, backend, feedq.clock() + make_interval(secs => ttl_s))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, host = excluded.host, pid = excluded.pid,
        backend_pid = excluded.backend_pid, elected_at = feedq.clock(), expires_at = excluded.expires_at;
    RETURN true;
END $body$;

-- Extends the leader's term. Answers with false when somebody else leads now.
CREATE FUNCTION feedq_1.lead_on(election text, candidate uuid, ttl_s float8) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    leads boolean;
BEGIN
    UPDATE feedq.leader SET expires_at = feedq.clock() + make_interval(secs => ttl_s)
    WHERE name = election AND holder = candidate;
    leads := FOUND;
    PERFORM feedq_1.stamp_alive(ttl_s);
    RETURN leads;
END $body$;

-- Ends the sessions of a leader whose row has expired: the frozen one finds them closed when it wakes, and is a
-- candidate again. Answers with how many there were. A row cannot be good for longer than a term, unless the clock was
-- put back: from now on it is good for one.
CREATE FUNCTION feedq_1.end_frozen_leader(election text, ttl_s float8) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    ended int;
BEGIN
    UPDATE feedq.leader SET expires_at = feedq.clock() + make_interval(secs => ttl_s)
    WHERE name = election AND expires_at > feedq.clock() + make_interval(secs => ttl_s);
    SELECT count(pg_terminate_backend(a.pid)) INTO ended FROM feedq.leader l
    JOIN pg_stat_activity a ON a.application_name = left('feedq-waiter/' || l.holder, 63)
        OR a.pid = l.backend_pid AND a.application_name = left('feedq-beat/' || l.holder, 63)
    WHERE l.name = election AND l.expires_at < feedq.clock();
    RETURN ended;
END $body$;

-- Whether the locks of a worker's sessions say that it lives; behind a pooler they do not.
CREATE FUNCTION feedq_1.trust_locks(session uuid, are_held boolean) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.worker SET session_locks = are_held WHERE id = session AND session_locks <> are_held;
    RETURN FOUND;
END $body$;

-- Looks at all workers, and at what a pass is wanted for. A worker without a session is suspected at the first look; it
-- has crashed if it still has none at the second, and a heartbeat in between clears the suspicion. Answers as
-- `feedq.control.store.election.LivenessCheck` has it, and with the `sessions` of workers, each as the key of its
-- worker, its backend, and whether its own lock is held: none if there are more workers than `waiters`.
--
-- A pass is stamped when it ends and goes by the time when it began, a quarter of a second ago at most: a worker that
-- settled meanwhile gets another.
CREATE FUNCTION feedq_1.check_liveness(settle_s float8, waiters int) RETURNS json
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $body$
DECLARE
    pass constant interval := '0.25 s';
    answer json;
BEGIN
    WITH locks AS MATERIALIZED (SELECT * FROM feedq_1.session_locks), sessions AS (
        SELECT k.key AS lock_key, k.pid, own.key IS NOT NULL AS has_own
        FROM locks k LEFT JOIN locks own ON own.class = x'FEED05'::int AND own.key = k.pid AND own.pid = k.pid
        WHERE k.class = x'FEED01'::int
    ), holding AS MATERIALIZED (
        SELECT w.id, w.lock_key, w.suspected_at FROM feedq.worker w WHERE w.state <> 'gone' AND w.session_locks
    ), silent AS (
        SELECT id, suspected_at FROM holding w
        WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.lock_key = w.lock_key)
    ), first_look AS (
        UPDATE feedq.worker w SET suspected_at = feedq.clock()
        FROM silent WHERE w.id = silent.id AND silent.suspected_at IS NULL AND w.suspected_at IS NULL
        RETURNING w.id
    )
    SELECT json_build_object(
        'crashed', (SELECT count(*) FROM silent WHERE suspected_at IS NOT NULL),
        'suspected', (SELECT count(*) FROM first_look),
        'expired', (SELECT count(*) FROM feedq.worker w WHERE w.state <> 'gone' AND feedq_1.is_overdue(w)),
        'is_due', EXISTS (SELECT FROM feedq.lease WHERE state IN ('idle', 'stopping') AND due_at <= feedq.now())
            OR EXISTS (SELECT FROM feedq.worker w, feedq.fleet f
                WHERE w.state = 'active' AND w.target_state = 'serving'
                    AND w.started_at + make_interval(secs => settle_s) BETWEEN f.pass_at - pass AND feedq.clock()),
        'due_in_s', (SELECT extract(epoch FROM min(at) - feedq.clock())::float8 FROM (
            SELECT min(due_at) AS at FROM feedq.lease WHERE state = 'idle' AND due_at > feedq.now()
            UNION ALL
            SELECT min(due_at) FROM feedq.lease WHERE state = 'stopping' AND due_at > feedq.now()
            UNION ALL
            SELECT min(expires_at) FROM feedq.worker WHERE state <> 'gone' AND expires_at > feedq.now()
            UNION ALL
            SELECT min(started_at) + make_interval(secs => settle_s) FROM feedq.worker
            WHERE state = 'active' AND started_at > feedq.now() - make_interval(secs => settle_s)
        ) upcoming),
        'sessions', CASE WHEN (SELECT count(*) FROM holding) <= waiters THEN (
            SELECT coalesce(json_agg(json_build_array(w.lock_key, coalesce(s.pid, 0), coalesce(s.has_own, false))), '[]')
            FROM holding w LEFT JOIN sessions s USING (lock_key)) END)
    INTO answer;
    RETURN answer;
END $body$;
