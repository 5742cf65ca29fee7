-- Passes of reconcile: each is one transaction, and one at a time in the fleet. Its caller decides, and calls these
-- functions one after the other: `begin_pass` finds workers that may be gone, `take_stock` does what needs no decision and
-- finds what does, `waiting` finds feeds to place, and `moving` what may be moved. With nothing to do, that is all but
-- `end_pass`.
--
-- With nothing to do, a pass reads a handful of partial indexes that are empty, and no row of any feed. The planner
-- cannot know how many feeds somebody has touched: of a million all are dirty, and a minute later none is. So whatever
-- it assumes, rows of feeds and leases are looked up by their keys.
--
-- Killed or frozen anywhere in it, a pass has done nothing: the server ends the transaction of whoever is frozen in it.
-- Messages are sent after the commit, so that an epoch that was rolled back is never heard of; killed in between, the
-- assignment runs out of time, and the feed is assigned anew.

-- Locks these workers, in their order, but waits for nobody who has one locked for longer: then it answers with false
-- and holds none, and whoever calls it goes on with SKIP LOCKED.
CREATE FUNCTION feedq_1.lock_workers(workers uuid[]) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
BEGIN
    PERFORM FROM feedq.worker WHERE id = ANY (workers) ORDER BY id FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $body$;

-- Workers that have not renewed in time, or that the beat suspects, locked before they are judged: a heartbeat that
-- came first is seen here, a later one waits, and finds its worker gone. With each, whether any session of the database
-- holds its lock.
--
-- One whose heartbeat lies in the future was stamped before the clock was put back. It counts as one of this moment:
-- the feeds of whoever is dead wait for a ttl from now on, and not for the length of the step as well. Nobody gets less
-- than a ttl after a heartbeat. A row that somebody has locked for longer is left to a later pass.
CREATE FUNCTION feedq_1.suspects() RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    found uuid[];
    answer json;
BEGIN
    PERFORM feedq_1.lock_workers(ARRAY(
        SELECT w.id FROM feedq.worker w
        WHERE w.state <> 'gone' AND (feedq_1.is_overdue(w) OR w.suspected_at IS NOT NULL)));
    SELECT array_agg(id) INTO found FROM (
        SELECT w.id FROM feedq.worker w
        WHERE w.state <> 'gone' AND (feedq_1.is_overdue(w) OR w.suspected_at IS NOT NULL)
        ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED
    ) locked;
    IF found IS NULL THEN
        RETURN '[]';
    END IF;
    UPDATE feedq.worker w SET
        started_at = least(w.started_at, feedq.clock()), heartbeat_at = least(w.heartbeat_at, feedq.clock()),
        expires_at = least(w.heartbeat_at, feedq.clock()) + (w.expires_at - w.heartbeat_at)
    WHERE w.id = ANY (found) AND greatest(w.started_at, w.heartbeat_at) > feedq.clock();
    SELECT json_agg(json_build_object('worker', feedq_1.worker_json(w), 'has_session', k.key IS NOT NULL) ORDER BY w.id)
    INTO answer
    FROM feedq.worker w LEFT JOIN (SELECT DISTINCT key FROM feedq_1.session_locks WHERE class = x'FEED01'::int) k
        ON k.key = w.lock_key
    WHERE w.id = ANY (found);
    RETURN answer;
END $body$;

-- Begins a pass: answers with the state in which the one before it left the fleet, with the workers that may be gone
-- (`suspects`), and since when the database was heard from without a break (`served_since`: this pass may be the first to
-- come back after an outage, before any heartbeat); with nothing when another pass is under way.
-- For the transaction: a pass whose process is killed releases the lock with its backend.
--
-- When the database's clock was put back, no delay and no time limit lasts longer for it. Each is stored as the time at
-- which it ends: put back by an hour, the clock would make each last an hour longer. So a pass that begins before the
-- one before it ended, by that clock, shortens all that lie ahead by the difference. That is short of the step by the
-- time between the two passes, at most. A delay that was set since the step ends too soon, which costs one try.
CREATE FUNCTION feedq_1.begin_pass(ttl_s float8) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    f feedq.fleet;
    put_back interval;
    found json;
BEGIN
    IF NOT pg_try_advisory_xact_lock(x'FEED0003'::bigint) THEN
        RETURN '[]';
    END IF;
    SELECT * INTO f FROM feedq.fleet;
    put_back := f.pass_at - feedq.clock();
    IF put_back > interval '0' THEN
        WITH ahead AS (
            SELECT feed_id FROM feedq.lease WHERE feed_id IN (
                SELECT feed_id FROM feedq.lease
                WHERE state IN ('idle', 'assigned', 'stopping') AND due_at > feedq.now()
                UNION ALL
                SELECT feed_id FROM feedq.lease WHERE moved_at > feedq.now())
            ORDER BY feed_id FOR UPDATE SKIP LOCKED
        )
        UPDATE feedq.lease l SET due_at = l.due_at - put_back, moved_at = least(l.moved_at, feedq.now())
        FROM ahead WHERE l.feed_id = ahead.feed_id;
    END IF;
    found := feedq_1.suspects();
    RETURN json_build_array(json_build_object(
        'state', json_build_object(
            'now', feedq.clock(), 'evened_out', f.evened_out, 'waiting_after', f.waiting_after,
            -- least() ignores NULL, which says that there was no sweep yet.
            'sweep_at', CASE WHEN f.sweep_at IS NOT NULL THEN least(f.sweep_at, feedq.clock()) END,
            'swept_to', f.swept_to),
        'suspects', found, 'served_since', feedq_1.served_since(f, ttl_s)));
