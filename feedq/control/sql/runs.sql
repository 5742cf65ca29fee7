-- Runs of schedules: workers claim them, end them, and promote those that have waited for their turn.
--
-- A run is claimed under a fence, a number that only grows. Whatever its worker does with it afterwards names the fence,
-- and has no effect once that has passed. A run has no lease of its own: it is its worker's as long as the worker's
-- session lives.
--
-- Locks. Whoever waits for rows takes them in this order: job_queue by name (claims), schedule by id, run by id. What
-- is taken with SKIP LOCKED needs no order: who never waits closes no circle.
--
-- What workers and firing wait for, they wait for briefly (`lock_runs`), and go on without: a row that a person at psql has
-- locked and forgotten delays its own run or queue, and no other.
--
-- Plans. A plan that is kept must be right however many runs wait later, also if there was none when it was made. So
-- the functions that claim, end and promote allow none that would depend on it: no sort, no bitmap, no hash and no merge.
-- What is left for each part is the index that has its order, read row by row until there are enough. The end of this
-- file sets that.

-- The task that a run is of, and the labels that it requires, as the index `run_lane` has them.
CREATE FUNCTION feedq_1.task_of(r feedq.run) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT coalesce(r.job ->> 'task', '')
$body$;
CREATE FUNCTION feedq_1.labels_of(r feedq.run) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $body$
    SELECT coalesce(r.job #> '{selector,required}', '{}'::jsonb)
$body$;

-- Whether a worker that says it knows these tasks knows this one: one that says nothing may try all, and a job without
-- the name of a task is some worker's to end, as one that cannot be read.
CREATE FUNCTION feedq_1.knows(known text[], task text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $body$
    SELECT known IS NULL OR task = '' OR task = ANY (known)
$body$;

-- How many runs a worker may take: so many that it then has its share of all that run or are due, rounded up, and at
-- least those that nobody has taken for a second. A worker that is alone takes as much as it has room for.
CREATE FUNCTION feedq_1.share_of(free int, slots int, fleet_slots int, due bigint, left_over bigint, running bigint)
RETURNS int LANGUAGE sql IMMUTABLE AS $body$
    SELECT CASE WHEN fleet_slots <= slots THEN free ELSE least(free, greatest(
        ceil((running + due) * slots::float8 / fleet_slots) - (slots - free), left_over))::int END
$body$;

-- Locks rows in their order. Waits for a statement that has one of them, but not for a person who has one open and has
-- gone to lunch: then it answers with false and holds none. Whoever calls it goes on with SKIP LOCKED.
CREATE FUNCTION feedq_1.lock_runs(schedules bigint[], runs bigint[], queues text[] DEFAULT '{}') RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $body$
BEGIN
    PERFORM FROM feedq.job_queue WHERE name = ANY (queues) ORDER BY name FOR UPDATE;
    PERFORM FROM feedq.schedule WHERE id = ANY (schedules) ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM feedq.run WHERE id = ANY (runs) ORDER BY id FOR UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $body$;

-- Queues with limits: how many of their runs may begin now, at most `most`, and the tokens that they have for it.
CREATE FUNCTION feedq_1.queue_room(most int) RETURNS TABLE (
    queue text, room int, tokens float8, rate_per_s float8
) LANGUAGE sql VOLATILE AS $body$
    SELECT q.name, least(most,
            CASE WHEN q.rate_per_s IS NOT NULL THEN floor(t.tokens + 1e-9) END,
            q.concurrency - (
                SELECT count(*) FROM (
                    SELECT FROM feedq.run r WHERE r.queue = q.name AND r.state = 'running' LIMIT q.concurrency
                ) running))::int,
        t.tokens, q.rate_per_s
    FROM feedq.job_queue q CROSS JOIN LATERAL (
        SELECT least(q.burst, q.tokens + coalesce(q.rate_per_s, 0)
            * greatest(extract(epoch FROM feedq.now() - q.tokens_at), 0))::float8 AS tokens
    ) t
$body$;

-- Ends runs that nobody has started before their start deadline. Answers with their ids. Whoever claims does it, and
-- where nobody does, whoever looks for runs of workers that are gone.
CREATE FUNCTION feedq_1.miss_deadlines() RETURNS json LANGUAGE plpgsql AS $body$
DECLARE
    missed_at_once constant int := 1000;
    late bigint[];
BEGIN
    SELECT array_agg(r.id) INTO late FROM (
        SELECT id FROM feedq.run WHERE state IN ('buffered', 'waiting') AND start_by <= feedq.now()
        ORDER BY start_by LIMIT missed_at_once FOR UPDATE SKIP LOCKED
    ) r;
    -- By their ids in an array: joined to them, a plan that was made when nothing waited reads all runs.
    UPDATE feedq.run SET state = 'missed_deadline', ended_at = feedq.clock(),
        reason = 'not started before its start deadline'
    WHERE id = ANY (late);
    RETURN coalesce(array_to_json(late), '[]');
END $body$;

-- waiting -> running: gives a worker with free slots runs to run, each under a new fence, before any of their code runs.
-- Answers with them, with those that missed their start deadline and were ended, and with the seconds until the worker
-- should ask again; NULL: when it is told to.
--
-- Which runs. The worker knows the task and has the labels that the job asks for; the run is due, its start deadline has
-- not passed, and its queue has room. Runs whose schedule runs one at a time are `waiting` when it is their turn, and
-- `buffered` before. Earlier ranks come first. A rank is the time at which the run fell due, moved ahead by its
-- priority, so that waiting makes up for priority.
--
-- How many. As many as the worker has free slots, but not so many that it would have more than its share of all that run
-- or are due, in proportion to the job slots: the rest is for workers with more room, which have been told of it as
-- well. What nobody has taken for a second is anybody's, because whoever was meant to take it is frozen, or cannot do
-- it. With more to do than slots, the share is every slot.
--
-- A lane is a queue, a task and labels: one whose queue is full, or whose runs the worker cannot do, costs one step,
-- however many wait in it.
--
-- Two workers at the same moment: the second skips rows that the first has locked, and reads others again as they are
-- once they are its own. Of a queue with limits the row is locked before its runs are counted for good.
--
-- Killed before the commit, nothing has happened. Killed after it, and before the answer was heard, the runs are the
-- worker's, which finds that it holds what it does not know.
CREATE FUNCTION feedq_1.claim_runs(session uuid, free int, slots int, fleet_slots int) RETURNS json
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    left_over_after constant interval := '1 s';
    -- When there are runs to start, and others were about to take them.
    again_s constant float8 := 0.05;
    -- Candidates beyond those that are wanted: the first may be locked by workers that claim as well.
    crowd constant int := 32;
    -- The most by which a priority moves a rank ahead.
    ahead constant interval := '100 s';
    -- A stored job that does not say how long it may take.
    usual_timeout_s constant float8 := 3600;
    -- Thirty years, for durations beyond it, which no interval holds.
    never_s constant float8 := 1e9;
    at constant timestamptz := feedq.now();
    my_tasks text[];
    my_labels jsonb;
    due_in_s float8;
    next_in_s float8;
    lane_queues text[];
    lane_tasks text[];
    lane_labels jsonb[];
    open text[];
    share int := free;
    missed json;
    candidates int;
    taken int;
    runs json;
    n record;
BEGIN
    SELECT extract(epoch FROM due_at - feedq.clock()) INTO due_in_s
    FROM feedq.run WHERE state = 'waiting' ORDER BY due_at LIMIT 1;
    IF due_in_s IS NULL OR due_in_s > 0 THEN
        RETURN json_build_object('runs', json_build_array(), 'missed', json_build_array(), 'next_in_s', due_in_s);
    END IF;
    SELECT extract(epoch FROM due_at - feedq.clock()) INTO next_in_s
    FROM feedq.run WHERE state = 'waiting' AND due_at > at ORDER BY due_at LIMIT 1;

    missed := feedq_1.miss_deadlines();
    SELECT t.tasks, w.labels INTO my_tasks, my_labels
    FROM feedq.worker w LEFT JOIN feedq.task_set t ON t.id = w.task_set_id
    WHERE w.id = session AND w.state = 'active' AND w.target_state = 'serving';
    IF FOUND THEN
        -- From one lane to the next, by the index.
        WITH RECURSIVE waiting_lane (queue, task, labels) AS (
            (SELECT r.queue, feedq_1.task_of(r), feedq_1.labels_of(r) FROM feedq.run r WHERE r.state = 'waiting'
             ORDER BY r.queue, feedq_1.task_of(r), feedq_1.labels_of(r) LIMIT 1)
            UNION ALL
            SELECT coming.* FROM waiting_lane l CROSS JOIN LATERAL (
                SELECT r.queue, feedq_1.task_of(r), feedq_1.labels_of(r) FROM feedq.run r
                WHERE r.state = 'waiting'
                    AND (r.queue, feedq_1.task_of(r), feedq_1.labels_of(r)) > (l.queue, l.task, l.labels)
                ORDER BY r.queue, feedq_1.task_of(r), feedq_1.labels_of(r) LIMIT 1
            ) coming
        )
        SELECT array_agg(queue), array_agg(task), array_agg(labels) INTO lane_queues, lane_tasks, lane_labels
        FROM waiting_lane l
        WHERE feedq_1.knows(my_tasks, l.task) AND my_labels @> l.labels;

        -- Queues with limits that are full need not be waited for.
        SELECT array_agg(q.queue) FILTER (WHERE q.room > 0),
            least(next_in_s, min((1 - q.tokens) / q.rate_per_s) FILTER (WHERE q.tokens < 1))
        INTO open, next_in_s FROM feedq_1.queue_room(free + crowd) q WHERE q.queue = ANY (lane_queues);
        IF open IS NOT NULL AND NOT feedq_1.lock_runs('{}', '{}', queues => open) THEN
            open := ARRAY(SELECT name FROM feedq.job_queue WHERE name = ANY (open) ORDER BY name FOR UPDATE SKIP LOCKED);
            next_in_s := least(next_in_s, extract(epoch FROM left_over_after));
        END IF;
    END IF;

    IF fleet_slots > slots THEN
        -- Counted no further than makes a difference: with more to do than the fleet has slots, everybody's share is
        -- all of its own. A worker that is alone counts nothing.
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM feedq.run WHERE state = 'waiting' AND due_at <= at ORDER BY due_at LIMIT fleet_slots
            ) due) AS due,
            (SELECT count(*) FROM (
                SELECT FROM feedq.run WHERE state = 'waiting' AND due_at <= at - left_over_after
                ORDER BY due_at LIMIT least(fleet_slots, free)
            ) due) AS left_over,
            (SELECT count(*) FROM (
                SELECT FROM feedq.run WHERE state = 'running' ORDER BY worker_id LIMIT fleet_slots
            ) running) AS running
        INTO n;
        share := feedq_1.share_of(free, slots, fleet_slots, n.due, n.left_over, n.running);
        IF share < least(free, n.due) THEN
            next_in_s := least(next_in_s, extract(epoch FROM left_over_after));
        END IF;
    END IF;
    next_in_s := greatest(next_in_s, 0);
    IF share <= 0 OR lane_queues IS NULL THEN
        RETURN json_build_object(
            'runs', json_build_array(), 'missed', missed, 'next_in_s', next_in_s);
    END IF;

    WITH room AS MATERIALIZED (
        SELECT * FROM feedq_1.queue_room(free + crowd)
    ), found AS (
        SELECT r.* FROM unnest(lane_queues, lane_tasks, lane_labels) AS l (queue, task, labels) CROSS JOIN LATERAL (
            SELECT r.id, r.queue, r.rank_at FROM feedq.run r
            WHERE r.queue = l.queue AND feedq_1.task_of(r) = l.task AND feedq_1.labels_of(r) = l.labels
                AND r.state = 'waiting' AND r.rank_at <= at + ahead
                AND r.due_at <= at AND (r.start_by IS NULL OR r.start_by > at)
            ORDER BY r.rank_at LIMIT free + crowd
        ) r
    ), ranked AS (
        SELECT found.*, row_number() OVER (PARTITION BY found.queue ORDER BY found.rank_at, found.id) AS place,
            CASE WHEN room.queue IS NULL THEN free + crowd WHEN room.queue = ANY (open) THEN room.room ELSE 0 END AS room
        FROM found LEFT JOIN room ON room.queue = found.queue
    ), candidate AS MATERIALIZED (
        SELECT * FROM ranked WHERE place <= room ORDER BY rank_at, id LIMIT free + crowd
    ), picked AS MATERIALIZED (
        SELECT r.at, c.queue FROM (SELECT * FROM candidate ORDER BY rank_at, id) c CROSS JOIN LATERAL (
            -- By nothing but its key: for `id = …` a plan that was made when there were no runs could take any index
            -- that has the id in it, and go through all of it later. And what it was when it was found does not count:
            -- as it is, now that nobody else can change it.
            SELECT *, ctid AS at FROM feedq.run WHERE id BETWEEN c.id AND c.id ORDER BY id LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) r
        WHERE r.state = 'waiting' AND r.due_at <= feedq.now()
            AND (r.start_by IS NULL OR r.start_by > feedq.now())
        LIMIT share
    ), taken AS (
        UPDATE feedq.run r SET
            state = 'running', worker_id = session, reason = NULL, fence = nextval('feedq.run_fence'),
            started_at = feedq.clock(),
            deadline_at = feedq.clock() + make_interval(secs => CASE
                WHEN NOT jsonb_exists(r.job, 'timeout') THEN usual_timeout_s
                WHEN jsonb_typeof(r.job -> 'timeout') = 'number'
                    THEN least(greatest((r.job ->> 'timeout')::float8, 0), never_s) END)
        FROM picked WHERE r.ctid = picked.at  -- locked, so that it stays where it is
        RETURNING r.*
    ), spent AS (
        UPDATE feedq.job_queue q SET tokens = greatest(room.tokens - starts.n, 0), tokens_at = feedq.now()
        FROM room JOIN (SELECT queue, count(*) AS n FROM picked GROUP BY queue) starts USING (queue)
        WHERE q.name = room.queue AND room.rate_per_s IS NOT NULL
    )
    SELECT (SELECT count(*) FROM candidate), count(taken.id), json_agg(
        json_build_array(taken.id, taken.fence, json_build_object(
            'id', taken.id, 'fence', taken.fence, 'attempt', taken.attempt, 'losses', taken.losses, 'schedule', s.name,
            'key', taken.key, 'kind', taken.kind, 'tick_at', taken.tick_at, 'due_at', taken.due_at, 'job', taken.job::text,
            'remaining_s', extract(epoch FROM taken.deadline_at - feedq.clock())::float8,
            'waited_s', extract(epoch FROM feedq.clock() - taken.due_at)::float8
        ))
        ORDER BY taken.rank_at, taken.id)
    INTO candidates, taken, runs
    FROM taken JOIN feedq.schedule s ON s.id = taken.schedule_id;
    IF taken = free THEN
        next_in_s := 0;
    ELSIF taken < share AND (candidates > taken OR taken > 0 AND open IS NOT NULL) THEN
        -- Others hold them for a moment; or a bucket is emptier than it was.
        next_in_s := least(next_in_s, again_s);
    END IF;
    RETURN json_build_object(
        'runs', coalesce(runs, '[]'), 'missed', missed, 'next_in_s', next_in_s);
