-- How runs end. An attempt is finished by its worker, or taken from a worker that is gone.
--
-- Finishing. A finish names run, fence and worker. It has an effect only while the run is running under that fence: not
-- when the attempt was taken away (its worker was declared gone), and not a second time. Those turned away are written
-- down as events, unless the run was cancelled on purpose, the worker says itself that time ran out, or it thought a
-- commit lost that has happened: then nothing is lost that anybody could miss.
--
-- Expiry. A run is its worker's as long as the worker's session lives; there is no lease of its own to renew. Until the
-- worker is declared gone, nobody else ends the run, whatever its time-out says: its owner does, and may only be waiting
-- for the database to tell it. An outage of the database is no loss of workers (`feedq.core.lease.OutageGrace`), so it
-- ends no run. Afterwards the time-out decides nothing either: what becomes of the run is a matter of its semantics.
--
-- The worker, should it live after all and come later (frozen, cut off), finds its fence passed when it finishes: the run
-- has ended, or waits for an attempt under a new one.
--
-- The order of locks is schedules by id, then runs by id.

-- Writes an event of a schedule or a run: it names what it is of and does not point to it, because history outlives it.
CREATE FUNCTION feedq_1.note(kind text, detail json) RETURNS void LANGUAGE sql AS $body$
    INSERT INTO feedq.event (kind, detail) VALUES (kind, jsonb_strip_nulls(detail::jsonb))
$body$;

-- Whether the runs of this worker are its own: it is not gone, or so short a time ago that it may live. A worker that has
-- lost all its sessions for a moment is taken for dead. Its process registers again within a fraction of the grace, and
-- takes its runs over. Whose heartbeats stayed away for a whole ttl, or who left, is owed none. A suspicion that lies
-- ahead was before the database's clock was put back: no grace without an end.
CREATE FUNCTION feedq_1.has_runs(session uuid) RETURNS boolean LANGUAGE sql STABLE AS $body$
    SELECT EXISTS (
        SELECT FROM feedq.worker w WHERE w.id = session AND (w.state <> 'gone'
            OR w.suspected_at <= feedq.now()
                AND w.suspected_at > feedq.now() - interval '1 second'))
$body$;

-- running -> a last state, or waiting again. The run's row is locked; its schedule's is, where failures in a row may
-- change (`is_counted`). `ended` is the state that the worker tells: 'lost' when the attempt ended with its worker, or
-- nothing of it was kept; 'waiting' when it had not begun. `retry_in_s`: what the job's retries say of an attempt that did
-- not succeed; NULL: it is over. Of a removed schedule nobody wants another attempt. A run that is done again at once
-- keeps its rank; repeated later, it ranks as if it had fallen due then. A job that kills its workers must end some day,
-- after ten losses.
CREATE FUNCTION feedq_1.end_attempt(r feedq.run, ended text, said text, retry_in_s float8, is_counted boolean)
RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    losses_max constant int := 10;
    s record;
    becomes text := ended;
    due_in_s float8;
    later interval;
    why text;
