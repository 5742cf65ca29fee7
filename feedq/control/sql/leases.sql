-- Leases: what owners do with theirs (claim, report, release), and what frees them when an owner is gone.
--
-- A lease is one row a feed. Its epoch only grows, with each assignment. A worker says with everything that it
-- does which worker it is, which feed it means, and under which epoch; what does not match has no effect, and is
-- missing in the answer. That is the whole fence: whoever was thought dead and comes back finds another epoch.
--
-- What owners report stands in a table of its own, `progress`, with the epoch that it was reported under: who reports
-- writes to no lease, and whether a feed is connected counts only under the epoch of its lease.
--
-- Locks. Leases are locked in the order of the ids of their feeds, here and in the passes, so that two statements
-- cannot deadlock. Whoever needs the feed as well, or its progress, locks the lease first. A statement waits for
-- another one, but not for a person who has a row open and has gone to lunch: after `lock_timeout` it starts anew with
-- the rows that are free (SKIP LOCKED), which it holds by then. What is locked for longer delays its own feed, and no
-- other.
--
-- Killed, frozen, or run twice. Each function is one transaction unless a pass calls it within its own. Killed before
-- the commit, nothing has happened. Killed after it and before its caller heard the answer, all has; the caller asks
-- again, and what matched the first time matches no more, or does the same once more. Frozen for longer than
-- idle_in_transaction_session_timeout, the server ends the transaction.
--
-- Plans. The planner cannot know how many leases are idle or assigned: a minute after all of a million were,
-- statistics still say so. So rows are looked up by their keys, each by itself (CROSS JOIN LATERAL), and whose they
-- are and in which state is asked after.

-- Each feed with its document, as `feedq.core.model.Feed` has it.
CREATE VIEW feedq_1.declared AS
SELECT f.*, (SELECT row_to_json(feed) FROM (SELECT
        f.id,
        (SELECT row_to_json(spec) FROM (SELECT
            f.name, f.tenant, f.connector, f.source, f.sink, f.labels, f.selector, f.weight, f.process,
            f.target_state, f.initial_cursor, f.expect
        ) spec) AS spec,
        f.generation, f.stream_generation, f.created_at, f.updated_at,
        (SELECT row_to_json(identity) FROM (SELECT
            f.uuid AS feed, (SELECT id FROM feedq.installation) AS installation
        ) identity) AS identity,
        f.removed_at, f.catalog,
        CASE WHEN f.parent IS NOT NULL THEN jsonb_build_object('parent', f.parent) || f.backfill END AS backfill
    ) feed) AS document
FROM feedq.feed f;

-- What a feed weighs now: what is declared, blended with what was measured of it. One that lands as many rows and bytes
-- a second as the mean of the fleet measures 1; half of the measure is rows, half bytes. `measured`, from 0 to 1, is how
-- much of the weight that is.
--
-- A feed that lands nothing reports nothing: beyond half a minute its rates are taken to fade. It weighs a hundredth
-- at least: none at all would let any number of them go to one worker. Rounded, so that two who compute it agree.
CREATE FUNCTION feedq_1.effective_weight(
    f feedq.feed, p feedq.progress, measured float8, means float8[]
) RETURNS float8 LANGUAGE sql VOLATILE AS $body$
    SELECT CASE WHEN measured = 0 OR p.reported_at IS NULL OR means = '{0,0}' THEN f.weight
        ELSE greatest(0.01, round(((1 - measured) * f.weight + measured
            * exp(-least(greatest(extract(epoch FROM feedq.clock() - p.reported_at)::float8 / 30 - 1, 0), 20))
            * (coalesce(p.rows_per_s / nullif(means[1], 0), p.bytes_per_s / means[2])
                + coalesce(p.bytes_per_s / nullif(means[2], 0), p.rows_per_s / means[1])) / 2
            )::numeric, 2)::float8) END
$body$;