END $body$;

-- Ends a pass. The fleet's row comes last, here as in a heartbeat: the other way round the two would deadlock.
CREATE FUNCTION feedq_1.end_pass(state json) RETURNS bigint LANGUAGE sql AS $body$
    UPDATE feedq.fleet SET
        pass_at = feedq.clock(), pass_seq = pass_seq + 1,
        active_workers = (SELECT count(*) FROM feedq.worker WHERE state = 'active' AND capacity > 0),
        evened_out = given.evened_out, waiting_after = given.waiting_after, sweep_at = given.sweep_at,
        swept_to = given.swept_to
    FROM json_to_record(state) AS given (evened_out text, waiting_after bigint, sweep_at timestamptz, swept_to bigint)
    RETURNING pass_seq
$body$;

-- Declares workers gone *and* frees all their leases. Answers with how many leases that were.
CREATE FUNCTION feedq_1.expire(workers uuid[]) RETURNS int LANGUAGE plpgsql AS $body$
BEGIN
    WITH expired AS (
        UPDATE feedq.worker SET state = 'gone' WHERE id = ANY (workers) AND state <> 'gone' RETURNING id
    )
    INSERT INTO feedq.event (kind, worker_id) SELECT 'worker_gone', id FROM expired;
    RETURN feedq_1.free(workers, '{assigned,running,stopping}', 'worker_gone');
END $body$;

-- Withdraws assignments that were not claimed in time: back to idle, to be placed anew. Answers with the worker of each.
-- What is locked is being claimed this very moment.
CREATE FUNCTION feedq_1.withdraw_overdue(most int) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    workers json;
BEGIN
    WITH late AS (
        SELECT feed_id, worker_id, state FROM feedq.lease
        WHERE feed_id = ANY (ARRAY(  -- by nothing but keys
            SELECT feed_id FROM feedq.lease
            WHERE state = 'assigned' AND due_at <= feedq.now() ORDER BY due_at LIMIT most))
        ORDER BY feed_id FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE feedq.lease l SET
            state = 'idle', worker_id = NULL, reason = 'released', due_at = NULL, moved_at = NULL
        FROM late WHERE l.feed_id = late.feed_id AND late.state = 'assigned'
        RETURNING l.feed_id, late.worker_id, l.epoch
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT 'lease_overdue', feed_id, worker_id, epoch FROM freed
    )
    SELECT json_agg(worker_id) INTO workers FROM freed;
    RETURN coalesce(workers, '[]');
END $body$;

-- Writes the end of each backfill that has landed all it was begun for into the history of its feed, and forgets it, in
-- one statement.
CREATE FUNCTION feedq_1.end_backfills() RETURNS void LANGUAGE sql AS $body$
    WITH ended AS (
        SELECT f.id, f.parent, f.backfill, p.records_total, p.dead_letters_total,
            round(extract(epoch FROM feedq.clock() - f.created_at)::numeric, 3) AS took_s
        FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id JOIN feedq.progress p ON p.feed_id = f.id
        WHERE f.parent IS NOT NULL AND f.removed_at IS NULL AND l.state = 'idle' AND l.reason = 'finished'
        ORDER BY f.id FOR UPDATE OF l, f SKIP LOCKED
    ), told AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT 'backfill_finished', parent, backfill || jsonb_build_object(
            'records', records_total, 'dead_letters', dead_letters_total, 'took_s', took_s)
        FROM ended
    )
    DELETE FROM feedq.feed f USING ended WHERE f.id = ended.id
$body$;

-- Leases of feeds in quarantine that run, in it or still among others; but for those that change hands this moment.
CREATE FUNCTION feedq_1.quarantined() RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    locked constant bigint[] := ARRAY(
        SELECT feed_id FROM feedq.lease WHERE quarantined AND state = 'running'
        ORDER BY feed_id FOR UPDATE SKIP LOCKED);
BEGIN
    IF locked = '{}' THEN
        RETURN '[]';
    END IF;
    RETURN (SELECT json_agg(lease ORDER BY id) FROM feedq_1.feed_status WHERE id = ANY (locked));
END $body$;

-- What people have changed --------------------------------------------------------------------------------------------

-- The first feeds that somebody has touched.
CREATE FUNCTION feedq_1.first_dirty(most int) RETURNS bigint[] LANGUAGE sql STABLE AS $body$
    SELECT ARRAY(SELECT id FROM feedq.feed WHERE dirty ORDER BY id LIMIT most)
$body$;