BEGIN
    -- Only what is needed is read of declarations: one that this release cannot read must not keep runs from ending.
    SELECT name, failures, state = 'active' AND removed_at IS NULL AS is_active, removed_at IS NOT NULL AS is_removed,
        CASE WHEN jsonb_typeof(declaration -> 'pause_on_failure') = 'number'
            THEN (declaration ->> 'pause_on_failure')::numeric END AS pause_on_failure
    INTO s FROM feedq.schedule WHERE id = r.schedule_id;
    IF ended = 'waiting' AND s.is_removed THEN
        becomes := 'cancelled';
    ELSIF ended = 'lost' AND NOT s.is_removed AND r.losses + 1 < losses_max
        AND r.job ->> 'semantics' IN ('at_least_once', 'transactional')
    THEN
        due_in_s := 0;
    ELSIF ended IN ('failed', 'timed_out') AND NOT s.is_removed THEN
        due_in_s := retry_in_s;
    END IF;
    IF due_in_s IS NOT NULL THEN
        becomes := 'waiting';
    END IF;
    later := coalesce(feedq.now() + make_interval(secs => due_in_s) - r.due_at, interval '0');
    UPDATE feedq.run SET state = becomes, reason = said,
        attempt = r.attempt + CASE WHEN due_in_s IS NULL THEN 0 ELSE 1 END,
        losses = r.losses + CASE WHEN ended = 'lost' THEN 1 ELSE 0 END,
        ended_at = CASE WHEN becomes <> 'waiting' THEN feedq.clock() END,
        worker_id = CASE WHEN becomes <> 'waiting' THEN r.worker_id END,
        started_at = CASE WHEN becomes <> 'waiting' THEN r.started_at END,
        deadline_at = CASE WHEN becomes <> 'waiting' THEN r.deadline_at END,
        due_at = r.due_at + later, start_by = r.start_by + later,
        rank_at = CASE WHEN due_in_s > 0 THEN r.rank_at + later ELSE r.rank_at END
    WHERE id = r.id;
    IF is_counted AND becomes IN ('failed', 'timed_out', 'lost') THEN
        IF s.is_active AND s.failures + 1 >= s.pause_on_failure THEN
            why := s.failures + 1 || ' runs in a row did not succeed';
            PERFORM feedq_1.note('schedule_paused', json_build_object('schedule', s.name, 'reason', why));
        END IF;
        UPDATE feedq.schedule SET failures = s.failures + 1, pause_reason = coalesce(why, pause_reason),
            state = CASE WHEN why IS NULL THEN state ELSE 'paused' END
        WHERE id = r.schedule_id;
    ELSIF is_counted AND becomes = 'succeeded' AND s.failures > 0 THEN
        UPDATE feedq.schedule SET failures = 0 WHERE id = r.schedule_id;
    END IF;
    IF ended = 'lost' THEN
        PERFORM feedq_1.note('run_lost', json_build_object(
            'schedule', s.name, 'key', r.key, 'run', r.id, 'attempt', r.attempt, 'state', becomes));
    END IF;
END $body$;

-- Writes down a finish that had no effect, and answers whether it did. `schedule` and `key` are what the worker knows of a run that is gone.
CREATE FUNCTION feedq_1.reject(session uuid, run bigint, run_fence bigint, ended text, schedule text, key text)
RETURNS boolean LANGUAGE plpgsql AS $body$
#variable_conflict use_variable
DECLARE
    found_run record;
BEGIN
    SELECT s.name, r.key, r.state, r.fence INTO found_run
    FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id WHERE r.id = run;
    IF ended = 'timed_out' OR found_run.fence = run_fence AND (found_run.state = 'cancelled'
        OR found_run.state = 'succeeded' AND ended = 'lost')
    THEN
        RETURN false;
    END IF;
    PERFORM feedq_1.note('run_finish_rejected', json_build_object(
        'schedule', coalesce(found_run.name, schedule), 'key', coalesce(found_run.key, key), 'run', run,
        'fence', run_fence, 'worker', session, 'state', ended, 'found', found_run.state));
    RETURN true;
END $body$;

-- running -> ended, or waiting again: what a worker tells of its attempts, in the order in which they ended. Answers with
-- the runs that were still this worker's, and have `ended`; and with those that somebody has locked, or whose schedule: they
-- are `busy`, and to be told again. Each finish is {run_id, fence, state, reason, retry_in_s}.
--
-- A schedule is locked before its runs, and only where its failures in a row may change, or it may have been removed: a
-- success after successes locks nothing but the run. If a failure comes from elsewhere meanwhile, it came after.
-- Run twice, the second finds none running under that fence, and says so.
CREATE FUNCTION feedq_1.finish(session uuid, finishes json) RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    told record;
    r feedq.run;
    ids bigint[];
    may_repeat bigint[];
    wanted bigint[];
    counted bigint[];
    mine bigint[];
    ended bigint[] := '{}';
    busy bigint[] := '{}';
