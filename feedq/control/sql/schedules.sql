-- Schedules: ticks that fall due become runs, people declare schedules and ask for runs beside the ticks, and history
-- that nobody keeps goes.
--
-- When a schedule ticks, and what becomes of the ticks that are due, is decided by `feedq.core.schedule.ticks`. So most
-- of this is used in three steps of one transaction: a function here locks a schedule and says how it stands, its
-- caller decides, and another function writes that down.
--
-- Locks. Whatever makes or cancels runs of a schedule locks the schedule's row before it counts or touches them: of two
-- that decide at once the second sees what the first has done. Then come the runs, by id. Two indexes make one writer
-- wait for another's commit, `run_key` and `run_one_at_a_time`: whoever makes rows in them holds the schedule's row.

-- The runs of a schedule that have not ended, as the overlap policies count them. Those of backfills are counted by
-- themselves: what catches up must not keep back what is due now.
CREATE FUNCTION feedq_1.unfinished(schedule bigint) RETURNS TABLE (waiting int, running int, of_backfills int)
LANGUAGE sql STABLE AS $body$
    SELECT count(*) FILTER (WHERE kind <> 'backfill' AND state <> 'running')::int,
        count(*) FILTER (WHERE kind <> 'backfill' AND state = 'running')::int,
        count(*) FILTER (WHERE kind = 'backfill')::int
    -- In an order that only `run_unfinished` has: others have the whole history of a schedule.
    FROM (SELECT kind, state FROM feedq.run r
          WHERE r.schedule_id = schedule AND state IN ('buffered', 'waiting', 'running') ORDER BY state OFFSET 0) r
$body$;

-- Cancels the runs in these states of these schedules, whose rows are locked, each for the reason at its schedule's
-- place, and tells the workers of running ones. Answers with how many. Run twice, the second finds none. People wait for
-- whoever has a run locked; firing does not, which is for many schedules, and leaves the run alone.
CREATE FUNCTION feedq_1.cancel_runs(schedules bigint[], reasons text[], states text[], waits boolean) RETURNS int
LANGUAGE plpgsql AS $body$
DECLARE
    listed bigint[];
    workers uuid[];
    cancelled int;
BEGIN
    listed := ARRAY(
        SELECT r.id FROM unnest(schedules) AS given (id) CROSS JOIN LATERAL (
            SELECT id, state FROM feedq.run
            WHERE schedule_id = given.id AND state IN ('buffered', 'waiting', 'running') ORDER BY state OFFSET 0
        ) r WHERE r.state = ANY (states) ORDER BY r.id);
    IF waits THEN
        PERFORM FROM feedq.run WHERE id = ANY (listed) ORDER BY id FOR UPDATE;
    ELSIF NOT feedq_1.lock_runs('{}', listed) THEN
        listed := ARRAY(SELECT id FROM feedq.run WHERE id = ANY (listed) ORDER BY id FOR UPDATE SKIP LOCKED);
    END IF;
    WITH ended AS (
        UPDATE feedq.run r SET state = 'cancelled', reason = reasons[array_position(schedules, r.schedule_id)],
            ended_at = feedq.clock()
        WHERE id = ANY (listed) AND state = ANY (states) RETURNING r.worker_id
    )
    SELECT count(*), array_agg(worker_id) INTO cancelled, workers FROM ended;
    PERFORM pg_notify('feedq_worker_' || lock_key, 'jobs') FROM feedq.worker WHERE id = ANY (workers);
    RETURN cancelled;
END $body$;

-- Makes runs of schedules whose rows are locked, in this order, and tells workers of those that may start. A key that
-- the schedule has had before makes none: so whatever is run twice makes each run once. `job` is what they run; NULL:
-- what their schedule says; without the keys that are `not_of_job`. Answers with the ids of those that were made, and
-- how many of them are due. `buffered` ones get their turn at once, if nobody has it; a `waiting` one is buffered where
-- somebody has, because a run that was to be cancelled is locked.
CREATE FUNCTION feedq_1.make_runs(runs json, job jsonb, not_of_job text[]) RETURNS json LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    ids json;
    buffered bigint[];
    may_start int;
    due int;