-- The rows and the bytes a second that the mean feed of the fleet lands. Nothing is read where they count for nothing.
CREATE FUNCTION feedq_1.means(measured float8) RETURNS float8[] LANGUAGE sql STABLE AS $body$
    SELECT CASE WHEN measured = 0 THEN '{0,0}' ELSE (
        SELECT ARRAY[coalesce(sum(w.rows_per_s) / greatest(sum(h.feeds), 1), 0),
            coalesce(sum(w.bytes_per_s) / greatest(sum(h.feeds), 1), 0)]
        FROM feedq.worker w JOIN feedq.worker_held h ON h.worker_id = w.id WHERE w.state <> 'gone') END
$body$;

-- Locks those of these leases that nobody else has locked, with their feeds and progress, and answers with their feeds.
CREATE FUNCTION feedq_1.lock_free(feeds bigint[]) RETURNS bigint[] LANGUAGE sql AS $body$
    SELECT ARRAY(
        SELECT l.feed_id FROM feedq.lease l
        JOIN feedq.feed f ON f.id = l.feed_id JOIN feedq.progress p ON p.feed_id = l.feed_id
        WHERE l.feed_id = ANY (feeds)
        ORDER BY l.feed_id FOR UPDATE OF l, p SKIP LOCKED FOR NO KEY UPDATE OF f SKIP LOCKED)
$body$;

-- assigned -> running. Answers with the feeds as they are declared at this moment.
--
-- The feed is locked FOR SHARE after its lease: an edit that commits while we wait for the lease is read, not missed.
-- What somebody has locked for longer is left out; the worker claims it again when it next looks for assignments.
-- Run twice, the second finds nothing assigned: `claimed` says what the first was given.
CREATE FUNCTION feedq_1.claim(owner uuid, feed_ids bigint[], epochs bigint[]) RETURNS json
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
#variable_conflict use_column
DECLARE
    avoided_max constant int := 8;  -- as in `release`
    -- A feed that had no place for longer than this after its worker was lost connects at the usual pace.
    failover_within constant interval := '30 s';
    claims json;
    anew bigint[];
    free bigint[];
BEGIN
    WITH given AS (
        SELECT * FROM unnest(feed_ids, epochs) AS given (feed_id, epoch) ORDER BY feed_id
    ), locked AS (
        SELECT l.* FROM given CROSS JOIN LATERAL (
            SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id AND l.epoch = given.epoch FOR UPDATE
        ) l
    ), held AS (
        SELECT locked.*, f.document, f.generation AS declared, w.name AS worker, w.started_at AS worker_started_at,
            p.attempts, p.failures,
            -- What went wrong, or was noticed, under another declaration says nothing of this one.
            f.stream_generation > locked.generation
                AND (p.noticed IS NOT NULL OR p.attempts > 0 OR p.failures > 0) AS starts_anew,
            -- Taken a moment ago from an owner that this worker has lived beside: until then its source had this
            -- connection. When a whole fleet was killed and starts anew, no source has had them for a while.
            coalesce(locked.lost_at >= feedq.clock() - failover_within
                AND (locked.running_since IS NULL OR locked.lost_at > locked.running_since)
                AND (SELECT lost.heartbeat_at > w.started_at FROM feedq.worker lost WHERE lost.id = locked.lost_worker),
                false) AS after_loss
        FROM locked JOIN feedq.worker w ON w.id = locked.worker_id
        JOIN feedq.progress p ON p.feed_id = locked.feed_id
        CROSS JOIN LATERAL (
            SELECT d.document, d.generation, d.stream_generation FROM feedq_1.declared d
            WHERE d.id = locked.feed_id FOR SHARE SKIP LOCKED
        ) f
        WHERE locked.worker_id = owner AND locked.state = 'assigned' AND w.state = 'active'
    ), claimed AS (
        UPDATE feedq.lease l SET
            state = 'running', generation = held.declared, running_since = feedq.clock(), due_at = NULL,
            -- What cannot run as declared has failed until more is known, and history need not say so again.
            reason = CASE WHEN l.reason = 'failed' THEN 'failed' END
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, l.epoch, l.reason IS NOT NULL AS has_failed
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT 'lease_claimed', feed_id, owner, epoch FROM claimed WHERE NOT has_failed
    )
    SELECT json_agg(json_build_object(
        'feed', held.document, 'epoch', claimed.epoch, 'quarantined', held.quarantined,
        'attempts', CASE WHEN held.starts_anew THEN 0 ELSE held.attempts END,
        'failures', CASE WHEN held.starts_anew THEN 0 ELSE held.failures END,
        'has_failed', claimed.has_failed, 'after_loss', held.after_loss,
        -- A worker session that began after the feed failed on the one before it has not had its try.
        'is_new_here', held.avoid = '{}' OR (
            coalesce((held.avoid ->> held.worker)::float8 < extract(epoch FROM held.worker_started_at), true)
            AND (SELECT count(*) FROM jsonb_object_keys(held.avoid)) < avoided_max))),
        array_agg(held.feed_id) FILTER (WHERE held.starts_anew)
    INTO claims, anew FROM held JOIN claimed USING (feed_id);
    UPDATE feedq.progress SET noticed = NULL, attempts = 0, failures = 0 WHERE feed_id = ANY (anew);
    RETURN coalesce(claims, '[]');