BEGIN
    SELECT array_agg(run_id), array_agg(run_id) FILTER (WHERE state IN ('failed', 'timed_out', 'lost', 'waiting'))
    INTO ids, may_repeat FROM json_to_recordset(finishes) AS f (run_id bigint, state text);
    wanted := ARRAY(
        SELECT s.id FROM feedq.schedule s
        WHERE s.id = ANY (ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY (ids)))
            AND (s.failures > 0 OR s.id = ANY (ARRAY(
                SELECT schedule_id FROM feedq.run WHERE id = ANY (may_repeat)))));
    PERFORM feedq_1.lock_runs(wanted, ids);
    counted := ARRAY(SELECT id FROM feedq.schedule WHERE id = ANY (wanted) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED);
    mine := ARRAY(SELECT id FROM feedq.run WHERE id = ANY (ids) ORDER BY id FOR UPDATE SKIP LOCKED);
    FOR told IN
        SELECT * FROM json_to_recordset(finishes)
            AS f (run_id bigint, fence bigint, state text, reason text, retry_in_s float8)
    LOOP
        SELECT * INTO r FROM feedq.run WHERE id = told.run_id;
        IF r.state = 'running' AND r.fence = told.fence AND r.worker_id = session THEN
            IF r.id <> ALL (mine) OR r.schedule_id = ANY (wanted) AND r.schedule_id <> ALL (counted) THEN
                busy := busy || r.id;
                CONTINUE;
            END IF;
            PERFORM feedq_1.end_attempt(
                r, told.state, told.reason, told.retry_in_s, is_counted => r.schedule_id = ANY (counted));
            ended := ended || r.id;
        ELSE
            PERFORM feedq_1.reject(session, told.run_id, told.fence, told.state, NULL, NULL);
        END IF;
    END LOOP;
    RETURN json_build_object('ended', ended, 'busy', busy);
END $body$;

-- running -> succeeded, within the transaction of a `transactional` job, which commits at once. Answers whether the run is
-- still this worker's. If the session that claimed it is gone, the run was taken over by the next one of its process, or
-- would not be running under this fence any more.
CREATE FUNCTION feedq_1.succeed_within(session uuid, run bigint, run_fence bigint) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE feedq.schedule SET failures = 0
    WHERE failures > 0 AND id = (SELECT r.schedule_id FROM feedq.run r WHERE r.id = run);
    UPDATE feedq.run r SET state = 'succeeded', reason = NULL, ended_at = feedq.clock()
    WHERE r.id = run AND r.fence = run_fence AND r.state = 'running' AND (r.worker_id = session
        OR EXISTS (SELECT FROM feedq.worker w WHERE w.id = session AND w.state = 'gone' OFFSET 0));
    RETURN FOUND;
END $body$;

-- Whether a `transactional` run has succeeded under this fence: for a worker whose commit was cut off. It waits for the
-- run's lock, and so for a commit that is under way.
CREATE FUNCTION feedq_1.has_succeeded(run bigint, run_fence bigint) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    has boolean;
BEGIN
    SELECT r.state = 'succeeded' AND r.fence = run_fence INTO has FROM feedq.run r WHERE r.id = run FOR UPDATE;
    RETURN coalesce(has, false);
END $body$;

