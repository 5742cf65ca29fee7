-- Feeds: what people want of them (declare, act, move), and the backfills that are begun for them.
--
-- Each function is given many feeds, by name, and answers each with its id and generation as they are then, or with why
-- it was left as it was (`refusal`): one feed keeps no other from being changed. What was decided for one version of a
-- feed says which; if that has changed meanwhile, the feed is left alone. A change marks its feed dirty, writes history
-- in the same transaction, and wakes reconcile.
--
-- Who asks. `of_tenant` is the tenant that the author is confined to, NULL for anybody else; it is compared within the
-- transaction, as whose a feed is may have changed since it was looked at. `told` is what history keeps of the change
-- besides, its author for one.
--
-- Locks. Feeds are locked in the order of their ids, as passes lock them, and new ones are inserted in the order of
-- their names, so that two who declare the same need not wait for each other in a circle. Whoever changes leases as
-- well locks those first.
--
-- Killed, frozen, or run twice. Each function is one transaction. Killed before the commit, nothing has happened.
-- Run twice with a version, the second finds another one, and does nothing; without, it pauses what is paused already,
-- or restarts once more.

-- Writes an event.
CREATE FUNCTION feedq_1.record(kind text, feed bigint, told jsonb) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO feedq.event (kind, feed_id, detail) VALUES (kind, feed, told);
    RETURN true;
END $body$;

-- Why a feed, which is locked, may not be changed; NULL if it may. `id` and `generation` say for which version of it
-- the change was decided, NULL for any.
CREATE FUNCTION feedq_1.refusal(f feedq.feed, id bigint, generation int, of_tenant text) RETURNS text
LANGUAGE sql IMMUTABLE AS $body$
    SELECT CASE WHEN f.id IS NULL THEN 'missing' WHEN f.parent IS NOT NULL THEN 'backfill'
        WHEN f.id <> id OR f.generation <> generation THEN 'outdated'
        WHEN f.tenant <> of_tenant THEN 'foreign' END
$body$;

-- Inserts the feeds whose names are free, each with its lease: that says all that a pass needs to know, so that a pass
-- has nothing to do.
--
-- Once many have come, the planner looks at their tables again, for all sessions. A plan that was made for a few feeds,
-- and kept, compares each of thousands with each other one; autovacuum notices, but up to a minute later.
CREATE FUNCTION feedq_1.insert_feeds(declared json, of_catalog text) RETURNS SETOF feedq.feed
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    added int;
BEGIN
    RETURN QUERY WITH inserted AS (
        INSERT INTO feedq.feed (name, tenant, connector, source, sink, labels, selector, weight, process,
            target_state, initial_cursor, expect, catalog, parent, backfill, dirty)
        SELECT name, tenant, connector, source, sink, labels, selector, weight, process,
            target_state, initial_cursor, expect, of_catalog, parent, backfill, false
        FROM json_populate_recordset(NULL::feedq.feed, declared) ORDER BY name
        ON CONFLICT (name) WHERE removed_at IS NULL DO NOTHING RETURNING *
    ), leased AS (
        INSERT INTO feedq.lease (feed_id, reason)
        SELECT id, CASE target_state WHEN 'paused' THEN 'paused' ELSE 'new' END FROM inserted
    )
    SELECT * FROM inserted;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added > greatest(50, (SELECT reltuples FROM pg_class WHERE oid = 'feedq.lease'::regclass) / 10) THEN
        ANALYZE (SKIP_LOCKED) feedq.feed, feedq.lease, feedq.progress;
    END IF;
END $body$;

-- Declares feeds that there are not yet. A name that is in use is refused as taken.
CREATE FUNCTION feedq_1.add_feeds(declared json, of_catalog text, told jsonb) RETURNS json
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    outcomes json;
BEGIN
    WITH added AS (
        SELECT * FROM feedq_1.insert_feeds(declared, of_catalog)
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT 'feed_added', id, jsonb_build_object('generation', generation) || told FROM added ORDER BY id
    )
    SELECT json_agg(json_build_object('name', given.name, 'id', id, 'generation', generation,
        'refusal', CASE WHEN id IS NULL THEN 'taken' END)) INTO outcomes
    FROM json_to_recordset(declared) AS given (name text) LEFT JOIN added USING (name);
    PERFORM pg_notify('feedq_wake', '');
    RETURN outcomes;