END $body$;

-- running -> succeeded, of the common kind: runs of schedules without failures in a row, which need no lock but their
-- own. Answers with those that it has ended, each with whether any run is buffered behind it; the others are for
-- `finish`.
CREATE FUNCTION feedq_1.succeed(session uuid, ids bigint[], fences bigint[]) RETURNS json
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    ended json;
BEGIN
    WITH found AS MATERIALIZED (
        SELECT r.at FROM unnest(ids, fences) AS given (id, fence)
        CROSS JOIN LATERAL (
            SELECT *, ctid AS at FROM feedq.run WHERE id BETWEEN given.id AND given.id ORDER BY id LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) r
        CROSS JOIN LATERAL (SELECT failures FROM feedq.schedule WHERE id = r.schedule_id OFFSET 0) s
        WHERE r.state = 'running' AND r.fence = given.fence AND r.worker_id = session AND s.failures = 0
    ), ended AS (
        UPDATE feedq.run r SET state = 'succeeded', reason = NULL, ended_at = feedq.clock()
        FROM found WHERE r.ctid = found.at RETURNING r.id, r.schedule_id
    )
    SELECT json_agg(json_build_array(id, (
        SELECT true FROM feedq.run b WHERE b.schedule_id = ended.schedule_id AND b.state = 'buffered'
        ORDER BY (b.kind = 'backfill'), b.tick_at LIMIT 1) IS NOT NULL)) INTO ended FROM ended;
    RETURN coalesce(ended, '[]');