-- What the session of a `transactional` job is called on the server.
CREATE FUNCTION feedq_1.job_session(run bigint, fence bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT 'feedq-job/' || run || '/' || fence
$body$;

-- Runs of workers that are gone, each with the worker. From one worker that runs something to the next, by the index:
-- thousands may run, on a few workers.
CREATE FUNCTION feedq_1.orphans(most int) RETURNS TABLE (run_id bigint, worker uuid) LANGUAGE sql STABLE AS $body$
    WITH RECURSIVE holder (id) AS (
        (SELECT worker_id FROM feedq.run WHERE state = 'running' ORDER BY worker_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT r.worker_id FROM feedq.run r WHERE r.state = 'running' AND r.worker_id > h.id
            ORDER BY r.worker_id LIMIT 1
        ) FROM holder h WHERE h.id IS NOT NULL
    )
    SELECT r.id, r.worker_id FROM holder h CROSS JOIN LATERAL (
        SELECT id, worker_id FROM feedq.run WHERE worker_id = h.id AND state = 'running' OFFSET 0
    ) r WHERE h.id IS NOT NULL AND NOT feedq_1.has_runs(h.id) LIMIT most
$body$;

-- running -> lost, or waiting again: takes at most so many runs from workers that are gone, and ends the transactions of
-- their jobs: nothing in them can be committed any more. Answers with how many. Runs that missed their start deadline are
-- ended, too: where nobody claims, nobody else does it.
--
-- Any node may, several at once: what one has locked the others skip. Nothing is waited for, so the order of locks matters
-- to nobody else, and what was skipped is there for the next scan. Only of the worker that was found: a new one, which has
-- taken the run over meanwhile, a statement may not see yet.
CREATE FUNCTION feedq_1.expire_runs(most int) RETURNS int LANGUAGE plpgsql AS $body$
DECLARE
    r feedq.run;
    runs bigint[];
    workers uuid[];
    counted bigint[];
    sessions text[] := '{}';
BEGIN
    PERFORM feedq_1.miss_deadlines();
    SELECT array_agg(run_id), array_agg(worker) INTO runs, workers FROM feedq_1.orphans(most);
    counted := ARRAY(
        SELECT s.id FROM feedq.schedule s
        WHERE s.id = ANY (ARRAY(SELECT schedule_id FROM feedq.run WHERE id = ANY (runs)))
        ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED);
    FOR r IN
        SELECT held.* FROM unnest(runs, workers) AS found (run_id, worker) CROSS JOIN LATERAL (
            SELECT * FROM feedq.run WHERE id = found.run_id AND schedule_id = ANY (counted)
            OFFSET 0 FOR UPDATE SKIP LOCKED
        ) held
        WHERE held.state = 'running' AND held.worker_id = found.worker AND NOT feedq_1.has_runs(held.worker_id)
    LOOP
        PERFORM feedq_1.end_attempt(r, 'lost', 'its worker was declared gone', NULL, is_counted => true);
        sessions := sessions || feedq_1.job_session(r.id, r.fence);
    END LOOP;
    IF sessions <> '{}' THEN
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pg_has_role(usesysid, 'USAGE') AND application_name = ANY (sessions);
    END IF;
    RETURN cardinality(sessions);
END $body$;

-- Makes runs of a session of a process that was declared gone its next session's, by their fences: each still `running`
-- under the fence that the process has for it, so nobody else can have begun it. Answers with those that are.
CREATE FUNCTION feedq_1.take_over(session uuid, was uuid, runs bigint[], fences bigint[]) RETURNS json
LANGUAGE plpgsql AS $body$
DECLARE
    mine bigint[];
BEGIN
    PERFORM feedq_1.lock_runs('{}', runs);
    mine := ARRAY(
        SELECT r.id FROM (SELECT * FROM unnest(runs, fences) AS t (id, fence) ORDER BY id) t
        CROSS JOIN LATERAL (SELECT * FROM feedq.run WHERE id = t.id FOR UPDATE SKIP LOCKED) r
        WHERE r.fence = t.fence AND r.worker_id = was AND r.state = 'running'
            AND EXISTS (SELECT FROM feedq.worker WHERE id = session AND state <> 'gone'));
    UPDATE feedq.run SET worker_id = session WHERE id = ANY (mine);
    RETURN array_to_json(mine);
END $body$;