END $body$;

-- Replaces declarations, each of the version that it was made from. What is declared so already stays as it is,
-- whoever has made it so: two who declare the same at once are both right.
--
-- A catalog changes nothing but its own feeds, and those that it takes over.
CREATE FUNCTION feedq_1.edit_feeds(declared json, of_catalog text, of_tenant text, told jsonb) RETURNS json
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    names constant text[] := ARRAY(SELECT one ->> 'name' FROM json_array_elements(declared) AS given (one));
    outcomes json;
BEGIN
    WITH locked AS (
        SELECT f FROM feedq.feed f WHERE name = ANY (names) AND removed_at IS NULL ORDER BY id FOR UPDATE
    ), compared AS (
        SELECT given.*, f, coalesce(of_catalog, (f).catalog) AS its_catalog,
            ((f).tenant, (f).connector, (f).source, (f).sink::jsonb, (f).labels, (f).selector, (f).weight,
                (f).process, (f).target_state, (f).initial_cursor, (f).expect) IS DISTINCT FROM
            (given.tenant, given.connector, given.source, given.sink::jsonb, given.labels, given.selector,
                given.weight, given.process, given.target_state, given.initial_cursor, given.expect) AS differs
        FROM json_to_recordset(declared) AS given (
            name text, tenant text, connector text, source jsonb, sink json, labels jsonb, selector jsonb,
            weight float8, process text, target_state text, initial_cursor jsonb, expect jsonb,
            id bigint, generation int, takes_over boolean, detail jsonb)
        LEFT JOIN locked ON (f).name = given.name
    ), judged AS (
        SELECT compared.*, (f).catalog IS DISTINCT FROM its_catalog AS changes_hands,
            CASE WHEN differs THEN feedq_1.refusal(f, id, generation, of_tenant)
                ELSE feedq_1.refusal(f, NULL, NULL, of_tenant) END AS refusal
        FROM compared
    ), ruled AS (
        SELECT judged.*, CASE WHEN refusal IS NULL AND changes_hands AND NOT takes_over THEN 'catalog'
            ELSE refusal END AS ruling
        FROM judged
    ), edited AS (
        UPDATE feedq.feed SET
            tenant = given.tenant, connector = given.connector, source = given.source, sink = given.sink,
            labels = given.labels, selector = given.selector, weight = given.weight,
            process = given.process, target_state = given.target_state, initial_cursor = given.initial_cursor,
            expect = given.expect,
            catalog = its_catalog, generation = feed.generation + differs::int, updated_at = feedq.clock()
        FROM ruled given WHERE feed.id = (f).id AND ruling IS NULL AND (differs OR changes_hands)
        RETURNING feed.id, feed.generation, detail
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT 'feed_edited', id, jsonb_build_object('generation', generation) || detail || told
        FROM edited ORDER BY id
    )
    SELECT json_agg(json_build_object('name', name, 'id', (f).id,
            'generation', coalesce(edited.generation, (f).generation), 'refusal', ruling,
            'catalog', (f).catalog))
    INTO outcomes FROM ruled LEFT JOIN edited ON edited.id = (f).id;
    RETURN outcomes;
END $body$;

-- Pauses, resumes, restarts or removes feeds, as `what` says in the words of history; any other event is only written
-- down of them. What is paused or resumed already stays as it is. A feed that starts anew is of another generation, and
-- its failures are forgotten. A removed one keeps its row until nobody streams it.
CREATE FUNCTION feedq_1.act_on_feeds(
    what text, names text[], ids bigint[], generations int[], of_catalog text, of_tenant text, told jsonb
) RETURNS json LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    target constant text := CASE what WHEN 'feed_paused' THEN 'paused' WHEN 'feed_resumed' THEN 'running' END;
    starts_anew constant boolean := target IS NOT NULL OR what IN ('feed_restarted', 'cursor_changed');
    removes constant boolean := what = 'feed_removed';
    outcomes json;