END $body$;

-- Tells one worker for each of so many runs, with the commit: first those that are least busy for their slots, whose
-- share leaves them room. A worker that is not told looks by itself, on an idle fleet seconds later; by then the others
-- have done all of a backlog.
CREATE FUNCTION feedq_1.notify_some(runs int, reason text) RETURNS void LANGUAGE sql AS $body$
    SELECT pg_notify('feedq_worker_' || lock_key, reason) FROM (
        SELECT lock_key FROM feedq.worker w
        WHERE state = 'active' AND target_state = 'serving' AND job_slots > 0 AND expires_at > feedq.clock()
        ORDER BY (
            SELECT count(*) FROM feedq.run r WHERE r.worker_id = w.id AND r.state = 'running'
        )::float8 / job_slots, random() LIMIT runs
    ) told
$body$;

-- buffered -> waiting: gives the turn of each of these schedules to the run that is to have it, if nobody has it, and
-- tells workers of those that may start. Answers with how many these are.
--
-- An *exclusive* run (of every schedule but `allow_all`) must not begin while another of its schedule runs. So of the
-- exclusive runs of a schedule at most one is `waiting` or `running`: it has the turn, and a unique index
-- (`run_one_at_a_time`) admits no second one. The turn goes to the oldest tick that is due, before all that belong to a
-- backfill; if none is due, to the run that falls due first, which is a retry. A retry that waits for a later time gives
-- its turn up to a run that comes first.
--
-- Locks the schedules, and leaves out those that others have locked: a frozen one must hold up nobody. Whoever makes
-- exclusive runs holds that lock already, and promotes in the same transaction. Whoever ends a run promotes after its
-- commit, so that the end of a run does not wait for the schedule.
--
-- Killed or frozen between the end of a run and this, nobody has the turn: `promote_stranded` finds such schedules, and so it
-- does where a run was made at the moment at which its predecessor ended, or rows were changed by hand. Run twice, the
-- second finds that somebody has the turn.
CREATE FUNCTION feedq_1.promote(schedules bigint[]) RETURNS int
LANGUAGE plpgsql AS $body$
DECLARE
    at constant timestamptz := feedq.now();
    schedule bigint;
    has feedq.run;
    next bigint;
    due timestamptz;
    may_start int := 0;
