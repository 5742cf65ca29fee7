-- Expectations: whether feeds are as people expect, and whom that is told.
--
-- What is expected of a feed is what is expected of all (`everything`), what is of its tenant (one of `tenants`), and its
-- own, each before the one before it. Of one that is paused or removed nothing is.
--
-- Refused records are counted over 30 s, rows over the time that is expected; six samples of the counters within
-- that time tell how exactly its beginning is met.
--
-- Killed, frozen, or run twice. Each function is one transaction. `judge` run twice finds nothing new the second time.
-- A beat that dies between a message and `told_alerts` tells it once more.
--
-- Plans. Where nothing is expected of all feeds, those of whom something is are few, and found by their indexes: so
-- `judge` is planned with the values that it is given.

-- The feeds of which something is expected, with what it is and what it is compared with. `names` are those of tenants
-- of which something is.

CREATE FUNCTION feedq_1.expected(everything jsonb, tenants jsonb, names text[]) RETURNS TABLE (
    id bigint, name text, tenant text, updated_at timestamptz, expect jsonb, records_total bigint,
    dead_letters_total bigint, heard_at timestamptz, per_s float8, least_rows float8, silence_s float8, lag_s float8,
    lagging_s float8, event_at timestamptz, event_fault text, refused float8
) LANGUAGE sql STABLE AS $body$
    SELECT f.id, f.name, f.tenant, f.updated_at, e.expect,
        p.records_total, p.dead_letters_total, greatest(p.last_record_at, f.updated_at),
        (e.expect -> 'min_rows' ->> 'per')::float8, (e.expect -> 'min_rows' ->> 'rows')::float8,
        (e.expect ->> 'max_silence')::float8, (e.expect -> 'max_event_lag' ->> 'seconds')::float8,
        extract(epoch FROM feedq.now() - greatest(p.event_at, f.updated_at))::float8,
        p.event_at, p.event_fault, (e.expect ->> 'max_refused')::float8
    FROM feedq.feed f JOIN feedq.progress p ON p.feed_id = f.id CROSS JOIN LATERAL (
        SELECT everything || coalesce(tenants -> f.tenant, '{}') || f.expect AS expect
    ) e
    WHERE f.removed_at IS NULL AND f.target_state = 'running' AND f.parent IS NULL
        AND (everything <> '{}' OR f.tenant = ANY (names) OR f.expect <> '{}')
$body$;

-- Judges all feeds, and writes down which expectation has begun or ended to be unmet: in `feedq.unmet`, in history, and
-- as alerts to be sent. Answers with how many have begun and ended. Nothing happens while another one is at it: an old
-- leader may still be.
--
-- A verdict that nobody can give yet, as on rows within an hour of a feed that has begun a minute ago, is none. What is
-- near its bound is not told over and over: a silence ends with a record that came after it was one; what is
-- refused, and a lag, is as expected again below half the bound, and rows a fifth above theirs, which is more than
-- what a sample adds to the time they are counted over. Rows that are just enough, and a lag just within its bound, end
-- it once they have been unmet for twice the time: a source may land no more.
CREATE FUNCTION feedq_1.judge(everything jsonb, tenants jsonb) RETURNS json
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $body$
#variable_conflict use_column
DECLARE
    lock constant bigint := 112585678811398;
    names constant text[] := ARRAY(SELECT jsonb_object_keys(tenants));
    answer json;