BEGIN
    WITH locked AS (
        SELECT f FROM feedq.feed f WHERE name = ANY (names) AND removed_at IS NULL ORDER BY id FOR UPDATE
    ), judged AS (
        SELECT given.name, f, coalesce(feedq_1.refusal(f, given.id, given.generation, of_tenant),
            CASE WHEN (f).catalog IS DISTINCT FROM coalesce(of_catalog, (f).catalog) THEN 'catalog' END) AS refusal
        FROM unnest(names, ids, generations) AS given (name, id, generation)
        LEFT JOIN locked ON (f).name = given.name
    ), touched AS (
        SELECT * FROM judged WHERE refusal IS NULL AND coalesce((f).target_state <> target, true)
    ), changed AS (
        UPDATE feedq.feed SET
            target_state = coalesce(target, feed.target_state), generation = feed.generation + starts_anew::int,
            removed_at = CASE WHEN removes THEN feedq.clock() END, updated_at = feedq.clock()
        FROM touched WHERE feed.id = (f).id AND (starts_anew OR removes)
        RETURNING feed.id, feed.generation
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT what, (f).id,
            CASE WHEN id IS NULL THEN told ELSE jsonb_build_object('generation', generation) || told END
        FROM touched LEFT JOIN changed ON id = (f).id ORDER BY (f).id
    )
    SELECT json_agg(json_build_object('name', name, 'id', (f).id,
            'generation', coalesce(generation, (f).generation), 'refusal', refusal, 'catalog', (f).catalog))
    INTO outcomes FROM judged LEFT JOIN changed ON id = (f).id;
    RETURN outcomes;
END $body$;

-- Says that a person changes the cursor of a feed in its sink, and restarts the feed; called right before the sink
-- commits. What its owner reports later is newer.
CREATE FUNCTION feedq_1.change_cursor(named text, cursor json, of_tenant text, told jsonb) RETURNS json
LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.progress p SET cursor = change_cursor.cursor
    FROM (
        SELECT feed_id FROM feedq.lease
        WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = named AND removed_at IS NULL) FOR UPDATE
    ) l WHERE p.feed_id = l.feed_id;
    RETURN feedq_1.act_on_feeds('cursor_changed', ARRAY[named], ARRAY[NULL::bigint], ARRAY[NULL::int],
        NULL, of_tenant, told);
END $body$;

-- Promises feeds to workers. An owner is asked to release its feed (`ask_to_stop`); one that has not claimed it yet finds
-- nothing to claim: the message that is out becomes stale. Whether the worker may have the feed is for the caller to
-- say; should it not take feeds by then, the feed goes anywhere.
--
-- The leases are locked, in the order of their feeds, before the feeds are read: one may have changed while its lease
-- was waited for. Run twice, a feed that is there already is refused, and one under way is promised once more.
CREATE FUNCTION feedq_1.move_feeds(
    names text[], targets uuid[], of_tenant text, stop_within_s float8, told jsonb
) RETURNS json LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    ids constant bigint[] := ARRAY(SELECT id FROM feedq.feed WHERE name = ANY (names) AND removed_at IS NULL);
    outcomes json;
    running json;
