"""The control tables, schema ``feedq``.

Declared here for the migrations and for `feedq db status`; the statements that make up the protocol are
written out as SQL in the modules beside, where they can be read whole. Indexes are partial wherever a
pass asks for the few among the many: dirty feeds, idle leases, live workers.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

SCHEMA = "feedq"
metadata = MetaData(schema=SCHEMA)

_now = text("clock_timestamp()")


def _stamp(name: str, *, nullable: bool = True, default: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=_now if default else None)


feed = Table(
    "feed",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("tenant", Text, nullable=False, server_default=""),
    Column("connector", Text, nullable=False),
    Column("source", JSONB, nullable=False),
    Column("sink", JSONB, nullable=False),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    # {"required": {…}, "preferred": {…}}, empty parts left out.
    Column("selector", JSONB, nullable=False, server_default=text("'{}'")),
    Column("weight", Float, nullable=False, server_default=text("1")),
    Column("target_state", Text, nullable=False, server_default="running"),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("dirty", Boolean, nullable=False, server_default=text("true")),
    _stamp("created_at", nullable=False, default=True),
    _stamp("updated_at", nullable=False, default=True),
    _stamp("removed_at"),
    # For good: whoever is declared under its name later is another feed.
    Column("uuid", UUID(as_uuid=True), nullable=False, server_default=text("gen_random_uuid()")),
    CheckConstraint("target_state IN ('running', 'paused')", name="feed_target_state"),
    CheckConstraint("weight > 0", name="feed_weight"),
    # A removed feed keeps its row until nobody streams it; its name is free at once.
    Index("feed_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    Index("feed_dirty", "id", postgresql_where=text("dirty")),
    Index("feed_tenant", "tenant", postgresql_where=text("tenant <> ''")),
    Index("feed_uuid", "uuid", unique=True),
)

# One row: who this is, beside others that write to the same sinks.
installation = Table(
    "installation",
    metadata,
    Column("id", UUID(as_uuid=True), nullable=False, server_default=text("gen_random_uuid()")),
    Column("is_this", Boolean, primary_key=True, nullable=False, server_default=text("true")),
    _stamp("made_at", nullable=False, default=True),
    CheckConstraint("is_this", name="installation_is_one"),
)

task_set = Table(
    "task_set",
    metadata,
    # Workers that know the same tasks share a row.
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("digest", Text, nullable=False),
    Column("tasks", ARRAY(Text), nullable=False),
    # When a worker registered with it last.
    _stamp("used_at", nullable=False, default=True),
    UniqueConstraint("digest", name="task_set_digest"),
)

worker = Table(
    "worker",
    metadata,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="active"),
    Column("lock_key", Integer, Identity(always=True, cycle=True), nullable=False),
    Column("session_locks", Boolean, nullable=False, server_default=text("false")),
    _stamp("started_at", nullable=False, default=True),
    _stamp("heartbeat_at", nullable=False, default=True),
    _stamp("expires_at", nullable=False),
    _stamp("suspected_at"),
    Column("feeds", Integer, nullable=False, server_default=text("0")),
    Column("cpu", Float, nullable=False, server_default=text("0")),
    Column("rss", BigInteger, nullable=False, server_default=text("0")),
    Column("loop_lag_s", Float, nullable=False, server_default=text("0")),
    Column("target_state", Text, nullable=False, server_default="serving"),
    Column("rows_per_s", Float, nullable=False, server_default=text("0")),
    Column("bytes_per_s", Float, nullable=False, server_default=text("0")),
    # How many runs of schedules it takes at a time.
    Column("job_slots", Integer, nullable=False, server_default=text("0")),
    # Named sinks that it has written to lately, and that it cannot write to just now.
    Column("sinks_up", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("sinks_down", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    # The tasks that it knows; null of a release that does not say.
    Column("task_set_id", BigInteger, ForeignKey(task_set.c.id)),
    # How its process was lost, as its monitor or its successor found out.
    Column("loss", Text),
    CheckConstraint("state IN ('active', 'draining', 'gone')", name="worker_state"),
    CheckConstraint("target_state IN ('serving', 'cordoned', 'drained')", name="worker_target_state"),
    CheckConstraint("capacity >= 0", name="worker_capacity"),
    Index("worker_live", "id", postgresql_where=text("state <> 'gone'")),
    # A heartbeat touches no indexed column: with room in the page it leaves nothing for a vacuum.
    postgresql_with={"fillfactor": "50"},
)

lease = Table(
    "lease",
    metadata,
    Column("feed_id", BigInteger, ForeignKey(feed.c.id, ondelete="CASCADE"), primary_key=True),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default="idle"),
    Column("reason", Text, server_default="new"),
    Column("worker_id", UUID(as_uuid=True), ForeignKey(worker.c.id)),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    _stamp("assigned_at"),
    _stamp("running_since"),
    _stamp("retry_at"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    _stamp("last_error_at"),
    Column("connected", Boolean, nullable=False, server_default=text("false")),
    Column("stalled", Boolean, nullable=False, server_default=text("false")),
    Column("records_total", BigInteger, nullable=False, server_default=text("0")),
    Column("bytes_total", BigInteger, nullable=False, server_default=text("0")),
    Column("dead_letters_total", BigInteger, nullable=False, server_default=text("0")),
    _stamp("last_record_at"),
    Column("cursor", JSONB),
    # What it counts for at its worker: the feed's weight when it was assigned, or what was measured since.
    Column("weight", Float, nullable=False, server_default=text("1")),
    Column("promised_to", UUID(as_uuid=True)),
    _stamp("moved_at"),
    _stamp("stop_by"),
    Column("held_for", Text),
    Column("rows_per_s", Float, nullable=False, server_default=text("0")),
    Column("bytes_per_s", Float, nullable=False, server_default=text("0")),
    _stamp("reported_at"),
    # In a row, since the feed last landed a record; and the workers on which it failed.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("avoid", JSONB, nullable=False, server_default=text("'{}'")),  # by name, the time in seconds
    Column("dead_per_s", Float, nullable=False, server_default=text("0")),
    Column("dead_letter_error", Text),
    _stamp("dead_letter_at"),
    Column("sink_error", Text),
    # Workers that were lost to this feed.
    Column("blamed", Integer, nullable=False, server_default=text("0")),
    _stamp("blamed_at"),
    Column("blame", Text),
    Column("quarantined", Boolean, nullable=False, server_default=text("false")),
    # The worker that was lost while it held this feed, the last one.
    Column("lost_worker", UUID(as_uuid=True)),
    _stamp("lost_at"),
    CheckConstraint("state IN ('idle', 'assigned', 'running', 'stopping')", name="lease_state"),
    CheckConstraint("(state = 'idle') = (worker_id IS NULL)", name="lease_owner"),
    Index(
        "lease_ready",
        "feed_id",
        postgresql_where=text(
            "state = 'idle' AND retry_at IS NULL "
            "AND reason NOT IN ('paused', 'failed', 'removed', 'no_capacity', 'no_match')"
        ),
    ),
    Index(
        "lease_unplaced",
        "reason",
        "feed_id",
        postgresql_where=text(
            "state = 'idle' AND reason IN ('no_capacity', 'no_match', 'backoff', 'paused', 'failed')"
        ),
    ),
    Index("lease_due", "retry_at", postgresql_where=text("state = 'idle' AND retry_at IS NOT NULL")),
    Index("lease_avoid", "feed_id", postgresql_where=text("avoid <> '{}'")),
    Index("lease_quarantined", "feed_id", postgresql_where=text("quarantined")),
    Index("lease_held_for", "held_for", postgresql_where=text("held_for IS NOT NULL")),
    Index("lease_stop_by", "stop_by", postgresql_where=text("state = 'stopping'")),
    Index("lease_promised", "promised_to", postgresql_where=text("promised_to IS NOT NULL")),
    Index("lease_moved", "moved_at", postgresql_where=text("moved_at IS NOT NULL")),
    Index("lease_assigned", "assigned_at", postgresql_where=text("state = 'assigned'")),
    Index("lease_summons", "worker_id", "state", postgresql_where=text("state IN ('assigned', 'stopping')")),
    Index("lease_held_by", "worker_id", "running_since", postgresql_where=text("worker_id IS NOT NULL")),
    # Progress is written often and touches no indexed column: leave room for updates within the page.
    postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.05"},
)

held_change = Table(
    "held_change",
    metadata,
    # What statements on `lease` changed of what workers hold: written by its triggers, folded into `worker_held`
    # by each pass. Insert-only, so that nobody waits for the row of a worker.
    Column("worker_id", UUID(as_uuid=True), nullable=False),
    Column("feeds", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    postgresql_with={"autovacuum_vacuum_threshold": "1000", "autovacuum_vacuum_scale_factor": "0"},
)

worker_held = Table(
    "worker_held",
    metadata,
    # What each worker holds, so that a pass need not count leases. Only passes touch it, one at a time.
    Column("worker_id", UUID(as_uuid=True), ForeignKey(worker.c.id, ondelete="CASCADE"), primary_key=True),
    Column("feeds", Integer, nullable=False, server_default=text("0")),
    Column("weight", Float, nullable=False, server_default=text("0")),
    _stamp("counted_at"),
    postgresql_with={"fillfactor": "50"},
)

event = Table(
    "event",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _stamp("at", nullable=False, default=True),
    Column("kind", Text, nullable=False),
    Column("feed_id", BigInteger),
    Column("worker_id", UUID(as_uuid=True)),
    Column("epoch", BigInteger),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'")),
    # The trigger `event_fold` makes one event of the same trouble again and again: how often, and since when.
    Column("count", Integer, nullable=False, server_default=text("1")),
    _stamp("since"),
    Index("event_feed", "feed_id", "id", postgresql_where=text("feed_id IS NOT NULL")),
    Index("event_at", "at", postgresql_using="brin"),
)

fleet = Table(
    "fleet",
    metadata,
    # One row: facts about the whole fleet that have no better home.
    Column("id", SmallInteger, primary_key=True, server_default=text("1")),
    _stamp("alive_at", nullable=False, default=True),
    _stamp("alive_since", nullable=False, default=True),
    _stamp("pass_at"),
    Column("pass_seq", BigInteger, nullable=False, server_default=text("0")),
    _stamp("sweep_at"),
    Column("active_workers", Integer, nullable=False, server_default=text("1")),
    # The fleet for which no move was found, as a fingerprint.
    Column("evened_out", Text),
    # Where the next pass goes on when not every feed without a place could be looked at.
    Column("waiting_after", BigInteger, nullable=False, server_default=text("0")),
    # How far the sweep under way has come; null between two.
    Column("swept_to", BigInteger),
    Column("idle_counts", JSONB, nullable=False, server_default=text("'{}'")),
    # The start of the server that was heard from: another one is another server, or this one anew.
    _stamp("server_started_at"),
    CheckConstraint("id = 1", name="fleet_one_row"),
    postgresql_with={"fillfactor": "10"},
)

leader = Table(
    "leader",
    metadata,
    # The elected beat, beside its session lock: the expiry is what replaces a *frozen* leader.
    Column("name", Text, primary_key=True),
    Column("holder", UUID(as_uuid=True), nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("backend_pid", Integer, nullable=False),
    _stamp("elected_at", nullable=False, default=True),
    _stamp("expires_at", nullable=False),
)

schedule = Table(
    "schedule",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    # In the order of bytes, which is that of its index, whatever language the database speaks: pages go by it.
    Column("name", Text(collation="C"), nullable=False),
    # As `feedq.store.jobs.run_rows` stores a declaration: the job, the timing, and the policies.
    Column("job", JSONB, nullable=False),
    Column("timing", JSONB, nullable=False),
    Column("policy", JSONB, nullable=False, server_default=text("'{}'")),
    Column("state", Text, nullable=False, server_default="active"),
    _stamp("paused_until"),
    Column("pause_reason", Text),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    # The watermark: the first tick that has not been fired, and when that is. Null: there is none left.
    _stamp("next_tick_at"),
    _stamp("next_fire_at"),
    # The dates of its calendars, as they are now: see `feedq.store.jobs.calendars`.
    Column("excluded", JSONB),
    # Runs in a row that did not succeed.
    Column("failures", Integer, nullable=False, server_default=text("0")),
    _stamp("created_at", nullable=False, default=True),
    _stamp("updated_at", nullable=False, default=True),
    _stamp("removed_at"),
    CheckConstraint("state IN ('active', 'paused')", name="schedule_state"),
    CheckConstraint("(next_tick_at IS NULL) = (next_fire_at IS NULL)", name="schedule_watermark"),
    # A removed schedule keeps its row as long as its history; its name is free at once.
    Index("schedule_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    # Those that may fire. A pause with an end is looked at when it ends.
    Index(
        "schedule_due",
        "next_fire_at",
        postgresql_where=text("removed_at IS NULL AND state = 'active' AND next_fire_at IS NOT NULL"),
    ),
    Index(
        "schedule_paused_until",
        "paused_until",
        postgresql_where=text("removed_at IS NULL AND state = 'paused' AND paused_until IS NOT NULL"),
    ),
    Index("schedule_removed", "removed_at", postgresql_where=text("removed_at IS NOT NULL")),
    # Those that keep a history of their own.
    Index(
        "schedule_keeping",
        "id",
        postgresql_where=text("jsonb_exists_any(policy, ARRAY['keep_runs', 'keep_days'])"),
    ),
    # The watermark moves with every tick, and its index with it: keep dead rows few.
    postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.02"},
)

run = Table(
    "run",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("schedule_id", BigInteger, ForeignKey(schedule.c.id), nullable=False),
    Column("kind", Text, nullable=False, server_default="tick"),
    Column("key", Text, nullable=False),
    _stamp("tick_at", nullable=False),
    # Of a row that stands for many ticks that were missed in a row: how many, and the last of them.
    Column("ticks", Integer, nullable=False, server_default=text("1")),
    _stamp("last_tick_at"),
    # When it falls due: the tick with its jitter, or a retry. Earlier ones first, and by priority as if they had
    # been waiting longer: that is what `rank_at` holds.
    _stamp("due_at", nullable=False),
    _stamp("rank_at", nullable=False),
    _stamp("start_by"),
    Column("state", Text, nullable=False, server_default="waiting"),
    Column("reason", Text),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    # Attempts that ended with their worker, and not by themselves.
    Column("losses", Integer, nullable=False, server_default=text("0")),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    # No foreign key: sessions of workers are forgotten sooner than runs, and a claim must not lock their rows.
    Column("worker_id", UUID(as_uuid=True)),
    _stamp("started_at"),
    _stamp("deadline_at"),
    _stamp("ended_at"),
    # A copy of the schedule's job when it fell due: edits look forward only.
    Column("job", JSONB, nullable=False),
    Column("queue", Text, nullable=False, server_default="default"),
    # Whether it must be the only running one of its schedule.
    Column("exclusive", Boolean, nullable=False, server_default=text("true")),
    # Null: any worker takes it at once.
    Column("segment", SmallInteger),
    _stamp("created_at", nullable=False, default=True),
    CheckConstraint(
        "state IN ('waiting', 'running', 'succeeded', 'failed', 'timed_out', 'lost', 'cancelled', "
        "'skipped_overlap', 'missed_deadline', 'missed_catchup')",
        name="run_state",
    ),
    CheckConstraint("(state = 'running') = (worker_id IS NOT NULL AND ended_at IS NULL)", name="run_owner"),
    CheckConstraint("(state IN ('waiting', 'running')) = (ended_at IS NULL)", name="run_ended"),
    CheckConstraint("ticks > 0", name="run_ticks"),
    # Once per tick, whoever fires it and however often.
    Index("run_key", "schedule_id", "key", unique=True),
    # The newest of a schedule.
    Index("run_of_schedule", "schedule_id", "id"),
    # What people look for first.
    Index(
        "run_unsuccessful",
        "id",
        postgresql_where=text(
            "state IN ('failed', 'timed_out', 'lost', 'cancelled', 'skipped_overlap', 'missed_deadline', "
            "'missed_catchup')"
        ),
    ),
    # The overlap policies, whoever claims at the same moment.
    Index(
        "run_one_at_a_time",
        "schedule_id",
        unique=True,
        postgresql_where=text("state = 'running' AND exclusive"),
    ),
    Index("run_running", "schedule_id", "fence", postgresql_where=text("state = 'running'")),
    # What a claim reads, see `feedq.store.jobs.candidates`. A backfill waits in a line of its own.
    Index(
        "run_lane",
        "queue",
        text("(coalesce(job ->> 'task', ''))"),
        text("(coalesce(job -> 'selector', '{}'::jsonb))"),
        "rank_at",
        postgresql_where=text("state = 'waiting' AND NOT (exclusive AND kind = 'backfill')"),
    ),
    Index(
        "run_backfill",
        "schedule_id",
        "tick_at",
        postgresql_where=text("state = 'waiting' AND exclusive AND kind = 'backfill'"),
    ),
    Index("run_line", "schedule_id", "tick_at", postgresql_where=text("state = 'waiting' AND exclusive")),
    Index("run_start_by", "start_by", postgresql_where=text("state = 'waiting' AND start_by IS NOT NULL")),
    Index("run_in_queue", "queue", postgresql_where=text("state = 'running'")),
    Index("run_waiting_due", "due_at", postgresql_where=text("state = 'waiting'")),
    Index("run_unfinished", "schedule_id", "state", postgresql_where=text("state IN ('waiting', 'running')")),
    Index("run_held_by", "worker_id", postgresql_where=text("state = 'running'")),
    Index("run_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.05"},
)

run_fence = Sequence("run_fence", metadata=metadata)
"""The next fence: one for the whole cluster, so that it grows whatever becomes of a run."""

job_queue = Table(
    "job_queue",
    metadata,
    # Only queues with limits have a row.
    Column("name", Text, primary_key=True),
    Column("rate_per_s", Float),
    Column("burst", Float, nullable=False, server_default=text("1")),
    Column("concurrency", Integer),
    Column("tokens", Float, nullable=False, server_default=text("0")),
    _stamp("tokens_at", nullable=False, default=True),
    CheckConstraint("rate_per_s > 0", name="job_queue_rate"),
    CheckConstraint("burst >= 1", name="job_queue_burst"),
    CheckConstraint("concurrency > 0", name="job_queue_concurrency"),
    postgresql_with={"fillfactor": "50"},
)

calendar = Table(
    "calendar",
    metadata,
    Column("name", Text(collation="C"), primary_key=True),
    Column("dates", JSONB, nullable=False),
    _stamp("created_at", nullable=False, default=True),
    _stamp("updated_at", nullable=False, default=True),
)
"""Lists of days that schedules leave out."""