BEGIN
    -- Of most fleets nothing is expected, and nothing is left from a time when something was.
    IF everything = '{}' AND tenants = '{}' AND NOT EXISTS (
            SELECT FROM feedq.feed WHERE expect <> '{}' UNION ALL SELECT FROM feedq.unmet
            UNION ALL SELECT FROM feedq.landed_sample UNION ALL SELECT FROM feedq.alert)
        OR NOT pg_try_advisory_xact_lock(lock)
    THEN
        RETURN json_build_object('begun', 0, 'ended', 0);
    END IF;
    WITH wanted AS MATERIALIZED (
        SELECT * FROM feedq_1.expected(everything, tenants, names)
    ), counted AS (
        SELECT id, 'min_rows' AS kind, per_s FROM wanted WHERE per_s IS NOT NULL
        UNION ALL
        SELECT id, 'max_refused', 30 FROM wanted WHERE refused IS NOT NULL
    )
    INSERT INTO feedq.landed_sample (feed_id, kind, at, records, dead_letters)
    SELECT c.id, c.kind, feedq.now(), w.records_total, w.dead_letters_total
    FROM counted c JOIN wanted w USING (id)
    WHERE NOT EXISTS (
        SELECT FROM feedq.landed_sample s WHERE s.feed_id = c.id AND s.kind = c.kind
            AND s.at > feedq.now() - make_interval(secs => c.per_s / 6))
    ON CONFLICT DO NOTHING;

    WITH wanted AS MATERIALIZED (
        SELECT * FROM feedq_1.expected(everything, tenants, names)
    ), verdicts AS MATERIALIZED (
        SELECT id, 'max_silence' AS kind, expect -> 'max_silence' AS bound,
            extract(epoch FROM feedq.now() - heard_at)::float8 AS found, heard_at AS since,
            feedq.now() - heard_at > make_interval(secs => silence_s) AS unmet,
            heard_at - make_interval(secs => silence_s) AS ends_after, NULL AS why
        FROM wanted WHERE silence_s IS NOT NULL
        UNION ALL
        SELECT id, 'max_event_lag', expect -> 'max_event_lag', lagging_s, feedq.now(), lagging_s > lag_s,
            CASE WHEN lagging_s <= 0.5 * lag_s THEN 'infinity'::timestamptz
                ELSE feedq.now() - make_interval(secs => 2 * lag_s) END,
            coalesce(event_fault, CASE WHEN event_at IS NULL THEN 'no record with a time has landed' END)
        FROM wanted WHERE lag_s IS NOT NULL
        UNION ALL
        SELECT w.id, 'min_rows', w.expect -> 'min_rows', (w.records_total - s.records)::float8,
            feedq.now(), w.records_total - s.records < w.least_rows,
            CASE WHEN w.records_total - s.records >= 1.2 * w.least_rows THEN 'infinity'::timestamptz
                ELSE feedq.now() - make_interval(secs => 2 * w.per_s) END, NULL
        FROM wanted w CROSS JOIN LATERAL (
            SELECT records FROM feedq.landed_sample
            WHERE feed_id = w.id AND kind = 'min_rows' AND at >= w.updated_at
                AND at <= feedq.now() - make_interval(secs => w.per_s)
            ORDER BY at DESC LIMIT 1
        ) s WHERE w.per_s IS NOT NULL
        UNION ALL
        -- Of ten records, one that is refused says little; a hundred say enough before the time is over.
        SELECT w.id, 'max_refused', w.expect -> 'max_refused', n.dead / greatest(n.records + n.dead, 1),
            feedq.now(), n.dead > w.refused * (n.records + n.dead),
            CASE WHEN n.dead <= 0.5 * w.refused * (n.records + n.dead) THEN 'infinity'::timestamptz
                ELSE '-infinity' END, NULL
        FROM wanted w CROSS JOIN LATERAL (
            SELECT at, (w.records_total - records)::float8 AS records,
                (w.dead_letters_total - dead_letters)::float8 AS dead
            FROM feedq.landed_sample
            WHERE feed_id = w.id AND kind = 'max_refused' AND at >= feedq.now() - interval '35 s'
            ORDER BY at LIMIT 1
        ) n
        WHERE w.refused IS NOT NULL
            AND (n.records + n.dead >= 100 OR n.at <= feedq.now() - interval '30 s')
    ), begun AS (
        INSERT INTO feedq.unmet (feed_id, kind, since, bound, found, why)
        SELECT id, kind, since, bound, found, why FROM verdicts WHERE unmet ORDER BY id, kind
        ON CONFLICT (feed_id, kind) DO NOTHING RETURNING *
    ), ended AS (
        DELETE FROM feedq.unmet u USING feedq.feed f
        WHERE f.id = u.feed_id AND (
            EXISTS (
                SELECT FROM verdicts v WHERE v.id = u.feed_id AND v.kind = u.kind AND NOT v.unmet
                    AND (u.since < v.ends_after OR u.bound <> v.bound))
            OR NOT EXISTS (
                SELECT FROM wanted w WHERE w.id = u.feed_id AND jsonb_typeof(w.expect -> u.kind) <> 'null'))
        RETURNING u.*
    ), changed AS (
        SELECT *, true AS begins FROM begun UNION ALL SELECT *, false FROM ended
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT CASE WHEN begins THEN 'expectation_unmet' ELSE 'expectation_met' END, feed_id,
            jsonb_strip_nulls(jsonb_build_object(
                'kind', kind, 'bound', bound, 'found', found, 'since', since, 'why', why))
        FROM changed ORDER BY feed_id
    ), alerts AS (
        INSERT INTO feedq.alert (feed, tenant, kind, begins, since, bound, found, why)
        SELECT f.name, f.tenant, c.kind, c.begins, c.since, c.bound, c.found, c.why
        FROM changed c JOIN feedq.feed f ON f.id = c.feed_id ORDER BY f.name, c.kind
        RETURNING begins
    )
    SELECT json_build_object(
        'begun', count(*) FILTER (WHERE begins), 'ended', count(*) FILTER (WHERE NOT begins)
    ) INTO answer FROM alerts;

    WITH wanted AS MATERIALIZED (
        SELECT * FROM feedq_1.expected(everything, tenants, names)
    ), counted AS MATERIALIZED (
        SELECT id, 'min_rows' AS kind, per_s FROM wanted WHERE per_s IS NOT NULL
        UNION ALL
        SELECT id, 'max_refused', 30 FROM wanted WHERE refused IS NOT NULL
    )
    DELETE FROM feedq.landed_sample s
    WHERE NOT EXISTS (
        SELECT FROM counted c WHERE c.id = s.feed_id AND c.kind = s.kind
            AND s.at > feedq.now() - make_interval(secs => c.per_s * 4 / 3));
    -- An alert that could not be sent for a week is no news any more.
    DELETE FROM feedq.alert WHERE at < feedq.now() - interval '7 days';
    RETURN answer;