BEGIN
    PERFORM FROM feedq.lease WHERE feed_id = ANY (ids) ORDER BY feed_id FOR UPDATE;
    WITH judged AS (
        SELECT given.name, given.target, f.id, l.state, l.worker_id, l.epoch, l.reason,
            CASE WHEN f.id IS NULL THEN 'missing' WHEN f.tenant <> of_tenant THEN 'foreign'
                WHEN l.feed_id IS NULL THEN 'unleased' WHEN f.target_state = 'paused' THEN 'paused'
                WHEN l.state = 'idle' AND l.reason = 'failed' THEN 'failed'
                WHEN l.state IN ('assigned', 'running')
                    AND (w.id = given.target OR w.queue = '' AND w.name = t.name) THEN 'there'
                WHEN l.state = 'stopping' AND l.reason NOT IN ('edited', 'moved', 'drained') THEN 'stopping'
            END AS refusal
        FROM unnest(names, targets) AS given (name, target)
        LEFT JOIN feedq.feed f ON f.name = given.name AND f.removed_at IS NULL AND f.id = ANY (ids)
        LEFT JOIN feedq.lease l ON l.feed_id = f.id
        LEFT JOIN feedq.worker w ON w.id = l.worker_id LEFT JOIN feedq.worker t ON t.id = given.target
    ), moved AS (
        SELECT * FROM judged WHERE refusal IS NULL
    ), promised AS (
        UPDATE feedq.lease l SET promised_to = moved.target, held_for = NULL,
            state = CASE l.state WHEN 'assigned' THEN 'idle' ELSE l.state END,
            worker_id = CASE WHEN l.state <> 'assigned' THEN l.worker_id END,
            moved_at = CASE WHEN l.state <> 'assigned' THEN l.moved_at END,
            due_at = CASE WHEN l.held_for IS NULL AND l.state <> 'assigned' THEN l.due_at END,
            reason = CASE WHEN l.held_for IS NOT NULL OR l.state = 'assigned'
                    OR (l.state = 'idle' AND l.due_at IS NULL)
                THEN 'moved' ELSE l.reason END
        FROM moved WHERE l.feed_id = moved.id AND moved.state <> 'running'
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, worker_id, epoch, detail)
        SELECT kind, id, session, of_epoch, detail FROM (
            SELECT 1 AS n, 'feed_moved' AS kind, moved.id, NULL::uuid AS session, NULL::bigint AS of_epoch,
                jsonb_build_object('to', coalesce(w.name, target::text)) || told AS detail
            FROM moved LEFT JOIN feedq.worker w ON w.id = target
            UNION ALL
            SELECT 2, 'lease_freed', id, worker_id, epoch, jsonb_build_object('reason', 'moved') || told
            FROM moved WHERE state = 'assigned'
        ) events ORDER BY id, n
    )
    SELECT json_agg(json_build_object('name', name, 'id', id, 'refusal', refusal, 'reason', reason)),
        json_agg(json_build_object('feed_id', id, 'source', worker_id, 'target', target))
            FILTER (WHERE refusal IS NULL AND state = 'running')
    INTO outcomes, running FROM judged;
    IF running IS NOT NULL THEN
        PERFORM feedq_1.ask_to_stop(running, stop_within_s);
    END IF;
    PERFORM pg_notify('feedq_wake', '');
    RETURN outcomes;
END $body$;

-- Writes down that so many dead letters of a feed were replayed or dropped, and whether there are others. Without any
-- left the number is right, even where somebody has deleted rows by hand. Answers with whether there is such a feed.
CREATE FUNCTION feedq_1.dead_letters_gone(named text, what text, gone bigint, are_left boolean, told jsonb)
RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    feed bigint;
BEGIN
    UPDATE feedq.progress p SET dead_letters = CASE WHEN are_left THEN p.dead_letters - gone
        ELSE least(p.dead_letters - gone, 0) END
    FROM feedq.feed f WHERE f.name = named AND f.removed_at IS NULL AND p.feed_id = f.id
    RETURNING p.feed_id INTO feed;
    IF feed IS NOT NULL AND told IS NOT NULL THEN
        PERFORM feedq_1.record(what, feed, told);
    END IF;
    RETURN feed IS NOT NULL;
END $body$;

-- Begins the backfill of a feed that is of this version: a feed of its own, declared as `declared`. The trigger
-- feedq.follow_parent carries over what becomes of its parent. Begun with a `key`, it is begun once: 'known' says that
-- it was before, whatever has become of the feed since. One feed has one backfill at a time.
CREATE FUNCTION feedq_1.begin_backfill(
    of_feed text, id bigint, generation int, key text, declared json, of_tenant text, told jsonb
) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    parent feedq.feed;
    refusal text;
BEGIN
    SELECT * INTO parent FROM feedq.feed f WHERE f.name = of_feed AND f.removed_at IS NULL FOR UPDATE;
    refusal := feedq_1.refusal(parent, NULL, NULL, of_tenant);
    IF refusal IS NULL THEN
        refusal := CASE
            WHEN EXISTS (SELECT FROM feedq.event e WHERE e.feed_id = parent.id AND e.kind = 'backfill_begun'
                AND e.detail ->> 'key' = key) THEN 'known'
            WHEN parent.id <> id OR parent.generation <> generation THEN 'outdated'
            WHEN parent.target_state = 'paused' THEN 'paused' END;
    END IF;
    IF refusal IS NULL THEN
        PERFORM feedq_1.insert_feeds(declared, NULL);
        IF FOUND THEN
            PERFORM feedq_1.record('backfill_begun', parent.id, told);
            PERFORM pg_notify('feedq_wake', '');
        ELSE
            refusal := 'taken';
        END IF;
    END IF;
    RETURN json_build_object('name', of_feed, 'id', parent.id, 'generation', parent.generation, 'refusal', refusal);
END $body$;