EXCEPTION WHEN lock_not_available THEN
    free := feedq_1.lock_free(feed_ids);
    RETURN (SELECT feedq_1.claim(owner, array_agg(feed_id), array_agg(epoch))
        FROM unnest(feed_ids, epochs) AS given (feed_id, epoch) WHERE feed_id = ANY (free));
END $body$;

-- running or stopping -> idle, as its owner is done with it. Wakes reconcile, unless all that happened is that what has
-- failed was checked again. Answers with what matched. What somebody has locked is left out; the worker releases it
-- again when it next compares what it runs with its leases.
--
-- `hold_s`: for so long what an announced end releases is kept for the process that is about to take the owner's
-- place. Not after a crash, nor what a person asked for meanwhile, nor what is on its way to another worker already.
--
-- `sink_epoch`: the sink knows of this one. If it is larger than the lease's, the control database has forgotten
-- something, as one does that was restored; then the lease gets it, and the next owner one that is larger still.
CREATE FUNCTION feedq_1.release(owner uuid, releases json, hold_s float8) RETURNS json
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
#variable_conflict use_column
DECLARE
    -- Workers on which a feed failed that are remembered. One that failed on so many is not hurried to a ninth: it is
    -- not the workers that fail.
    avoided_max constant int := 8;
    -- No feed has had so many owners: who finds this in a sink has found a damaged row, and no pass may run out of
    -- numbers because of it.
    epochs_max constant bigint := 1::bigint << 62;
    keys json;
    is_news boolean;
    free bigint[];