BEGIN
    FOR schedule IN
        SELECT id FROM feedq.schedule WHERE id = ANY (schedules) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        -- In an order that only `run_turn` has: other indexes have all that is buffered.
        SELECT * INTO has FROM feedq.run r
        WHERE r.schedule_id = schedule AND r.state IN ('waiting', 'running') AND (r.exclusive OR r.state = 'running')
        ORDER BY r.fence LIMIT 1;
        IF FOUND THEN
            CONTINUE WHEN has.state = 'running' OR has.due_at <= at OR NOT EXISTS (
                SELECT FROM feedq.run b
                WHERE b.schedule_id = schedule AND b.state = 'buffered' AND b.due_at < has.due_at);
            UPDATE feedq.run r SET state = 'buffered' WHERE r.id = has.id AND r.state = 'waiting';
            CONTINUE WHEN NOT FOUND;  -- a worker has claimed it meanwhile
        END IF;
        SELECT r.id INTO next FROM feedq.run r
        WHERE r.schedule_id = schedule AND r.state = 'buffered' AND r.due_at <= at
        ORDER BY (r.kind = 'backfill'), r.tick_at, r.id LIMIT 1;
        IF NOT FOUND THEN
            -- Goes through what is buffered, where nothing is due: then only retries are.
            SELECT r.id INTO next FROM feedq.run r
            WHERE r.schedule_id = schedule AND r.state = 'buffered' ORDER BY r.due_at LIMIT 1;
        END IF;
        UPDATE feedq.run r SET state = 'waiting' WHERE r.id = next AND r.state = 'buffered' RETURNING r.due_at INTO due;
        IF FOUND AND due <= at THEN
            may_start := may_start + 1;
        END IF;
    END LOOP;
    IF may_start > 0 THEN
        PERFORM feedq_1.notify_some(may_start, 'runs');
    END IF;
    RETURN may_start;