-- Ends the backfill of a feed, which has landed what it has.
CREATE FUNCTION feedq_1.cancel_backfill(of_feed text, of_tenant text, told jsonb) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    parent feedq.feed;
    refusal text;
    ended bigint;
BEGIN
    SELECT * INTO parent FROM feedq.feed f WHERE f.name = of_feed AND f.removed_at IS NULL FOR UPDATE;
    refusal := feedq_1.refusal(parent, NULL, NULL, of_tenant);
    IF refusal IS NULL THEN
        UPDATE feedq.feed f SET removed_at = feedq.clock(), updated_at = feedq.clock()
        WHERE f.parent = parent.id AND f.removed_at IS NULL RETURNING f.id INTO ended;
        refusal := CASE WHEN ended IS NULL THEN 'none' END;
    END IF;
    IF refusal IS NULL THEN
        PERFORM feedq_1.record('backfill_cancelled', parent.id,
            (SELECT jsonb_build_object('records', p.records_total, 'cursor', p.cursor)
             FROM feedq.progress p WHERE p.feed_id = ended) || told);
    END IF;
    RETURN json_build_object('name', of_feed, 'id', parent.id, 'refusal', refusal);
END $body$;

-- Each feed as people see it: its status, why it has it (because), and since when as far as its lease tells (since).
-- Lists, pages, metrics and checks read this view, so that they cannot disagree.
--
-- From the top: what people want of a feed, what was decided about it, whether its worker is known not to move, and only
-- then what that says. Of what it says, a sink that is away comes first, since nothing can land; then what becomes of
-- the records that arrive; then that none do. A feed without a lease row counts as idle. An error of before is kept
-- after a feed is well again, and does not explain why it connects anew.
CREATE VIEW feedq_1.feed_status AS
SELECT *,
    -- `CASE status` works it out once.
    CASE WHEN state = 'stopping' THEN reason ELSE CASE status
        WHEN 'waiting' THEN reason
        WHEN 'failed' THEN last_error
        WHEN 'backoff' THEN last_error
        WHEN 'quarantined' THEN blame
        WHEN 'stalled' THEN coalesce(stillness, last_error)
        WHEN 'sink_unavailable' THEN sink_error
        WHEN 'refusing' THEN dead_letter_error
        WHEN 'failing' THEN
            concat_ws('; ', last_error, failures || ' failures in a row, and nothing landed since')
        WHEN 'starting' THEN coalesce(stillness, CASE WHEN attempts > 0 THEN last_error END)
        WHEN 'connecting' THEN
            CASE WHEN attempts > 0 OR last_error_at >= running_since THEN last_error END
    END END AS because,
    CASE status
        WHEN 'quarantined' THEN blamed_at
        WHEN 'refusing' THEN running_since
        WHEN 'stalled' THEN coalesce(last_record_at, running_since)
        WHEN 'sink_unavailable' THEN coalesce(last_record_at, running_since)
    END AS since,
    -- Asks for a place on a worker. One that has failed does not: only an edit can help it.
    removed_at IS NULL AND target_state = 'running' AND (state = 'stopping' OR NOT has_failed) AS is_wanted,
    -- Dead letters and lost workers are warned of until somebody has had a working day to look at them.
    coalesce(dead_letters > 0 AND dead_letter_at > feedq.now() - interval '1 day', false) AS was_refused,
    coalesce(blamed > 0 AND status <> 'quarantined'
        AND coalesce(blamed_at > feedq.now() - interval '1 day', true), false) AS lost_workers
