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
    CheckConstraint("state IN ('active', 'draining', 'gone')", name="worker_state"),
    CheckConstraint("capacity >= 0", name="worker_capacity"),
    Index("worker_live", "id", postgresql_where=text("state <> 'gone'")),
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
    CheckConstraint("state IN ('idle', 'assigned', 'running', 'stopping')", name="lease_state"),
    CheckConstraint("(state = 'idle') = (worker_id IS NULL)", name="lease_owner"),
    Index(
        "lease_waiting",
        "feed_id",
        postgresql_where=text("state = 'idle' AND reason NOT IN ('paused', 'failed', 'removed')"),
    ),
    Index("lease_assigned", "assigned_at", postgresql_where=text("state = 'assigned'")),
    Index("lease_stopping", "worker_id", postgresql_where=text("state = 'stopping'")),
    Index("lease_worker", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
    # Progress is written often and touches no indexed column: leave room for updates within the page.
    postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.05"},
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
    CheckConstraint("id = 1", name="fleet_one_row"),
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