BEGIN
    WITH made AS (
        INSERT INTO feedq.run (schedule_id, kind, key, tick_at, ticks, last_tick_at, due_at, rank_at, start_by, state,
            reason, ended_at, job, queue, exclusive)
        SELECT s.id, given.kind, given.key, given.tick_at, given.ticks, given.last_tick_at, given.due_at,
            -- A point of priority is worth a second of waiting. A microsecond apart, so that what is given in an order
            -- is taken in it.
            given.due_at - make_interval(secs => coalesce((its.job ->> 'priority')::float8, 0))
                + (element.n - 1) * interval '1 microsecond',
            given.start_by, CASE WHEN given.state = 'waiting' AND its.is_exclusive AND EXISTS (
                SELECT FROM feedq.run r WHERE r.schedule_id = s.id AND r.state IN ('waiting', 'running') AND r.exclusive
            ) THEN 'buffered' ELSE given.state END, given.reason,
            CASE WHEN given.state NOT IN ('buffered', 'waiting') THEN feedq.clock() END,
            its.job, coalesce(its.job ->> 'queue', 'default'), its.is_exclusive
        FROM json_array_elements(runs) WITH ORDINALITY AS element (run, n)
        CROSS JOIN LATERAL json_to_record(element.run) AS given (
            schedule_id bigint, kind text, key text, tick_at timestamptz, ticks int, last_tick_at timestamptz,
            due_at timestamptz, start_by timestamptz, state text, reason text)
        CROSS JOIN LATERAL (SELECT id, declaration FROM feedq.schedule WHERE id = given.schedule_id OFFSET 0) s
        CROSS JOIN LATERAL (SELECT coalesce(make_runs.job, s.declaration) - not_of_job AS job,
            coalesce(s.declaration ->> 'overlap', 'skip') <> 'allow_all' AS is_exclusive) its
        ORDER BY element.n
        ON CONFLICT (schedule_id, key) DO NOTHING
        RETURNING id, schedule_id, state, due_at
    )
    SELECT coalesce(json_agg(id ORDER BY id), '[]'), array_agg(DISTINCT schedule_id) FILTER (WHERE state = 'buffered'),
        count(*) FILTER (WHERE state = 'waiting' AND due_at <= feedq.now()),
        count(*) FILTER (WHERE state IN ('buffered', 'waiting') AND due_at <= feedq.now())
    INTO ids, buffered, may_start, due FROM made;
    IF buffered IS NOT NULL THEN
        PERFORM feedq_1.promote(buffered);
    END IF;
    IF may_start > 0 THEN
        PERFORM feedq_1.notify_some(may_start, 'runs');
    END IF;
    RETURN json_build_object('ids', ids, 'due', due);
END $body$;

-- -- firing ---------------------------------------------------------------------------------------------------------
--
-- No node leads. Each scans when it likes; those that scan at the same moment share the due schedules, because a locked
-- one is skipped, and one that another has just fired is no longer due when its row is read again.
--
-- Killed before the commit, nothing has happened, and the next scan does the same. With the commit, workers with room
-- are told. Should a tick come a second time (a watermark put back by hand, say), its key is there already: no second
-- run.

-- Whether anything is to be fired or resumed, and when: not above zero when it is time, NULL when there is nothing. Idle
-- is who need not look before somebody changes something. Writes and locks nothing.
CREATE FUNCTION feedq_1.scan_due() RETURNS json LANGUAGE sql AS $body$
    SELECT json_build_object('runs', 0, 'more', false, 'next_in_s', least(due_in_s, resumed_in_s),
        'is_idle', due_in_s IS NULL AND resumed_in_s IS NULL
            AND NOT EXISTS (SELECT FROM feedq.run WHERE state IN ('buffered', 'waiting', 'running')))
    FROM (SELECT
        extract(epoch FROM (
            SELECT next_fire_at FROM feedq.schedule
            WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL
            ORDER BY next_fire_at LIMIT 1
        ) - feedq.clock())::float8 AS due_in_s,
        extract(epoch FROM (
            SELECT paused_until FROM feedq.schedule
            WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL
            ORDER BY paused_until LIMIT 1
        ) - feedq.clock())::float8 AS resumed_in_s
    ) next
$body$;