FROM (
    SELECT f.id, f.name, f.tenant, f.connector, f.source, f.sink, f.labels, f.selector, f.target_state,
        f.generation, f.created_at, f.removed_at, f.parent, f.catalog, f.search,
        l.state AS lease_state, l.reason AS lease_reason,
        coalesce(l.state, 'idle') AS state, CASE WHEN l.feed_id IS NULL THEN 'new' ELSE l.reason END AS reason,
        l.epoch, l.worker_id, l.running_since, p.attempts, p.failures, p.last_error, p.last_error_at,
        p.records_total, p.bytes_total, p.rows_per_s, p.last_record_at, p.event_at, p.dead_per_s, p.dead_letters,
        p.dead_letter_at, p.dead_letter_error, p.sink_error, l.blamed, l.blamed_at, l.blame, l.quarantined,
        coalesce(l.reason = 'failed' AND NOT o.connected, false) AS has_failed,
        w.name AS worker, 'its worker ' || w.name || ' ' || w.stillness AS stillness,
        CASE
            -- Whoever removes a feed need not wait for the next pass to see it.
            WHEN f.removed_at IS NOT NULL THEN 'removing'
            -- Feeds that run come next, for they are the most.
            WHEN l.state = 'running' THEN CASE
                -- While it is checked again, too: until it connects, the error stays in view.
                WHEN l.reason = 'failed' AND NOT o.connected THEN 'failed'
                WHEN l.quarantined THEN 'quarantined'
                WHEN w.stillness IS NOT NULL THEN 'stalled'
                WHEN p.sink_error IS NOT NULL THEN 'sink_unavailable'
                -- Most of what the last minute brought went to the dead letters.
                WHEN p.dead_per_s > p.rows_per_s AND p.dead_letter_at > feedq.now() - interval '1 minute'
                    THEN 'refusing'
                -- A source that accepts each connection and then says nothing is silent, and not yet failing.
                WHEN o.stalled AND p.attempts < 3 THEN 'stalled'
                WHEN p.failures >= 3 THEN 'failing'
                WHEN o.stalled THEN 'stalled'
                WHEN o.connected THEN 'streaming'
                ELSE 'connecting'
            END
            WHEN l.state = 'stopping' THEN 'stopping'
            WHEN l.state = 'assigned' THEN CASE
                WHEN l.reason = 'failed' AND NOT o.connected THEN 'failed'
                WHEN l.quarantined THEN 'quarantined'
                WHEN p.failures >= 3 THEN 'failing'
                ELSE 'starting'
            END
            WHEN f.target_state = 'paused' THEN 'paused'
            WHEN l.reason = 'failed' AND NOT o.connected THEN 'failed'
            WHEN l.quarantined THEN 'quarantined'
            -- One that was given a fresh start, or that no worker can have, does not wait for what failed before.
            WHEN p.failures >= 3
                AND l.reason NOT IN ('new', 'edited', 'no_capacity', 'no_match', 'settling') THEN 'failing'
            WHEN l.reason = 'backoff' THEN 'backoff'
            ELSE 'waiting'
        END AS status,
        f.document AS feed,
        -- As `feedq.core.model.Lease` has it.
        CASE WHEN l.feed_id IS NOT NULL THEN (SELECT row_to_json(lease) FROM (SELECT
            l.feed_id, l.epoch, l.state, l.reason, l.worker_id, l.generation, l.running_since, l.due_at, l.weight,
            l.promised_to, l.moved_at, l.held_for, l.blamed, l.blamed_at, l.blame, l.quarantined, l.lost_worker,
            l.lost_at, o.connected, o.stalled, p.attempts, p.failures, p.records_total, p.bytes_total,
            p.dead_letters_total, greatest(p.dead_letters, 0) AS dead_letters, p.rows_per_s, p.bytes_per_s,
            p.dead_per_s, p.reported_at, p.last_record_at, p.dead_letter_at, p.last_error_at, p.event_at,
            p.last_error, p.dead_letter_error, p.sink_error, p.event_fault, p.cursor, p.noticed,
            CASE WHEN l.avoid = '{}' THEN '{}'::json ELSE (
                SELECT json_object_agg(key, to_timestamp(value::float8) ORDER BY value::float8)
                FROM jsonb_each_text(l.avoid)
            ) END AS avoid
        ) lease) END AS lease,
        (SELECT json_agg(json_build_array(u.kind, u.since, u.bound, u.found, u.why) ORDER BY u.since, u.kind)
         FROM feedq.unmet u WHERE u.feed_id = f.id) AS unmet
    FROM feedq_1.declared f
    LEFT JOIN feedq.lease l ON l.feed_id = f.id
    LEFT JOIN feedq.progress p ON p.feed_id = f.id
    -- What an owner says of its connection counts as long as it is the owner.
    CROSS JOIN LATERAL (
        SELECT is_owners AND p.connected AS connected, is_owners AND p.stalled AS stalled
        FROM (SELECT coalesce(p.epoch = l.epoch AND l.worker_id IS NOT NULL, false) AS is_owners) present
    ) o
    LEFT JOIN (
        -- A worker stands still when its event loop runs a timer two seconds late, where a loaded one is late by
        -- tenths; and, for all that is known, when no heartbeat has come for two thirds of its ttl. OFFSET 0 has
        -- that found out once a worker, not once a feed.
        SELECT id, name, CASE
            WHEN loop_lag_s > 2 THEN 'has stood still for ' || round(loop_lag_s + greatest(silent_s, 0)) || ' s'
            WHEN silent_s * 3 > extract(epoch FROM expires_at - heartbeat_at)::float8 * 2
                THEN 'was last heard of ' || round(silent_s) || ' s ago'
        END AS stillness
        FROM (
            SELECT *, extract(epoch FROM feedq.now() - heartbeat_at)::float8 AS silent_s FROM feedq.worker
        ) worker OFFSET 0
    ) w ON w.id = l.worker_id
) standing;

