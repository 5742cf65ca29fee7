-- Rights: which role may call which functions. No role but the one that owns the tables may write to one, or take a
-- number from a sequence; all may read them. A function that stands in no list is called by other functions only.
--
-- Each role may also call what the role before it may: reader <- worker <- beat, and reader <- flower <- operator.
-- `feedq.control.store.grants` makes the roles, whose names begin as each installation likes, and grants these rights.

CREATE VIEW feedq_1.allowed AS
SELECT role, unnest(functions) AS function FROM (VALUES
    -- Reads every table. These work something out, or stand for a query, and are planned into the one around them.
    ('reader', '{chosen_feeds, job_session, knows, landed, search_feeds, worker_json}'::text[]),
    -- Runs feeds and jobs, and makes passes when no beat does. It declares nothing: no feed, no schedule, no run.
    ('worker', '{
        register, trust_locks, heartbeat, drain, leave, report_loss,
        claim, hand_over, release, report, free, blame, show_landed,
        begin_pass, expire, take_stock, ask_to_stop, apply_edits, waiting, candidates, assign, explain, moving, movable,
        weigh, trim_history, forget, end_pass,
        scan_due, lock_due, fire, claim_runs, succeed, finish, succeed_within, has_succeeded, reject, take_over,
        expire_runs, promote_behind, promote_stranded, trim_runs, trim_kept}'),
    -- Is elected, watches over workers and expectations, and keeps the schedules behind entries of beat_schedule.py.
    ('beat', '{lead, lead_on, end_frozen_leader, check_liveness, count_landed, judge, due_alerts, told_alerts,
        put_entry_of_beat, lock_schedule, make_runs}'),
    -- Presses the buttons of schedules and runs, and listens to feeds.
    ('flower', '{lock_schedule, put_schedule, make_runs, cancel_runs, cancel_run, promote_behind, open_tap, listen,
        close_tap, record}'),
    -- Declares feeds, schedules and queues, gives out tokens, and cordons and drains workers.
    ('operator', '{add_feeds, edit_feeds, act_on_feeds, change_cursor, eligible_workers, move_feeds,
        dead_letters_gone, begin_backfill, cancel_backfill, add_schedule, remove_schedule, put_queue, remove_queue,
        add_token, remove_token, set_target, free}')
) listed (role, functions);

-- What is called from outside and may write runs with the rights of its owner, and looks for nothing on its caller's
-- search path. Functions called by these are left as they are: they run as the owner already, and may be inlined.
DO $body$
DECLARE
    called name;
BEGIN
    REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA feedq_1 FROM PUBLIC;
    FOR called IN SELECT DISTINCT function FROM feedq_1.allowed WHERE role <> 'reader' LOOP
        EXECUTE format('ALTER FUNCTION feedq_1.%I SECURITY DEFINER SET search_path = pg_catalog, pg_temp', called);
    END LOOP;
END $body$;