BEGIN
    WITH given AS (
        SELECT * FROM json_to_recordset(releases) AS given (
            feed_id bigint, epoch bigint, reason text, retry_in_s float8, attempts int, error text, records bigint,
            sink_epoch bigint)
        ORDER BY feed_id
    ), locked AS (
        SELECT given.*, l.worker_id, l.state, l.promised_to, l.reason AS before
        FROM given CROSS JOIN LATERAL (
            SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id AND l.epoch = given.epoch FOR UPDATE
        ) l
    ), held AS (
        SELECT locked.feed_id, locked.epoch, locked.error, locked.attempts, locked.records, w.name AS worker,
            CASE WHEN sink_epoch > locked.epoch AND sink_epoch < epochs_max THEN sink_epoch END AS raised_to,
            coalesce(locked.reason = 'failed' AND before = 'failed' AND error = p.last_error, false) AS is_known,
            CASE WHEN kept THEN 'held' ELSE locked.reason END AS reason,
            CASE WHEN kept THEN hold_s ELSE locked.retry_in_s END AS delay_s
        FROM locked JOIN feedq.worker w ON w.id = locked.worker_id
        JOIN feedq.progress p ON p.feed_id = locked.feed_id
        CROSS JOIN LATERAL (
            SELECT hold_s > 0 AND w.state = 'draining' AND locked.reason IN ('drained', 'released')
                AND locked.promised_to IS NULL AS kept
        ) k
        WHERE locked.worker_id = owner AND locked.state IN ('running', 'stopping')
    ), released AS (
        UPDATE feedq.lease l SET
            state = 'idle', worker_id = NULL, reason = held.reason, epoch = coalesce(held.raised_to, l.epoch),
            -- What was promised to another worker stays so.
            promised_to = CASE WHEN held.reason <> 'failed' THEN l.promised_to END,
            moved_at = CASE WHEN held.reason <> 'failed' AND l.promised_to IS NOT NULL THEN l.moved_at END,
            held_for = CASE WHEN held.reason = 'held' THEN held.worker END,
            avoid = CASE
                WHEN held.reason IN ('backoff', 'failed') THEN (
                    SELECT jsonb_object_agg(key, value) FROM (
                        SELECT key, value FROM jsonb_each(
                            l.avoid || jsonb_build_object(held.worker, extract(epoch FROM feedq.clock())))
                        ORDER BY value DESC LIMIT avoided_max
                    ) latest)
                WHEN held.reason = 'edited' THEN '{}'
                ELSE l.avoid END,
            due_at = CASE WHEN held.delay_s > 0 OR held.reason = 'failed'
                THEN feedq.clock() + make_interval(secs => held.delay_s) END
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, held.epoch, held.raised_to, held.reason, held.error, held.is_known
    ), told AS (
        UPDATE feedq.progress p SET
            attempts = held.attempts, records_total = coalesce(held.records, p.records_total),
            last_error = coalesce(held.error, p.last_error),
            last_error_at = CASE WHEN held.error IS NULL THEN p.last_error_at ELSE feedq.clock() END
        FROM held WHERE p.feed_id = held.feed_id
            AND (p.attempts <> held.attempts OR held.records IS NOT NULL OR held.error IS NOT NULL)
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT 'lease_released', feed_id, owner, epoch,
            jsonb_strip_nulls(jsonb_build_object('reason', reason, 'error', error))
        FROM released WHERE NOT is_known
        UNION ALL
        SELECT 'lease_raised', feed_id, owner, raised_to, jsonb_build_object('from', epoch)
        FROM released WHERE raised_to IS NOT NULL
    )
    SELECT json_agg(json_build_array(feed_id, epoch)), bool_or(NOT is_known) INTO keys, is_news FROM released;
    IF is_news THEN
        PERFORM pg_notify('feedq_wake', '');
    END IF;
    RETURN coalesce(keys, '[]');
EXCEPTION WHEN lock_not_available THEN
    free := feedq_1.lock_free(ARRAY(SELECT feed_id FROM json_to_recordset(releases) AS given (feed_id bigint)));
    RETURN (SELECT feedq_1.release(owner, json_agg(one), hold_s)
        FROM json_array_elements(releases) AS given (one) WHERE (one ->> 'feed_id')::bigint = ANY (free));
END $body$;

-- Adds up what owners report of feeds that they run. Answers with those that the owner `held`, and with those that
-- somebody has locked, which have not been added up and are to be reported again: they are `busy`. The rest has been
-- lost, and must be stopped. Wakes reconcile when one that was moved is connected: others may move now.
--
-- No lease is locked for that. An owner that has just lost one still adds up what it landed under its epoch; but not
-- after a later owner has reported, and that it was connected then counts no more.
--
-- Counters are since the report before. Run twice, a report counts twice: a worker that has not heard the answer does
-- not send it again, and what it landed meanwhile comes with the next.
CREATE FUNCTION feedq_1.report(owner uuid, progress json) RETURNS json LANGUAGE plpgsql
SET lock_timeout = '200ms' SET enable_mergejoin = off SET enable_hashjoin = off  -- by nothing but keys
AS $body$
#variable_conflict use_column
DECLARE
    keys json;
    news json;
    free bigint[];