-- The feeds of a selection, in which NULL asks for nothing. A backfill is shown with its feed, and not beside it.
--
-- It is inlined into the statement that calls it, and planned with the values given: what is not asked for costs
-- nothing. What a status cannot be without is asked first, of one column: few rows are then joined, and their status
-- worked out. `found` are those among which it chooses; of `searched` see `search_feeds`.
CREATE FUNCTION feedq_1.chosen_feeds(
    names text[], of_tenant text, with_labels jsonb, on_worker text, in_statuses text[], of_connector text,
    name_like text, is_unmet boolean, has_dead_letters boolean, removing boolean,
    searched text, reasons_found text[], statuses_found text[], found bigint[]
) RETURNS SETOF feedq_1.feed_status LANGUAGE sql STABLE AS $body$
    SELECT * FROM feedq_1.feed_status v
    WHERE v.parent IS NULL
        AND (removing OR v.removed_at IS NULL)
        AND (names IS NULL OR v.name = ANY (names))
        AND (of_tenant IS NULL OR v.tenant = of_tenant)
        AND (with_labels IS NULL OR v.labels @> with_labels)
        AND (on_worker IS NULL OR v.worker = on_worker)
        AND (of_connector IS NULL OR v.connector = of_connector)
        AND (name_like IS NULL OR v.name LIKE name_like)
        AND (NOT is_unmet OR v.id IN (SELECT feed_id FROM feedq.unmet))
        AND (NOT has_dead_letters OR v.dead_letters > 0)
        AND (in_statuses IS NULL OR v.status = ANY (in_statuses))
        AND (in_statuses IS NULL
            OR in_statuses && '{streaming,connecting,stalled,waiting}'
            OR 'paused' = ANY (in_statuses) AND v.target_state = 'paused'
            OR 'removing' = ANY (in_statuses) AND v.removed_at IS NOT NULL
            OR 'failed' = ANY (in_statuses) AND v.lease_reason = 'failed'
            OR 'quarantined' = ANY (in_statuses) AND v.quarantined
            OR 'sink_unavailable' = ANY (in_statuses) AND v.sink_error IS NOT NULL
            OR 'refusing' = ANY (in_statuses) AND v.dead_per_s > v.rows_per_s
            OR 'failing' = ANY (in_statuses) AND v.failures >= 3
            OR 'backoff' = ANY (in_statuses) AND v.lease_reason = 'backoff'
            OR 'starting' = ANY (in_statuses) AND v.lease_state = 'assigned'
            OR 'stopping' = ANY (in_statuses) AND v.lease_state = 'stopping')
        AND (found IS NULL OR v.id = ANY (found))
        AND (searched IS NULL
            OR strpos(v.search, lower(searched)) > 0
            OR v.reason = ANY (reasons_found)
            OR coalesce(v.last_error, v.sink_error, v.dead_letter_error, v.blame) IS NOT NULL AND strpos(lower(
                concat_ws(chr(1), v.last_error, v.sink_error, v.dead_letter_error, v.blame)), lower(searched)) > 0
            OR strpos(lower(v.worker), lower(searched)) > 0
            OR statuses_found IS NOT NULL AND v.status = ANY (statuses_found))
$body$;