END $body$;

-- Promotes what waits behind these runs, whose end has been committed.
CREATE FUNCTION feedq_1.promote_behind(runs bigint[]) RETURNS int LANGUAGE plpgsql AS $body$
BEGIN
    RETURN feedq_1.promote(ARRAY(
        SELECT DISTINCT r.schedule_id FROM feedq.run r WHERE r.id = ANY (runs) AND EXISTS (
            SELECT FROM feedq.run b WHERE b.schedule_id = r.schedule_id AND b.state = 'buffered' OFFSET 0)));
END $body$;

-- Promotes in schedules with buffered runs whose turn nobody has, among at most so many beyond this one. Answers with the
-- one after which to go on (0: from the first). From one schedule to the next, by the index: thousands may be buffered
-- in one.
CREATE FUNCTION feedq_1.promote_stranded(after bigint, most int) RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    at constant timestamptz := feedq.now();
    schedule bigint := after;
    has feedq.run;
    waits bigint[] := '{}';
BEGIN
    FOR looked IN 1..most LOOP
        SELECT r.schedule_id INTO schedule FROM feedq.run r WHERE r.state = 'buffered' AND r.schedule_id > schedule
        ORDER BY r.schedule_id, (r.kind = 'backfill'), r.tick_at LIMIT 1;
        IF NOT FOUND THEN
            schedule := 0;
            EXIT;
        END IF;
        SELECT * INTO has FROM feedq.run r
        WHERE r.schedule_id = schedule AND r.state IN ('waiting', 'running') AND (r.exclusive OR r.state = 'running')
        ORDER BY r.fence LIMIT 1;
        IF NOT FOUND OR has.state = 'waiting' AND has.due_at > at AND EXISTS (
            SELECT FROM feedq.run b
            WHERE b.schedule_id = schedule AND b.state = 'buffered' AND b.due_at < has.due_at)
        THEN
            waits := waits || schedule;
        END IF;
    END LOOP;
    PERFORM feedq_1.promote(waits);
    RETURN schedule;
END $body$;

DO $body$
DECLARE
    keeps_its_plan regproc;
BEGIN
    FOREACH keeps_its_plan IN ARRAY
        '{feedq_1.claim_runs,feedq_1.succeed,feedq_1.promote,feedq_1.promote_stranded}'::regproc[]
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off SET jit = off'
            ' SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off'
            ' SET enable_hashjoin = off SET enable_mergejoin = off', keeps_its_plan);
    END LOOP;
END $body$;
