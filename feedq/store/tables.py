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
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

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
    CheckConstraint("target_state IN ('running', 'paused')", name="feed_target_state"),
    CheckConstraint("weight > 0", name="feed_weight"),
    # A removed feed keeps its row until nobody streams it; its name is free at once.
    Index("feed_name", "name", unique=True, postgresql_where=text("removed_at IS NULL")),
    Index("feed_dirty", "id", postgresql_where=text("dirty")),
    Index("feed_tenant", "tenant", postgresql_where=text("tenant <> ''")),
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