-- Waits for the leases of feeds that somebody has touched, but for nobody who has one locked for longer. It comes before
-- everything else that a pass locks, all of which passes over what is locked: a pass that waited with leases in its hands
-- would wait for owners that wait for these. Answers with whether it has them all.
CREATE FUNCTION feedq_1.lock_dirty(most int) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
DECLARE
    first constant bigint[] := feedq_1.first_dirty(most);
BEGIN
    PERFORM FROM feedq.lease WHERE feed_id = ANY (first) ORDER BY feed_id FOR UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;  -- the pass goes on with the others
END $body$;

-- Feeds that somebody has touched, with their leases, both locked; the lease first, as everywhere. What somebody has
-- locked stays dirty, for a later pass.
CREATE FUNCTION feedq_1.dirty(most int) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    first constant bigint[] := feedq_1.first_dirty(most);
    locked bigint[];
BEGIN
    IF first = '{}' THEN
        RETURN '[]';
    END IF;
    INSERT INTO feedq.lease (feed_id) SELECT unnest(first) ORDER BY 1 ON CONFLICT DO NOTHING;
    locked := ARRAY(
        SELECT f.id FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
        WHERE f.id = ANY (first) AND f.dirty ORDER BY f.id FOR UPDATE OF l, f SKIP LOCKED);
    RETURN (
        SELECT coalesce(json_agg(json_build_array(feed, lease) ORDER BY id), '[]')
        FROM feedq_1.feed_status WHERE id = ANY (locked));
END $body$;

-- Does what needs no decision, and answers with what it did and with what somebody is to decide, in one call: nearly
-- always there is nothing. Of edits, and of assignments that are overdue, at most so many.
CREATE FUNCTION feedq_1.take_stock(most_edits int, most_overdue int) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    has_locked constant boolean := feedq_1.lock_dirty(most_edits);
    reaped constant int := feedq_1.reap();
    silent constant json := feedq_1.withdraw_overdue(most_overdue);
BEGIN
    PERFORM feedq_1.end_backfills();
    RETURN json_build_object(
        'reaped', reaped, 'silent', silent,
        'quarantined', feedq_1.quarantined(), 'dirty', feedq_1.dirty(most_edits));
END $body$;

-- Carries out what was decided about feeds that somebody touched, and marks them clean. Of each: `move` (withdraw,
-- ask_to_stop, purge, or none, which leaves its lease but for the `reason`).
CREATE FUNCTION feedq_1.apply_edits(edits json, stop_within_s float8) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.feed SET dirty = false
    WHERE id IN (SELECT feed_id FROM json_to_recordset(edits) AS given (feed_id bigint));
    PERFORM feedq_1.explain((SELECT json_agg(given) FROM json_to_recordset(edits) AS given
        (feed_id bigint, move text, reason text) WHERE move IS NULL AND reason IS NOT NULL));
    -- Assigned, and not claimed yet: nobody streams it.
    UPDATE feedq.lease l SET
        state = 'idle', worker_id = NULL, reason = given.reason, due_at = NULL, moved_at = NULL
    FROM json_to_recordset(edits) AS given (feed_id bigint, move text, reason text)
    WHERE l.feed_id = given.feed_id AND given.move = 'withdraw' AND l.state = 'assigned';
    PERFORM feedq_1.ask_to_stop((SELECT json_agg(given) FROM json_to_recordset(edits) AS given
        (feed_id bigint, move text, reason text) WHERE move = 'ask_to_stop'), stop_within_s);
    -- An owner is waited for only so long where the feed goes on elsewhere: the next owner fences it off. What is paused
    -- or removed has no next owner, and nobody calls it idle while the one that it has may still land.
    UPDATE feedq.lease l SET due_at = CASE WHEN f.target_state = 'running' AND f.removed_at IS NULL
        THEN coalesce(l.due_at, feedq.clock() + make_interval(secs => stop_within_s)) END
    FROM json_to_recordset(edits) AS given (feed_id bigint) JOIN feedq.feed f ON f.id = given.feed_id
    WHERE l.feed_id = given.feed_id AND l.state = 'stopping';
    DELETE FROM feedq.feed WHERE id IN (
        SELECT feed_id FROM json_to_recordset(edits) AS given (feed_id bigint, move text) WHERE move = 'purge');
    RETURN true;
END $body$;

-- Writes why feeds are idle, but for those that somebody has locked.
CREATE FUNCTION feedq_1.explain(reasons json) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    explained int;
BEGIN
    WITH given AS (
        -- By nothing but keys; what state they are in is asked after. Told that few can match, as there were few when
        -- statistics were taken, the planner would go through all of them for each.
        SELECT given.*, l.state FROM json_to_recordset(reasons) AS given (feed_id bigint, reason text)
        JOIN feedq.lease l USING (feed_id) ORDER BY feed_id FOR UPDATE OF l SKIP LOCKED
    )
    UPDATE feedq.lease l SET
        reason = given.reason, due_at = NULL, held_for = NULL,
        promised_to = CASE WHEN given.reason IN ('new', 'settling') THEN l.promised_to END,
        moved_at = CASE WHEN given.reason IN ('new', 'settling') THEN l.moved_at END,
        avoid = CASE WHEN given.reason = 'new' THEN '{}' ELSE l.avoid END
    FROM given WHERE l.feed_id = given.feed_id AND given.state = 'idle';
    GET DIAGNOSTICS explained = ROW_COUNT;
    UPDATE feedq.progress p SET attempts = 0
    FROM json_to_recordset(reasons) AS given (feed_id bigint, reason text)
    WHERE p.feed_id = given.feed_id AND given.reason = 'new' AND p.attempts > 0;
    RETURN explained;