END $body$;

-- What a target has not been told, in order: nothing within the pause after the last message, or within one after a
-- failure, which doubles with each of the first six. `of_tenant` is the only one that it hears of, NULL for any. A
-- target that is new begins with what comes next.
CREATE FUNCTION feedq_1.due_alerts(
    of_target text, of_tenant text, pause_s float8, retry_s float8
) RETURNS SETOF feedq.alert LANGUAGE plpgsql AS $body$
DECLARE
    at_once constant int := 1000;
BEGIN
    INSERT INTO feedq.alert_target (target, sent_to)
    SELECT of_target, coalesce(max(id), 0) FROM feedq.alert ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT a.* FROM feedq.alert_target t JOIN feedq.alert a ON a.id > t.sent_to
    WHERE t.target = of_target AND (of_tenant IS NULL OR a.tenant = of_tenant)
        AND (t.sent_at IS NULL OR feedq.clock() >= t.sent_at + make_interval(secs =>
            CASE WHEN t.failures = 0 THEN pause_s ELSE retry_s * 2 ^ least(t.failures - 1, 6) END))
    ORDER BY a.id LIMIT at_once;
END $body$;

-- A target has taken everything up to this alert; or not, for which it says `why`, and is told again later.
CREATE FUNCTION feedq_1.told_alerts(of_target text, up_to bigint, why text) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.alert_target SET
        sent_to = greatest(sent_to, up_to), sent_at = feedq.clock(),
        failures = CASE WHEN why IS NULL THEN 0 ELSE failures + 1 END, error = why
    WHERE target = of_target;
    RETURN FOUND;
END $body$;