BEGIN
    WITH given AS (
        SELECT * FROM json_to_recordset(progress) AS given (
            feed_id bigint, epoch bigint, records bigint, bytes bigint, dead_letters bigint,
            rows_per_s float8, bytes_per_s float8, dead_per_s float8,
            last_record_ago_s float8, cursor json, connected boolean, stalled boolean, attempts int, error text,
            failures int, dead_letter_error text, sink_error text, rewind jsonb, noticed jsonb,
            has_event_times boolean, event_at float8, event_fault text)
        ORDER BY feed_id
    ), held AS (
        SELECT given.*,
            -- The owner that releases it still reports, and is connected.
            l.moved_at IS NOT NULL AND l.state = 'running' AND connected AS has_arrived,
            l.reason IS NOT NULL AND l.state = 'running' AND (records > 0 OR attempts > 0) AS can_run,
            -- Landed on a worker on which it failed before: then it was not the worker that could not reach its source.
            l.avoid <> '{}' AND records > 0
                AND jsonb_exists(l.avoid, (SELECT name FROM feedq.worker WHERE id = owner)) AS is_welcome
        FROM given CROSS JOIN LATERAL (
            SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id AND l.epoch = given.epoch OFFSET 0
        ) l
        WHERE l.worker_id = owner AND l.state IN ('running', 'stopping')
    ), reported AS (
        UPDATE feedq.progress p SET
            epoch = held.epoch, reported_at = feedq.clock(),
            records_total = p.records_total + held.records,
            bytes_total = p.bytes_total + held.bytes,
            dead_letters_total = p.dead_letters_total + held.dead_letters,
            -- Below zero while letters were replayed that no report has counted yet: this one has.
            dead_letters = greatest(p.dead_letters + held.dead_letters, 0),
            rows_per_s = held.rows_per_s, bytes_per_s = held.bytes_per_s, dead_per_s = held.dead_per_s,
            -- Never earlier: a report that was held up dates it too late, and the next one must not take that back.
            last_record_at = greatest(
                feedq.clock() - make_interval(secs => held.last_record_ago_s), p.last_record_at),
            cursor = held.cursor, connected = held.connected, stalled = held.stalled,
            attempts = held.attempts, failures = held.failures, sink_error = held.sink_error,
            dead_letter_error = coalesce(held.dead_letter_error, p.dead_letter_error),
            dead_letter_at = CASE WHEN held.dead_letters > 0 THEN feedq.clock() ELSE p.dead_letter_at END,
            last_error = coalesce(held.error, p.last_error),
            last_error_at = CASE WHEN held.error IS NULL THEN p.last_error_at ELSE feedq.clock() END,
            event_at = CASE WHEN held.has_event_times
                THEN greatest(least(to_timestamp(held.event_at), feedq.clock()), p.event_at) END,
            event_fault = CASE WHEN held.records > 0 OR NOT held.has_event_times THEN held.event_fault
                ELSE p.event_fault END
        FROM held WHERE p.feed_id = held.feed_id AND p.epoch <= held.epoch
        RETURNING held.*
    ), rewound AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT 'sink_rewound', feed_id, owner, epoch, rewind FROM reported WHERE rewind IS NOT NULL
    )
    SELECT json_agg(json_build_array(feed_id, epoch)),
        json_agg(json_build_object('feed_id', feed_id, 'epoch', epoch, 'has_arrived', has_arrived,
                'can_run', can_run, 'is_mended', can_run AND records > 0, 'is_welcome', is_welcome,
                'noticed', noticed))
            FILTER (WHERE has_arrived OR can_run OR is_welcome OR noticed IS NOT NULL)
    INTO keys, news FROM reported;
    IF news IS NOT NULL THEN
        PERFORM feedq_1.heed(owner, news);
    END IF;
    RETURN json_build_object('held', coalesce(keys, '[]'), 'busy', json_build_array());
EXCEPTION WHEN lock_not_available THEN
    free := feedq_1.lock_free(ARRAY(SELECT feed_id FROM json_to_recordset(progress) AS given (feed_id bigint)));
    RETURN json_build_object(
        'held', (SELECT feedq_1.report(owner, json_agg(one)) -> 'held'
            FROM json_array_elements(progress) AS given (one) WHERE (one ->> 'feed_id')::bigint = ANY (free)),
        'busy', (
            SELECT coalesce(json_agg(json_build_array(feed_id, epoch)), '[]')
            FROM json_to_recordset(progress) AS given (feed_id bigint, epoch bigint)
            JOIN feedq.lease l USING (feed_id, epoch)
            WHERE l.worker_id = owner AND l.state IN ('running', 'stopping') AND feed_id <> ALL (free)));