END $body$;

-- Placement ----------------------------------------------------------------------------------------------------------

-- Feeds that may start, and whether they do is nobody's business but placement's. A million may be without a place for
-- long. So the ones about which something is new come first, and those that were found to have no place take turns.

-- Of the feeds that were found to have no place, the first ones after this id.
--
-- It reads a small index of its own, as each branch below does. The feed is looked up by nothing but its id: with the
-- other conditions beside it, a planner that takes the table for empty would rather read one of its partial indexes as a
-- whole.
CREATE FUNCTION feedq_1.unplaced(after bigint, upto bigint, most int) RETURNS bigint[] LANGUAGE plpgsql AS $body$
BEGIN
    RETURN ARRAY(SELECT l.feed_id FROM feedq.lease l
        WHERE l.state = 'idle' AND l.due_at IS NULL AND l.reason IN ('no_capacity', 'no_match')
            AND l.feed_id > after AND l.feed_id <= upto
            AND (SELECT removed_at IS NULL AND target_state = 'running' FROM feedq.feed WHERE id = l.feed_id)
        ORDER BY l.feed_id LIMIT most);
END $body$;

-- Whom a feed gets its records from, as far as its declaration tells: where one fails others may.
CREATE FUNCTION feedq_1.remote(f feedq.feed) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT coalesce(lower(substring(f.source ->> 'url' FROM '//([^/?#]*)')), f.source ->> 'command', f.name)
$body$;

-- The sink of a feed as settings look it up: in lower case.
CREATE FUNCTION feedq_1.sink(f feedq.feed) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT lower(coalesce(f.sink ->> 'name', 'default'))
$body$;

-- Where feeds failed, by remote, and whether others have begun to land records there since. With `proven` only failures of
-- feeds that have landed records elsewhere since: then it is the worker, and not the source. Most of the time no feed has
-- failed anywhere, and an empty index is all that is read.
CREATE FUNCTION feedq_1.experiences(proven boolean) RETURNS jsonb LANGUAGE plpgsql AS $body$
DECLARE
    failed jsonb;
    landed jsonb;
BEGIN
    SELECT jsonb_object_agg(remote, workers) INTO failed FROM (
        SELECT remote, jsonb_object_agg(worker, at) AS workers FROM (
            SELECT feedq_1.remote(f) AS remote, one.key AS worker, to_timestamp(max(one.value::float8)) AS at
            FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id JOIN feedq.progress p ON p.feed_id = l.feed_id
            CROSS JOIN LATERAL jsonb_each_text(l.avoid) one
            WHERE l.avoid <> '{}' AND (NOT proven OR l.state = 'running' AND p.connected AND p.epoch = l.epoch
                AND p.last_record_at > to_timestamp(one.value::float8))
            GROUP BY 1, 2
        ) latest GROUP BY remote
    ) by_remote;
    IF failed IS NULL THEN
        RETURN '{}';
    END IF;
    SELECT jsonb_object_agg(remote, workers) INTO landed FROM (
        SELECT remote, jsonb_object_agg(worker, at) AS workers FROM (
            SELECT feedq_1.remote(f) AS remote, w.name AS worker, max(l.running_since) AS at
            FROM feedq.worker w JOIN feedq.lease l ON l.worker_id = w.id JOIN feedq.feed f ON f.id = l.feed_id
            JOIN feedq.progress p ON p.feed_id = l.feed_id
            WHERE w.name = ANY (ARRAY(SELECT jsonb_object_keys(value) FROM jsonb_each(failed))) AND w.state <> 'gone'
                AND l.state = 'running' AND p.connected AND p.epoch = l.epoch AND p.last_record_at > l.running_since
            GROUP BY 1, 2
        ) latest GROUP BY remote
    ) by_remote;
    RETURN (SELECT jsonb_object_agg(key, jsonb_build_object('failed', value, 'landed', landed -> key))
        FROM jsonb_each(failed));
END $body$;