-- The ids of feeds that show a text somewhere, in any case: in what is declared of them (`feed.search`), in their
-- errors, as the name of their worker, or as one of these reasons; of a feed, more than once. To search each table by
-- itself takes half the time of joining them first, as long as few are found: no more than `most` are. No match reaches
-- over two columns: nobody types what separates them.
CREATE FUNCTION feedq_1.search_feeds(searched text, reasons_found text[], most int) RETURNS SETOF bigint
-- All are gone through: in the order of their keys that takes longer.
LANGUAGE sql STABLE SET enable_seqscan = on AS $body$
    SELECT id FROM feedq.feed WHERE strpos(search, lower(searched)) > 0
    UNION ALL
    SELECT feed_id FROM feedq.progress
    WHERE coalesce(last_error, sink_error, dead_letter_error) IS NOT NULL AND strpos(lower(
        concat_ws(chr(1), last_error, sink_error, dead_letter_error)), lower(searched)) > 0
    UNION ALL
    SELECT feed_id FROM feedq.lease
    WHERE reason = ANY (reasons_found)
        OR blame IS NOT NULL AND strpos(lower(blame), lower(searched)) > 0
        OR worker_id = ANY (ARRAY(SELECT id FROM feedq.worker WHERE strpos(lower(name), lower(searched)) > 0))
    LIMIT most
$body$;

-- Writes down the counters of all feeds, unless that is done in this minute, and answers with the seconds to the next.
-- A row holds the feeds of a chunk of a thousand ids; the first rows of each quarter of an hour stay for a day, the
-- others for an hour. Rows of the future are from before the clock was put back.
--
-- The advisory lock keeps two from counting at once: an old leader may still be at it.
CREATE FUNCTION feedq_1.count_landed() RETURNS float8 LANGUAGE plpgsql AS $body$
DECLARE
    lock constant bigint := 112585678811399;
    is_counted boolean := true;
    minute constant timestamptz := date_bin('1 minute', feedq.now(), 'epoch');
    quarter constant timestamptz := date_bin('15 minutes', feedq.now(), 'epoch');
BEGIN
    -- What another one has written is seen by the statement after the one that takes the lock.
    IF pg_try_advisory_xact_lock(lock) THEN
        is_counted := EXISTS (SELECT FROM feedq.landed_count WHERE at BETWEEN minute AND feedq.now());
    END IF;
    IF NOT is_counted THEN
        DELETE FROM feedq.landed_count
        WHERE at > feedq.now()
            OR at < feedq.now() - CASE WHEN daily THEN interval '24 hours 15 minutes' ELSE interval '61 minutes' END;
        INSERT INTO feedq.landed_count (chunk, at, daily, places, records, dead_letters, silent_s)
        SELECT feed_id / 1000, feedq.now(),
            NOT EXISTS (SELECT FROM feedq.landed_count WHERE daily AND at >= quarter),
            array_agg((feed_id % 1000)::smallint), array_agg(records_total), array_agg(dead_letters_total),
            array_agg(extract(epoch FROM feedq.now() - last_record_at)::real)
        FROM (SELECT * FROM feedq.progress ORDER BY feed_id) p GROUP BY feed_id / 1000;
    END IF;
    RETURN greatest(60 - extract(epoch FROM feedq.clock() - minute)::float8, 0);
END $body$;

-- The counters of these feeds as they were written down between two moments, in order; only those that stay for a day if
-- they are `daily`.
CREATE FUNCTION feedq_1.landed(ids bigint[], since timestamptz, until timestamptz, only_daily boolean)
RETURNS TABLE (id bigint, at timestamptz, records bigint, dead_letters bigint, silent_s real)
LANGUAGE sql STABLE AS $body$
    SELECT asked.id, b.at, b.records[place], b.dead_letters[place], b.silent_s[place]
    FROM (
        -- A long array is unpacked each time that an element of it is asked for, unless it was made by an expression.
        SELECT chunk, at, places || '{}' AS places, records || '{}' AS records,
            dead_letters || '{}' AS dead_letters, silent_s || '{}' AS silent_s
        FROM feedq.landed_count
        WHERE chunk = ANY (ARRAY(SELECT DISTINCT unnest(ids) / 1000)) AND at BETWEEN since AND until
            AND (daily OR NOT only_daily) OFFSET 0
    ) b
    JOIN unnest(ids) AS asked (id) ON b.chunk = asked.id / 1000
    CROSS JOIN LATERAL (SELECT array_position(b.places, (asked.id % 1000)::smallint) AS place) p
    WHERE place IS NOT NULL
    ORDER BY asked.id, b.at
$body$;