END $body$;

-- What a report tells once: a feed that was moved `has_arrived`; one that had failed `can_run` as declared; one
-- `is_welcome` where it failed before; something was `noticed`, or is so no longer (null). A lease that somebody has
-- locked is left as it is: the next report says the same of it.
CREATE FUNCTION feedq_1.heed(owner uuid, news json) RETURNS boolean LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    -- What was noticed of a feed takes no more in its row; after that nothing more is told.
    noticed_bytes_max constant int := 16384;
    has_arrived boolean;
BEGIN
    WITH given AS (
        SELECT given.*, p.noticed AS known FROM json_to_recordset(news) AS given (
            feed_id bigint, epoch bigint, noticed jsonb)
        JOIN feedq.progress p USING (feed_id)
        WHERE given.noticed IS NOT NULL AND coalesce(pg_column_size(p.noticed), 0) < noticed_bytes_max
    ), told AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT 'feed_noticed', feed_id, owner, epoch, fresh.detail FROM given CROSS JOIN LATERAL (
            SELECT jsonb_object_agg(key, value) AS detail FROM jsonb_each(given.noticed)
            WHERE known -> key IS DISTINCT FROM value AND value <> 'null'
        ) fresh
        WHERE fresh.detail IS NOT NULL
    )
    UPDATE feedq.progress p
    SET noticed = nullif(jsonb_strip_nulls(coalesce(p.noticed, '{}') || given.noticed), '{}')
    FROM given WHERE p.feed_id = given.feed_id;
    WITH given AS (
        SELECT given.*, l.state FROM json_to_recordset(news) AS given (
            feed_id bigint, epoch bigint, has_arrived boolean, can_run boolean, is_mended boolean, is_welcome boolean)
        JOIN feedq.lease l USING (feed_id, epoch)
        WHERE given.has_arrived OR given.can_run OR given.is_welcome
        ORDER BY feed_id FOR UPDATE OF l SKIP LOCKED
    ), heeded AS (
        UPDATE feedq.lease l SET
            reason = CASE WHEN NOT given.can_run THEN l.reason END,
            moved_at = CASE WHEN NOT given.has_arrived THEN l.moved_at END,
            avoid = CASE WHEN given.is_welcome THEN '{}' ELSE l.avoid END
        FROM given WHERE l.feed_id = given.feed_id AND l.worker_id = owner
        RETURNING l.feed_id, l.epoch, given.has_arrived, given.is_mended
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
        SELECT 'feed_mended', feed_id, owner, epoch FROM heeded WHERE is_mended
    )
    SELECT bool_or(heeded.has_arrived) INTO has_arrived FROM heeded;
    IF has_arrived THEN
        PERFORM pg_notify('feedq_wake', '');
    END IF;
    RETURN true;
END $body$;