-- The workers that a feed avoids, each with the time of the failure, the latest last: those on which it failed itself
-- (`own`), and those on which others of its remote did and none has landed records since (`met`, of `experiences`).
CREATE FUNCTION feedq_1.avoided(own jsonb, met jsonb) RETURNS json LANGUAGE sql STABLE AS $body$
    SELECT coalesce(json_agg(json_build_array(worker, at) ORDER BY at, worker), '[]') FROM (
        SELECT worker, max(at) AS at FROM (
            SELECT key AS worker, to_timestamp(value::float8) AS at FROM jsonb_each_text(own)
            UNION ALL
            SELECT key, value::timestamptz FROM jsonb_each_text(met -> 'failed')
            WHERE coalesce((met #>> ARRAY['landed', key])::timestamptz <= value::timestamptz, true)
        ) failed GROUP BY worker
    ) latest
$body$;

-- The workers on which a feed failed itself, and another of its remote has begun to land records since.
CREATE FUNCTION feedq_1.reached(own jsonb, met jsonb) RETURNS text[] LANGUAGE sql STABLE AS $body$
    SELECT ARRAY(SELECT key FROM jsonb_each_text(own)
        WHERE (met #>> ARRAY['landed', key])::timestamptz > to_timestamp(value::float8))
$body$;

-- Promises feeds that are held for the successor of a worker to it once it is there, as far as it has room; those for
-- which it has none may go anywhere. Nothing else is read when no feed is held, which is nearly always.
CREATE FUNCTION feedq_1.promise_to_successors() RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    IF NOT EXISTS (SELECT FROM feedq.lease WHERE held_for IS NOT NULL) THEN
        RETURN;
    END IF;
    WITH successor AS (
        SELECT DISTINCT ON (name) id, name, capacity FROM feedq.worker w
        WHERE feedq_1.is_serving(w) AND w.queue <> '' ORDER BY name, started_at DESC
    ), awaited AS (
        SELECT l.feed_id, successor.id AS worker_id, successor.capacity - c.feeds AS room
        FROM feedq.lease l JOIN successor ON successor.name = l.held_for
        JOIN feedq_1.counted c ON c.worker_id = successor.id
        WHERE l.held_for IS NOT NULL AND l.state = 'idle' ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
    ), ranked AS (
        SELECT *, row_number() OVER (PARTITION BY worker_id ORDER BY feed_id) <= room AS has_room FROM awaited
    )
    UPDATE feedq.lease l SET
        held_for = NULL, due_at = NULL, promised_to = CASE WHEN has_room THEN ranked.worker_id END
    FROM ranked WHERE l.feed_id = ranked.feed_id;
END $body$;

-- Feeds to place now, and after which of those without a place the next pass is to go on: when there are more than `most`
-- it begins where this one ends, so that feeds without a place keep no others from theirs.
CREATE FUNCTION feedq_1.waiting(most int, after bigint, measured float8) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    means constant float8[] := feedq_1.means(measured);
    last constant bigint := 9223372036854775807;
    ids bigint[];
    without_place bigint[];
    room int;
    known jsonb;
    found json;
BEGIN
    PERFORM feedq_1.promise_to_successors();
    -- What is due is asked for with the time at which the statement began: with a clock that moves on, the index could not
    -- be used.
    ids := ARRAY(SELECT feed_id FROM (
        (SELECT l.feed_id FROM feedq.lease l
            WHERE l.state = 'idle' AND l.due_at IS NULL
                AND l.reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match', 'finished')
                AND (SELECT removed_at IS NULL AND target_state = 'running' FROM feedq.feed WHERE id = l.feed_id)
            ORDER BY l.feed_id LIMIT most)
        UNION ALL
        (SELECT l.feed_id FROM feedq.lease l
            WHERE l.state = 'idle' AND l.due_at IS NOT NULL AND l.due_at <= feedq.now()
                AND l.reason NOT IN ('paused', 'removed')
                AND (SELECT removed_at IS NULL AND target_state = 'running' FROM feedq.feed WHERE id = l.feed_id)
            ORDER BY l.due_at LIMIT most)
    ) news ORDER BY feed_id LIMIT most);
    room := most - cardinality(ids);
    IF room > 0 THEN
        without_place := feedq_1.unplaced(after, last, room);
        IF after > 0 AND cardinality(without_place) < room THEN
            without_place := without_place || feedq_1.unplaced(0, after, room - cardinality(without_place));
        END IF;
        after := CASE WHEN cardinality(without_place) = room THEN without_place[room] ELSE 0 END;
        ids := ids || without_place;
    END IF;
    IF cardinality(ids) > 0 THEN
        known := feedq_1.experiences(proven => true);
        SELECT json_agg(json_build_object(
            'feed_id', l.feed_id, 'reason', l.reason, 'worker_id', l.promised_to, 'tenant', f.tenant,
            'selector', f.selector, 'sink', feedq_1.sink(f),
            'avoid', CASE WHEN l.avoid = '{}' AND known = '{}' THEN '[]'
                ELSE feedq_1.avoided(l.avoid, known -> feedq_1.remote(f)) END,
            'weight', feedq_1.effective_weight(f, p, measured, means)) ORDER BY l.feed_id)
        INTO found FROM feedq.lease l
        JOIN feedq.feed f ON f.id = l.feed_id JOIN feedq.progress p ON p.feed_id = l.feed_id
        WHERE l.feed_id = ANY (ids)
            -- Removed and declared anew: the one that is ending must be off the source first.
            AND NOT EXISTS (
                SELECT FROM feedq.lease ending JOIN feedq.feed removed ON removed.id = ending.feed_id
                WHERE ending.state = 'stopping' AND removed.removed_at IS NOT NULL AND removed.name = f.name);
    END IF;
    RETURN json_build_array(coalesce(found, '[]'), after);
END $body$;

-- idle -> assigned, under the next epoch. Of each feed that was given: the message for its worker. The worker may hear
-- of it before that message comes.
--
-- A worker that is asked to drain meanwhile has its row locked: either it is not serving any more, or it finds what it
-- was given and gives it back. What somebody has locked for longer waits for a later pass.
CREATE FUNCTION feedq_1.assign(places json, claim_within_s float8, measured float8) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    means constant float8[] := feedq_1.means(measured);
    assigned json;
    owners uuid[];
BEGIN
    PERFORM feedq_1.lock_workers(ARRAY(
        SELECT DISTINCT worker_id FROM json_to_recordset(places) AS given (worker_id uuid)));
    WITH given AS (
        SELECT * FROM json_to_recordset(places) AS given (feed_id bigint, worker_id uuid)
    ), locked AS (
        SELECT given.*, w.queue, feedq_1.effective_weight(f, p, measured, means) AS weight,
            l.state, w.state AS worker_state, w.target_state
        FROM given
        JOIN feedq.lease l USING (feed_id)
        JOIN feedq.feed f ON f.id = given.feed_id
        JOIN feedq.progress p ON p.feed_id = given.feed_id
        JOIN feedq.worker w ON w.id = given.worker_id
        ORDER BY given.feed_id FOR UPDATE OF l SKIP LOCKED FOR NO KEY UPDATE OF w SKIP LOCKED
    ), free AS (
        SELECT * FROM locked WHERE state = 'idle' AND worker_state = 'active' AND target_state = 'serving'
    ), assigned AS (
        UPDATE feedq.lease l SET
            state = 'assigned', epoch = l.epoch + 1, worker_id = free.worker_id, weight = free.weight,
            due_at = feedq.clock() + make_interval(secs => claim_within_s), promised_to = NULL, held_for = NULL,
            reason = CASE WHEN l.reason = 'failed' THEN 'failed' END
        FROM free WHERE l.feed_id = free.feed_id
        RETURNING l.feed_id, l.epoch, l.worker_id, free.queue, l.reason
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT 'lease_assigned', feed_id, worker_id, epoch FROM assigned WHERE reason IS NULL
    )
    SELECT json_agg(json_build_object('feed_id', feed_id, 'epoch', epoch, 'worker_id', worker_id, 'queue', queue)
            ORDER BY feed_id), array_agg(DISTINCT worker_id)
    INTO assigned, owners FROM assigned;
    PERFORM pg_notify('feedq_worker_' || lock_key, 'feeds') FROM feedq.worker WHERE id = ANY (owners);
    RETURN coalesce(assigned, '[]');
END $body$;

-- What workers hold ----------------------------------------------------------------------------------------------------
--
-- It is counted, so that a pass reads a row a worker and none of their feeds. Triggers on `lease` write what a statement
-- changed to `held_change`, and each pass folds that into `worker_held`. A change and the line that tells of it commit
-- together, so the two tables always add up to the truth.

-- Takes in what has changed. Writes nothing when nothing has.
CREATE FUNCTION feedq_1.fold_held() RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    changed int;
BEGIN
    WITH folded AS (DELETE FROM feedq.held_change RETURNING *), changes AS (
        SELECT f.worker_id, sum(f.feeds)::int AS feeds, sum(f.weight) AS weight
        FROM folded f JOIN feedq.worker w ON w.id = f.worker_id GROUP BY f.worker_id
    )
    INSERT INTO feedq.worker_held AS h (worker_id, feeds, weight)
    SELECT worker_id, feeds, weight FROM changes
    ON CONFLICT (worker_id) DO UPDATE SET feeds = h.feeds + excluded.feeds,
        -- Sums of fractions drift; a worker without feeds has no load.
        weight = CASE WHEN h.feeds + excluded.feeds = 0 THEN 0 ELSE h.weight + excluded.weight END;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $body$;

-- What counts for a worker, as of one moment. A release between a fold and this is a line in `held_change` here, and a
-- promise that is idle: without that line the feed would count for its old worker and for its new one. What is promised
-- counts for the worker that it is promised to, and no longer for the one that is releasing it.
CREATE VIEW feedq_1.counted AS
    SELECT w.id AS worker_id,
        -- What it holds at this moment, and what is promised to it.
        (coalesce(h.feeds, 0) + coalesce(n.feeds, 0))::int AS held,
        coalesce(h.weight, 0) + coalesce(n.weight, 0) AS held_weight,
        coalesce(s.promised, 0)::int AS promised,
        greatest(coalesce(h.feeds, 0) + coalesce(n.feeds, 0) + coalesce(s.feeds, 0), 0) AS feeds,
        greatest(coalesce(h.weight, 0) + coalesce(n.weight, 0) + coalesce(s.weight, 0), 0)::float8 AS load
    FROM feedq.worker w
    LEFT JOIN feedq.worker_held h ON h.worker_id = w.id
    LEFT JOIN (
        SELECT worker_id, sum(feeds)::int AS feeds, sum(weight) AS weight FROM feedq.held_change GROUP BY worker_id
    ) n ON n.worker_id = w.id
    LEFT JOIN (
        SELECT worker_id, sum(feeds)::int AS feeds, sum(weight) AS weight, count(*) FILTER (WHERE feeds > 0) AS promised
        FROM (
            SELECT promised_to AS worker_id, 1 AS feeds, weight FROM feedq.lease
            WHERE promised_to IS NOT NULL AND state IN ('idle', 'stopping')
            UNION ALL
            SELECT worker_id, -1, -weight FROM feedq.lease
            WHERE promised_to IS NOT NULL AND state = 'stopping'
        ) promised GROUP BY worker_id
    ) s ON s.worker_id = w.id;

-- Whether a worker may be stuck, going by its last heartbeat. Such a worker is given nothing while another can take it.
-- Loops run a few milliseconds late under load, and one that is a second late does not serve what it has. Whoever was not
-- heard from for two thirds of its ttl may well be stuck or cut off: an interval of heartbeats is at most half of it.
CREATE FUNCTION feedq_1.lags(w feedq.worker) RETURNS boolean LANGUAGE sql VOLATILE AS $body$
    SELECT w.loop_lag_s > 1 OR (feedq.clock() - w.heartbeat_at) * 3 > (w.expires_at - w.heartbeat_at) * 2
$body$;

-- Workers that may be given feeds; each with how many it has of these tenants, promised ones included. Writes nothing.
CREATE FUNCTION feedq_1.eligible_workers(of_tenants text[]) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    by_worker jsonb := '{}';
    found json;
BEGIN
    IF cardinality(of_tenants) > 0 THEN
        SELECT coalesce(jsonb_object_agg(place, tenants), '{}') INTO by_worker FROM (
            SELECT place, jsonb_object_agg(tenant, feeds) AS tenants FROM (
                SELECT CASE WHEN l.state IN ('idle', 'stopping') THEN coalesce(l.promised_to, l.worker_id)
                    ELSE l.worker_id END AS place, f.tenant, count(*) AS feeds
                FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id
                WHERE f.tenant <> '' AND f.tenant = ANY (of_tenants)
                    AND (l.worker_id IS NOT NULL OR l.promised_to IS NOT NULL)
                GROUP BY 1, 2
            ) counted GROUP BY place
        ) places;
    END IF;
    SELECT json_agg(json_build_object(
        'worker_id', w.id, 'name', w.name, 'queue', w.queue, 'capacity', w.capacity, 'feeds', c.feeds, 'load', c.load,
        'started_at', w.started_at, 'labels', w.labels, 'sinks_down', lower(w.sinks_down::text)::text[],
        'lags', feedq_1.lags(w), 'tenants', coalesce(by_worker -> w.id::text, '{}')) ORDER BY w.id)
    INTO found FROM feedq.worker w JOIN feedq_1.counted c ON c.worker_id = w.id
    -- One without places for feeds (`-Q jobs`) is no part of the fleet that they are spread over.
    WHERE feedq_1.is_serving(w) AND w.capacity > 0;
    RETURN coalesce(found, '[]');
END $body$;

-- The same for a pass, which takes in first what has changed.
CREATE FUNCTION feedq_1.candidates(of_tenants text[]) RETURNS json LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM feedq_1.fold_held();
    RETURN feedq_1.eligible_workers(of_tenants);
END $body$;

-- What is on its way already: how many idle feeds are `held` for the successor of their worker; how many were asked to move
-- within this time and are not connected at their new worker yet, by that worker; and which workers are to hand over all
-- they have, with how many feeds that still are. And the `candidates`.
CREATE FUNCTION feedq_1.moving(within_s float8) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    candidates constant json := feedq_1.candidates('{}');  -- folds what workers hold
BEGIN
    RETURN json_build_object(
        'candidates', candidates,
        'held', (SELECT count(*) FROM feedq.lease WHERE held_for IS NOT NULL),
        -- With the time at which the statement began: with a clock that moves on, the index could not be used.
        'under_way', (SELECT coalesce(json_object_agg(target, feeds), '{}') FROM (
            SELECT coalesce(promised_to, worker_id) AS target, count(*) AS feeds FROM feedq.lease
            WHERE moved_at IS NOT NULL AND moved_at > feedq.now() - make_interval(secs => within_s)
            GROUP BY target HAVING coalesce(promised_to, worker_id) IS NOT NULL) moved),
        'leaving', (SELECT coalesce(json_object_agg(w.id, h.feeds), '{}')
            FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id
            WHERE w.state = 'active' AND w.target_state = 'drained' AND w.expires_at > feedq.clock()
                AND w.suspected_at IS NULL AND h.feeds > 0));
END $body$;

-- Running feeds of these workers, of each worker the ones that have run there longest, and at most so many.
CREATE FUNCTION feedq_1.movable(owners uuid[], most int, measured float8) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    means constant float8[] := feedq_1.means(measured);
    known constant jsonb := feedq_1.experiences(proven => false);
    found json;
BEGIN
    SELECT json_agg(json_build_object(
        'feed_id', f.id, 'worker_id', held.worker_id, 'tenant', f.tenant, 'selector', f.selector, 'sink', feedq_1.sink(f),
        'avoid', CASE WHEN known = '{}' THEN '[]' ELSE feedq_1.avoided(l.avoid, known -> feedq_1.remote(f)) END,
        'reached', CASE WHEN l.avoid = '{}' THEN '{}' ELSE feedq_1.reached(l.avoid, known -> feedq_1.remote(f)) END,
        'weight', feedq_1.effective_weight(f, p, measured, means)) ORDER BY held.running_since, f.id)
    INTO found
    FROM unnest(owners) AS source (id) CROSS JOIN LATERAL (
        SELECT feed_id, worker_id, running_since FROM feedq.lease
        WHERE worker_id = source.id AND state = 'running' ORDER BY running_since LIMIT most
    ) held
    JOIN feedq.lease l ON l.feed_id = held.feed_id JOIN feedq.feed f ON f.id = held.feed_id
    JOIN feedq.progress p ON p.feed_id = held.feed_id
    WHERE f.removed_at IS NULL AND f.target_state = 'running';
    RETURN coalesce(found, '[]');
END $body$;

-- The sweep -----------------------------------------------------------------------------------------------------------
--
-- Trims what is too old, a page of feeds a pass, and weighs them anew. A page is small, so that no pass takes long because
-- of it and nothing stays locked. It looks for nothing that was changed by hand: triggers of `feed` and `lease` do.

-- Writes what the feeds of a page weigh by now, if that has changed by more than a tenth of itself. At the end of a
-- pass: it locks rows that owners report on, and must not wait for anybody after that.
CREATE FUNCTION feedq_1.weigh(after bigint, upto bigint, measured float8) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    means constant float8[] := feedq_1.means(measured);
    step constant float8 := 0.1;
    weighed int;
BEGIN
    WITH weighed AS MATERIALIZED (
        SELECT l.feed_id, l.weight AS before, feedq_1.effective_weight(f, p, measured, means) AS weight
        FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id JOIN feedq.progress p ON p.feed_id = l.feed_id
        WHERE l.feed_id > after AND l.feed_id <= upto AND l.worker_id IS NOT NULL AND NOT f.dirty
    ), changed AS (
        SELECT l.feed_id, weighed.weight FROM weighed JOIN feedq.lease l USING (feed_id)
        WHERE abs(weighed.weight - before) > CASE WHEN measured = 0 THEN 1e-9
            ELSE step * before END
        ORDER BY l.feed_id FOR UPDATE OF l SKIP LOCKED
    )
    UPDATE feedq.lease l SET weight = changed.weight FROM changed WHERE l.feed_id = changed.feed_id;
    GET DIAGNOSTICS weighed = ROW_COUNT;
    RETURN weighed;
END $body$;

-- Deletes history, at most so much: of the feeds of a page what is beyond so many events each, and of all what is too
-- old. Answers with how much of either.
--
-- The oldest by id: they are not looked for by time, which would read all that are young enough to stay. And ARRAY,
-- because a plan for a table that the planner takes for small looks for IN anew for each row, and deletes them all.
CREATE FUNCTION feedq_1.trim_history(after bigint, upto bigint, days int, per_feed int, most int) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    too_many int;
    too_old int;
BEGIN
    DELETE FROM feedq.event WHERE id = ANY (ARRAY(
        SELECT e.id FROM (
            SELECT f.id AS feed_id, (
                SELECT id FROM feedq.event WHERE feed_id = f.id ORDER BY id DESC OFFSET per_feed LIMIT 1
            ) AS last
            FROM feedq.feed f WHERE f.id > after AND f.id <= upto
        ) many JOIN feedq.event e ON e.feed_id = many.feed_id AND e.id <= many.last
        LIMIT most FOR UPDATE OF e SKIP LOCKED));
    GET DIAGNOSTICS too_many = ROW_COUNT;
    DELETE FROM feedq.event
    WHERE id = ANY (ARRAY(SELECT id FROM feedq.event ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED))
        AND at < feedq.clock() - make_interval(days => days);
    GET DIAGNOSTICS too_old = ROW_COUNT;
    RETURN json_build_array(too_many, too_old);
END $body$;

-- Forgets, at the end of a sweep, the sessions of workers that are gone for so long, and listeners that were killed.
CREATE FUNCTION feedq_1.forget(days int) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    forgotten int;
BEGIN
    DELETE FROM feedq.worker w
    WHERE w.state = 'gone' AND w.heartbeat_at < feedq.clock() - make_interval(days => days)
        AND NOT EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id)
        AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running');
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    DELETE FROM feedq.tap t WHERE NOT feedq_1.is_listening(t);
    DELETE FROM feedq.tap_part p WHERE NOT EXISTS (SELECT FROM feedq.tap t WHERE t.feed_id = p.feed_id);
    RETURN forgotten;
END $body$;