-- Locks schedules whose pause is over, and schedules that are due, at most so many of each; skips those that others
-- have locked. Answers with them as they are now, and with their unfinished runs, which are counted by a later statement
-- than the one that locks: so it sees the runs of whoever held the lock before.
CREATE FUNCTION feedq_1.lock_due(most int) RETURNS TABLE (
    schedule feedq.schedule, is_resumed boolean, at timestamptz, waiting int, running int, of_backfills int
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    resumed bigint[];
    due bigint[];
BEGIN
    resumed := ARRAY(
        SELECT id FROM feedq.schedule
        WHERE removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL AND paused_until <= feedq.now()
        ORDER BY paused_until LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
    due := ARRAY(
        SELECT id FROM feedq.schedule
        WHERE removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL AND next_fire_at <= feedq.now()
        ORDER BY next_fire_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
    RETURN QUERY
        SELECT s, s.id = ANY (resumed), feedq.now(), u.* FROM unnest(resumed || due) WITH ORDINALITY AS held (id, n)
        JOIN feedq.schedule s ON s.id = held.id CROSS JOIN LATERAL feedq_1.unfinished(s.id) u ORDER BY held.n;
END $body$;

-- Writes down what was decided of schedules that `lock_due` has locked: other runs are cancelled, ticks become runs, and
-- watermarks move behind them; with one commit, or a tick is lost or comes twice. Answers with how many runs are to be
-- run now, or when it is their turn.
--
-- `decided`: {schedule_id, name, next_tick_at, next_fire_at, is_resumed, cancel_others, problem} of each schedule.
-- `cancel_others` is the reason for which its runs that have not ended are cancelled. A schedule with a `problem` is
-- paused for it: nothing could be decided, by its declaration.
--
-- A tick that is left out every second must not become a row every second. The first run of a schedule that `folds` is
-- counted in the schedule's newest row, if that is of the same state for the same reason. What that row stands for
-- already is not counted again.
CREATE FUNCTION feedq_1.fire(decided json, runs json, not_of_job text[]) RETURNS int LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    folded bigint[];
BEGIN
    PERFORM feedq_1.cancel_runs(array_agg(schedule_id), array_agg(cancel_others), '{buffered,waiting,running}', waits => false)
    FROM json_to_recordset(decided) AS given (schedule_id bigint, cancel_others text)
    WHERE cancel_others IS NOT NULL HAVING count(*) > 0;

    WITH counted AS (
        UPDATE feedq.run r SET last_tick_at = greatest(newest.last, given.last), ended_at = feedq.clock(),
            ticks = r.ticks + CASE WHEN newest.last < given.tick_at THEN given.ticks ELSE 0 END
        FROM (
            SELECT *, coalesce(last_tick_at, tick_at) AS last FROM json_to_recordset(runs) AS given (
                schedule_id bigint, tick_at timestamptz, ticks int, last_tick_at timestamptz, state text, reason text,
                folds boolean)
            WHERE folds
        ) given
        CROSS JOIN LATERAL (
            SELECT id, kind, state, reason, tick_at AS first, coalesce(last_tick_at, tick_at) AS last FROM feedq.run
            WHERE schedule_id = given.schedule_id ORDER BY id DESC LIMIT 1
        ) newest
        WHERE r.id = newest.id AND newest.kind = 'tick' AND newest.state = given.state
            AND newest.reason = given.reason AND newest.first < given.tick_at
            AND (newest.last < given.tick_at OR newest.last >= given.last)
        RETURNING r.schedule_id
    )
    SELECT array_agg(schedule_id) INTO folded FROM counted;
    IF folded IS NOT NULL THEN
        SELECT coalesce(json_agg(run ORDER BY n), '[]') INTO runs
        FROM json_array_elements(fire.runs) WITH ORDINALITY AS element (run, n)
        WHERE NOT ((run ->> 'folds')::boolean AND (run ->> 'schedule_id')::bigint = ANY (folded));
    END IF;

    -- Only forward, whatever was decided: a tick that is behind the watermark has been fired.
    UPDATE feedq.schedule s SET next_tick_at = given.next_tick_at, next_fire_at = given.next_fire_at,
        state = 'active', paused_until = NULL, pause_reason = NULL
    FROM json_to_recordset(decided) AS given (
        schedule_id bigint, next_tick_at timestamptz, next_fire_at timestamptz, problem text)
    WHERE s.id = given.schedule_id AND given.problem IS NULL AND (s.next_tick_at IS NULL
        OR given.next_tick_at IS NULL OR given.next_tick_at >= s.next_tick_at);
    UPDATE feedq.schedule s SET state = 'paused', paused_until = NULL, pause_reason = given.problem
    FROM json_to_recordset(decided) AS given (schedule_id bigint, problem text)
    WHERE s.id = given.schedule_id AND given.problem IS NOT NULL;
    PERFORM feedq_1.note(
        CASE WHEN problem IS NULL THEN 'schedule_resumed' ELSE 'schedule_paused' END,
        json_build_object('schedule', name, 'reason', coalesce(problem, 'its pause was over')))
    FROM json_to_recordset(decided) AS given (name text, is_resumed boolean, problem text)
    WHERE is_resumed OR problem IS NOT NULL;
    RETURN (feedq_1.make_runs(runs, NULL, not_of_job) ->> 'due')::int;
END $body$;

-- -- what people do -------------------------------------------------------------------------------------------------

-- Locks the declared schedule of this name, and answers with it and its unfinished runs as `lock_due` does; with nothing
-- if there is none.
CREATE FUNCTION feedq_1.lock_schedule(named text) RETURNS TABLE (
    schedule feedq.schedule, at timestamptz, waiting int, running int, of_backfills int
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    held bigint;
BEGIN
    SELECT id INTO held FROM feedq.schedule WHERE name = named AND removed_at IS NULL FOR NO KEY UPDATE;
    RETURN QUERY SELECT s, feedq.clock(), u.*
        FROM feedq.schedule s CROSS JOIN LATERAL feedq_1.unfinished(s.id) u WHERE s.id = held;
END $body$;

-- Adds a schedule, which is to be written in the same transaction: its jitter follows from its id, and so does its first
-- tick. Answers with the row. Fails if the name is taken; of two that add it at once the second waits here.
CREATE FUNCTION feedq_1.add_schedule(name text, declaration jsonb) RETURNS SETOF feedq.schedule
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY INSERT INTO feedq.schedule AS s (name, declaration)
    VALUES (add_schedule.name, add_schedule.declaration) RETURNING s.*;
END $body$;

-- Writes a schedule whose row is locked, and tells a worker if it is to fire within a second: no worker may scan by then,
-- and all others see it in time. Answers with the row. What is stored `as_declared` stays, as this release may not be able
-- to read it. An edit looks forward only: it reaches no run that there is.
CREATE FUNCTION feedq_1.put_schedule(new json, as_declared boolean) RETURNS SETOF feedq.schedule
LANGUAGE plpgsql AS $body$
DECLARE
    given record;
BEGIN
    SELECT * INTO given FROM json_to_record(new) AS given (
        id bigint, spec jsonb, state text, paused_until timestamptz, pause_reason text,
        generation int, next_tick_at timestamptz, next_fire_at timestamptz, failures int);
    IF given.state = 'active' AND given.next_fire_at <= feedq.clock() + interval '1 s' THEN
        PERFORM feedq_1.notify_some(1, 'jobs');
    END IF;
    RETURN QUERY UPDATE feedq.schedule s SET
        name = given.spec ->> 'name', declaration = CASE WHEN as_declared THEN s.declaration ELSE given.spec END,
        state = given.state,
        paused_until = given.paused_until, pause_reason = given.pause_reason, generation = given.generation,
        next_tick_at = given.next_tick_at, next_fire_at = given.next_fire_at, failures = given.failures,
        updated_at = feedq.clock()
    WHERE s.id = given.id RETURNING s.*;
END $body$;

-- Makes the schedule behind an entry of beat, or gives it this declaration. Of two that make it at once the second waits
-- here, finds it made, and changes nothing.
CREATE FUNCTION feedq_1.put_entry_of_beat(name text, declaration jsonb) RETURNS boolean LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    INSERT INTO feedq.schedule AS s (name, declaration)
    VALUES (put_entry_of_beat.name, put_entry_of_beat.declaration)
    ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE
        SET declaration = excluded.declaration, generation = s.generation + 1, updated_at = feedq.clock()
        WHERE s.declaration <> excluded.declaration;
    RETURN FOUND;
END $body$;

-- Removes a schedule, whose row is locked. Its runs that have not begun are cancelled; a running one may end, and history
-- stays until retention. Answers with how many were cancelled.
CREATE FUNCTION feedq_1.remove_schedule(which bigint) RETURNS int LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.schedule SET removed_at = feedq.clock(), updated_at = feedq.clock() WHERE id = which;
    RETURN feedq_1.cancel_runs(ARRAY[which], '{its schedule was removed}', '{buffered,waiting}', waits => true);
END $body$;

-- Cancels a run that has not ended, and tells the worker of a running one. Answers whether it had not. Locks the run;
-- whoever cancels promotes the next afterwards, as whoever ends a run does.
CREATE FUNCTION feedq_1.cancel_run(which bigint) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    held_by uuid;
BEGIN
    UPDATE feedq.run SET state = 'cancelled', reason = 'cancelled by hand', ended_at = feedq.clock()
    WHERE id = which AND state IN ('buffered', 'waiting', 'running') RETURNING worker_id INTO held_by;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('feedq_worker_' || lock_key, 'jobs') FROM feedq.worker WHERE id = held_by;
    RETURN true;
END $body$;

-- Declares the limits of a queue. A new bucket is full, as one is that nobody has drawn from; starts that it has saved up
-- stay its own, up to the new burst.
CREATE FUNCTION feedq_1.put_queue(name text, rate_per_s float8, burst float8, concurrency int) RETURNS boolean
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    INSERT INTO feedq.job_queue AS q (name, rate_per_s, burst, concurrency, tokens)
    VALUES (put_queue.name, put_queue.rate_per_s, put_queue.burst, put_queue.concurrency, put_queue.burst)
    ON CONFLICT (name) DO UPDATE SET
        rate_per_s = excluded.rate_per_s, burst = excluded.burst, concurrency = excluded.concurrency,
        tokens = CASE WHEN q.rate_per_s IS NULL THEN excluded.burst ELSE least(excluded.burst, q.tokens
            + q.rate_per_s * greatest(extract(epoch FROM feedq.clock() - q.tokens_at), 0)) END,
        tokens_at = feedq.clock();
    RETURN true;
END $body$;

-- Lifts the limits of a queue, and answers whether it had any. Its runs stay.
CREATE FUNCTION feedq_1.remove_queue(named text) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM feedq.job_queue WHERE name = named;
    RETURN FOUND;
END $body$;

-- -- retention ------------------------------------------------------------------------------------------------------

-- Deletes at most so many runs that ended so long ago, but those of schedules that keep them longer, and removed
-- schedules with no run left: nothing makes runs of these any more. Answers with how many runs. Any node may, several at
-- once: they share the rows. What has not ended is never deleted, however old.
--
-- What was found is looked up by its ids in an array, so that no table is read as a whole to be joined with it.
CREATE FUNCTION feedq_1.trim_runs(keep_days int, most int) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    deleted int;
BEGIN
    DELETE FROM feedq.run WHERE id = ANY (ARRAY(
        SELECT id FROM feedq.run
        WHERE ended_at IS NOT NULL AND ended_at < feedq.now() - make_interval(days => keep_days)
            AND schedule_id <> ALL (ARRAY(
                SELECT id FROM feedq.schedule
                WHERE jsonb_exists(declaration, 'keep') AND (declaration #>> '{keep,days}')::int > keep_days))
        ORDER BY ended_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    DELETE FROM feedq.schedule WHERE id = ANY (ARRAY(
        SELECT id FROM feedq.schedule s
        WHERE removed_at IS NOT NULL AND NOT EXISTS (SELECT FROM feedq.run r WHERE r.schedule_id = s.id)
        ORDER BY removed_at LIMIT most FOR UPDATE SKIP LOCKED));
    RETURN deleted;
END $body$;

-- Deletes at most so many runs of the next so many schedules, beyond this one, that keep a history of their own, as far
-- as they do not keep them. Answers with how many, and with the schedule after which to go on (0: from the first). A scan
-- takes as long whether there are ten such schedules or a hundred thousand.
CREATE FUNCTION feedq_1.trim_kept(after bigint, among int, most int) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    schedules bigint[];
    deleted int;
BEGIN
    schedules := ARRAY(
        SELECT id FROM feedq.schedule WHERE jsonb_exists(declaration, 'keep') AND id > after
        ORDER BY id LIMIT among);
    DELETE FROM feedq.run WHERE id = ANY (ARRAY(
        SELECT id FROM feedq.run WHERE id = ANY (ARRAY(
            SELECT r.id
            FROM (SELECT id, (declaration #>> '{keep,runs}')::int AS runs, (declaration #>> '{keep,days}')::int AS days
                  FROM feedq.schedule WHERE id = ANY (schedules) OFFSET 0) keeper
            LEFT JOIN LATERAL (
                SELECT id FROM feedq.run WHERE schedule_id = keeper.id ORDER BY id DESC OFFSET keeper.runs LIMIT 1
            ) beyond ON keeper.runs IS NOT NULL
            -- Only the oldest, so that one which keeps much is not read as a whole each time.
            CROSS JOIN LATERAL (
                SELECT id, ended_at FROM feedq.run WHERE schedule_id = keeper.id ORDER BY id LIMIT most
            ) r
            WHERE r.ended_at IS NOT NULL AND (r.id <= beyond.id
                OR r.ended_at < feedq.now() - make_interval(days => keeper.days))
            LIMIT most
        )) ORDER BY id FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN json_build_array(deleted, CASE
        WHEN deleted >= most THEN after
        WHEN cardinality(schedules) = among THEN schedules[among]
        ELSE 0 END);
END $body$;