-- Makes idle what these workers hold in these states, `among` these feeds if any are given; the next owner gets another
-- epoch. Answers with how many leases that were. What somebody has locked stays as it is, until a later pass (`reap`).
CREATE FUNCTION feedq_1.free(owners uuid[], states text[], because text, among bigint[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
DECLARE
    -- What a monitor takes, at most, to say how its worker was lost: on a busy machine it needs seconds to load what a
    -- report takes, and then it tries the control database for some more.
    verdict constant interval := '10 s';
    -- Being in hand twice within this, at the end of two workers, is no chance.
    blame_recent constant interval := '10 min';
    soon constant interval := '30 s';
    is_lost constant boolean := because = 'worker_gone';
    freed int;
BEGIN
    WITH held AS (
        SELECT feed_id, worker_id FROM feedq.lease
        WHERE worker_id = ANY (owners) AND state = ANY (states) AND (among IS NULL OR feed_id = ANY (among))
        ORDER BY feed_id FOR UPDATE
    ), freed AS (
        UPDATE feedq.lease l SET
            state = 'idle', worker_id = NULL, reason = because, promised_to = NULL, moved_at = NULL, held_for = NULL,
            -- It waits for the verdict when it is in quarantine, was in hand at another worker's loss not long ago, or
            -- was lost with a worker a moment ago, nobody knows yet how: so what ends each worker within a second is not
            -- faster than the verdict.
            due_at = CASE WHEN is_lost AND (
                    l.quarantined
                    OR l.blamed_at >= feedq.clock() - blame_recent
                    OR l.lost_at >= feedq.clock() - soon
                        AND EXISTS (SELECT FROM feedq.worker w WHERE w.id = l.lost_worker AND w.loss IS NULL)
                ) THEN feedq.clock() + verdict END,
            lost_worker = CASE WHEN is_lost THEN held.worker_id ELSE l.lost_worker END,
            lost_at = CASE WHEN is_lost THEN feedq.clock() ELSE l.lost_at END
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, held.worker_id, l.epoch
    )
    INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
    SELECT 'lease_freed', feed_id, worker_id, epoch, jsonb_build_object('reason', because) FROM freed;
    GET DIAGNOSTICS freed = ROW_COUNT;
    RETURN freed;
EXCEPTION WHEN lock_not_available THEN
    RETURN feedq_1.free(owners, states, because, feedq_1.lock_free(ARRAY(
        SELECT feed_id FROM feedq.lease WHERE worker_id = ANY (owners) AND state = ANY (states))));
END $body$;

-- running -> stopping: asks owners to let go of feeds, each for a `reason`. Answers with how many were asked.
--
-- One statement says that the feed is to be released, where it goes if it has a place already (promised_to), and until
-- when its owner is waited for (due_at). Killed before it, nothing has happened. Killed after it, the owner lets go or is
-- reaped, and any later pass assigns the feed: to the worker it was promised to, if that still takes feeds, else
-- anywhere. Nothing has to be remembered outside the row.
--
-- A feed with a `target` moves there, if its `source` still has it. One that is to be `apart` goes on in quarantine, and
-- one that is not any more among all others.
--
-- What somebody has locked can stop with another pass: this one may hold what they wait for.
CREATE FUNCTION feedq_1.ask_to_stop(feeds json, stop_within_s float8) RETURNS int
LANGUAGE plpgsql AS $body$
DECLARE
    owners uuid[];
BEGIN
    WITH given AS (
        SELECT * FROM json_to_recordset(feeds) AS given (
            feed_id bigint, reason text, source uuid, target uuid, apart boolean)
        ORDER BY feed_id
    ), locked AS (
        SELECT given.*, l.worker_id, l.state FROM given CROSS JOIN LATERAL (
            SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id FOR UPDATE SKIP LOCKED
        ) l
    ), held AS (
        SELECT locked.*, s.target_state, w.name AS target_name FROM locked
        JOIN feedq.worker s ON s.id = locked.worker_id
        LEFT JOIN feedq.worker w ON w.id = locked.target
        WHERE locked.state = 'running' AND (locked.target IS NULL
            OR locked.worker_id = locked.source AND s.state <> 'gone' AND w.id IS NOT NULL)
    ), asked AS (
        UPDATE feedq.lease l SET
            state = 'stopping', quarantined = coalesce(held.apart, l.quarantined),
            promised_to = coalesce(held.target, l.promised_to),
            moved_at = CASE WHEN held.target IS NULL THEN l.moved_at ELSE feedq.clock() END,
            reason = coalesce(held.reason, CASE held.target_state WHEN 'drained' THEN 'drained' ELSE 'moved' END),
            due_at = feedq.clock() + make_interval(secs => stop_within_s)
        FROM held WHERE l.feed_id = held.feed_id
        RETURNING l.feed_id, l.epoch, l.worker_id, l.reason, held.target_name, held.apart
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT CASE WHEN apart = false THEN 'feed_pardoned' ELSE 'stop_requested' END, feed_id, worker_id, epoch,
            jsonb_strip_nulls(jsonb_build_object('reason', reason, 'to', target_name))
        FROM asked
    )
    SELECT array_agg(worker_id) INTO owners FROM asked;
    PERFORM pg_notify('feedq_worker_' || lock_key, 'feeds') FROM feedq.worker WHERE id = ANY (owners);
    RETURN coalesce(cardinality(owners), 0);
END $body$;

-- Holds the loss of a worker against a feed: one whose own code is known to have ended it is quarantined at once, one
-- that was in hand the second time. So at most two workers are lost to one feed, and one that was there by chance
-- loses nothing. One that is in quarantine already is tried again after a pause, twice as long each time. Wakes
-- reconcile. Answers with whether it is in quarantine.
CREATE FUNCTION feedq_1.blame(feed bigint, session uuid, is_certain boolean, said text) RETURNS boolean
LANGUAGE plpgsql AS $body$
DECLARE
    recent constant interval := '10 min';  -- as in `free`
    kept constant interval := '1 day';
    retry_first constant interval := '10 s';
    retry_longest constant interval := '10 min';
    before feedq.lease;
    again boolean;
BEGIN
    SELECT * INTO before FROM feedq.lease WHERE feed_id = feed FOR UPDATE;
    IF NOT FOUND THEN  -- the feed was removed
        RETURN false;
    END IF;
    again := coalesce(before.blamed_at >= feedq.clock() - recent, false);
    UPDATE feedq.lease l SET
        blamed = CASE WHEN before.blamed_at >= feedq.clock() - kept THEN before.blamed + 1 ELSE 1 END,
        blamed_at = feedq.clock(), blame = said,
        quarantined = before.quarantined OR is_certain OR again,
        due_at = CASE WHEN before.quarantined AND l.state = 'idle' THEN greatest(l.due_at, feedq.clock()
            + least(retry_longest, retry_first * 2 ^ greatest(least(before.blamed, 7) - 1, 0))) ELSE l.due_at END
    WHERE l.feed_id = feed;
    IF (is_certain OR again) AND NOT before.quarantined THEN
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        VALUES ('feed_quarantined', feed, session, before.epoch, jsonb_build_object('why', said));
    END IF;
    PERFORM pg_notify('feedq_wake', '');
    RETURN before.quarantined OR is_certain OR again;
END $body$;

-- Frees what an owner was asked to release and has not in time, and what workers that are gone still have, because
-- somebody had it locked when they went. Answers with how many leases that were.
--
-- What is locked is being released this very moment.
CREATE FUNCTION feedq_1.reap() RETURNS int
LANGUAGE plpgsql AS $body$
DECLARE
    reaped int;
    gone uuid[];
BEGIN
    WITH late AS (
        SELECT feed_id, worker_id FROM feedq.lease
        WHERE state = 'stopping' AND due_at <= feedq.clock() ORDER BY feed_id FOR UPDATE SKIP LOCKED
    ), freed AS (
        -- What was promised to another worker stays so.
        UPDATE feedq.lease l SET
            state = 'idle', worker_id = NULL, reason = 'reaped', due_at = NULL,
            moved_at = CASE WHEN l.promised_to IS NOT NULL THEN l.moved_at END
        FROM late WHERE l.feed_id = late.feed_id
        RETURNING l.feed_id, l.epoch, late.worker_id
    )
    INSERT INTO feedq.event (kind, feed_id, worker_id, epoch)
    SELECT 'lease_reaped', feed_id, worker_id, epoch FROM freed;
    GET DIAGNOSTICS reaped = ROW_COUNT;
    SELECT array_agg(w.id) INTO gone
    FROM feedq.worker_held h JOIN feedq.worker w ON w.id = h.worker_id WHERE h.feeds > 0 AND w.state = 'gone';
    IF gone IS NOT NULL THEN
        reaped := reaped + feedq_1.free(gone, '{assigned,running,stopping}', 'worker_gone');
    END IF;
    RETURN reaped;
END $body$;
