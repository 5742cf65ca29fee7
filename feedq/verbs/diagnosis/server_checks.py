"""The control database: does it answer, is it migrated, and do sessions keep what is theirs? The broker: does it
answer, does a message come back, and does it evict queues? And the sinks: do they answer, can feeds write their
tables, and whose checkpoints do they have?

A pooler that hands one server session to several clients breaks session locks and notifications without an
error; both are tried here. They make feedq fast, not correct: without them it falls back on intervals.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from queue import Empty
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import redis
from kombu.connection import Connection
from kombu.exceptions import KombuError

from feedq.celery.broker import bounded_options, is_redis
from feedq.control.store import migrate
from feedq.control.store.database import POSTGRESQL_MIN, SETTING, connect
from feedq.control.store.feed_listing import SinkUse
from feedq.core.model import Feed
from feedq.core.passwords import mask_url
from feedq.core.remedies import driver_text, remedy
from feedq.errors import FeedqError, InvalidInput
from feedq.settings import Settings
from feedq.sinks.base import Checkpoint, Target, opened_sink, target_of_feed
from feedq.verbs.diagnosis.checks import Check, fail, not_checked, ok, unreachable, warn
from feedq.verbs.wording import NAMED_MAX, counted, some

DOCTOR = "feedq-doctor"
"""The name of its sessions."""
WAIT_S = 2.0
"""How long a notification or the release of a lock may take before it counts as lost."""
LOCK_CLASS = 0x_FEED_FF
"""First key of the advisory lock that is tried; no other part of feedq uses it."""
CONNECTIONS_PER_WORKER = 6
CONNECTIONS_SPARE = 10
"""Sessions for beats, the command and people."""

DIRECT = "connect feedq to PostgreSQL directly, or through a pooler that pools by session"


def check_database(url: str, *, workers: int) -> Iterator[Check]:
    """All checks of the control database; if it cannot be reached, the first one says so and is the last."""
    try:
        first, second = (connect(url, application_name=DOCTOR) for _ in range(2))
    except FeedqError as error:
        yield unreachable("database", url, error, setting=SETTING)
        return
    with closing(first), closing(second):
        try:
            yield judge_version(first.server_version, url)
            yield _migrations(url)
            yield _connections(first, workers)
            yield _notifications(first, second)
            # Last, because it closes the first session on purpose.
            yield _session_locks(first, second)
        except psycopg2.Error as error:
            yield fail("database", f"a check failed: {mask_url(driver_text(error))}", DIRECT)


def _one(connection: Any, sql: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


def judge_version(number: int, url: str) -> Check:
    """Whether feedq works with this PostgreSQL, by its number such as 150004."""
    release = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number // 10_000 >= POSTGRESQL_MIN:
        return ok("database", f"{release} at {mask_url(url)}")
    return fail("database", f"{release} is too old", f"upgrade it to PostgreSQL {POSTGRESQL_MIN} or newer")


def _migrations(url: str) -> Check:
    try:
        found = migrate.status(url)
    except FeedqError as error:
        return fail("migrations", str(error), "see the database check")
    if found.pending:
        return fail("migrations", found.summary, "feedq db upgrade")
    if not found.has_protocol:
        return fail("migrations", found.summary, "upgrade feedq here as well")
    if found.is_ahead:
        return warn("migrations", found.summary, "finish the rollout: upgrade feedq here as well")
    return ok("migrations", found.summary)


def _connections(connection: Any, workers: int) -> Check:
    most, reserved, used = _one(
        connection,
        "SELECT current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int,"
        " (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL"
        # Of sessions of other roles a role without rights sees no more than these.
        " AND coalesce(backend_type, 'client backend') = 'client backend')",
    )
    free = most - reserved - used
    # Room for every worker once more: a deploy starts the new ones before the old ones have gone.
    needed = CONNECTIONS_PER_WORKER * max(workers, 1) + CONNECTIONS_SPARE
    detail = f"{used} of {most} in use, {free} free"
    if free < needed:
        return warn(
            "connections",
            f"{detail}; a deploy that starts {counted(max(workers, 1), 'worker')} beside the old needs {needed}",
            "raise max_connections of PostgreSQL",
        )
    return ok("connections", detail)


def _notifications(listener: Any, sender: Any) -> Check:
    channel = f"feedq_doctor_{secrets.token_hex(8)}"
    with listener.cursor() as cursor:
        cursor.execute(f'LISTEN "{channel}"')
    with sender.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", (channel,))
    started = time.monotonic()
    while (
        not (arrived := _has_heard(listener, channel)) and (left := started + WAIT_S - time.monotonic()) > 0
    ):
        select.select([listener], [], [], left)
        listener.poll()
    if not arrived:
        return warn(
            "notifications",
            f"NOTIFY did not arrive within {WAIT_S:g} s (a pooler in between?); changes wait for the next tick",
            DIRECT,
        )
    return ok("notifications", f"NOTIFY arrives in {1000 * (time.monotonic() - started):.1f} ms")


def _has_heard(listener: Any, channel: str) -> bool:
    return any(notification.channel == channel for notification in listener.notifies)


def _session_locks(holder: Any, other: Any) -> Check:
    """A lock is its session's own, others see it, and it ends with its session."""
    key = secrets.randbelow(2**31)
    _one(holder, "SELECT pg_advisory_lock(%s, %s)::text", (LOCK_CLASS, key))
    kept = not _can_lock(other, key)
    holder.close()
    deadline = time.monotonic() + WAIT_S
    released = False
    while kept and not released and time.monotonic() < deadline:
        released = _can_lock(other, key)
        if not released:
            time.sleep(0.01)
    if kept and released:
        return ok("session locks", "held by one session and released with it")
    what = "are not released with their session" if kept else "are shared between sessions"
    return warn(
        "session locks",
        f"locks {what} (a pooler in between?); a crashed worker is noticed by its heartbeat only",
        DIRECT,
    )


def _can_lock(connection: Any, key: int) -> bool:
    """Whether the session could take the lock; it lets go of it at once."""
    (locked,) = _one(connection, "SELECT pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, key))
    if locked:
        _one(connection, "SELECT pg_advisory_unlock(%s, %s)", (LOCK_CLASS, key))
    return bool(locked)


# -- the broker ----------------------------------------------------------------------------------------


TIMEOUT_S = 5
EVICTION = "broker eviction"


def check_broker(url: str) -> Iterator[Check]:
    """All checks of the broker; if it cannot be reached, the first one says so and is the last."""
    with ExitStack() as opened:
        try:
            bounded = bounded_options(url, TIMEOUT_S)
            connection = Connection(url, connect_timeout=TIMEOUT_S, transport_options=bounded)
            opened.enter_context(connection)
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  # whatever a transport raises, the broker is not reachable
            yield unreachable("broker", url, error, setting="FEEDQ_BROKER_URL")
            return
        yield ok("broker", mask_url(url))
        yield _messages(connection)
        if is_redis(url):
            yield _redis(connection)


def _messages(connection: Connection) -> Check:
    """Send one message, and take it back."""
    try:
        _there_and_back(connection)
    except (*connection.connection_errors, *connection.channel_errors, KombuError, Empty) as error:
        return fail(
            "messages",
            f"a JSON message did not come back: {mask_url(driver_text(error))}",
            "check that the broker's user may declare, write and read queues",
        )
    return ok("messages", "a JSON message came back")


def _there_and_back(connection: Any) -> None:
    """Through a queue of its own, which goes away with the connection at the latest."""
    options = {"durable": False, "auto_delete": True, "exclusive": True}
    exchange = {"durable": False, "auto_delete": True}
    name = f"feedq.doctor.{uuid4()}"
    with closing(
        connection.SimpleQueue(name, serializer="json", queue_opts=options, exchange_opts=exchange)
    ) as queue:
        queue.put({"feed_id": 1, "epoch": 1})
        message = queue.get(timeout=TIMEOUT_S)
        message.ack()
        # RabbitMQ tells a consumer whose queue is deleted, and kombu takes that for an error.
        queue.consumer.cancel()
        queue.queue.delete()


def _redis(connection: Any) -> Check:
    """A broker that evicts keys loses queues. What a restart loses does no harm: reconcile sends it again."""
    try:
        config = connection.default_channel.client.config_get("maxmemory*")
    except (redis.RedisError, KombuError) as error:
        return not_checked(
            EVICTION,
            f"the broker's settings cannot be read: {mask_url(driver_text(error))}",
            "let the user of FEEDQ_BROKER_URL run CONFIG GET, or check in the broker's configuration that "
            "maxmemory-policy is noeviction",
        )
    policy = str(config.get("maxmemory-policy", "noeviction"))
    limit = str(config.get("maxmemory", 0))
    if limit != "0" and policy.startswith("allkeys"):
        return warn(
            EVICTION,
            f"maxmemory-policy {policy} discards queues when memory runs low",
            "CONFIG SET maxmemory-policy noeviction",
        )
    return ok(EVICTION, f"maxmemory {limit}, policy {policy}")


# -- the sinks -----------------------------------------------------------------------------------------


LATELY = timedelta(minutes=10)
"""Checkpoints of feeds that run are written with each commit; some have none for a while."""
TARGETS_MAX = 200
"""Tables that are looked at in a sink: each takes a question or two."""


def check_sinks(
    settings: Settings,
    uses: Sequence[SinkUse] = (),
    identities: tuple[UUID, Collection[str]] = (UUID(int=0), ()),
) -> Iterator[Check]:
    """Each sink that is set up here, and the sinks that feeds name and that are not. ``identities`` are those of
    the installation and of its feeds."""
    installation, feeds = identities
    used = {one.name: one for one in uses}
    for name in settings.sink_names:
        use = used.pop(name, SinkUse(name, 0, ()))
        title, url = f"sink {name}", settings.sink_url(name)
        try:
            with opened_sink(settings, name, role="doctor") as sink:
                known = sink.checkpoints()
                wrong = [why for target in _targets(use.examples) if (why := sink.check(target)) is not None]
        except FeedqError as error:
            yield _unusable(title, url, error, settings)
            continue
        yield ok(title, f"{counted(use.feeds, 'feed')}, {mask_url(url)}")
        if wrong:
            detail = f"feeds cannot write {counted(len(wrong), 'table')}: " + "; ".join(wrong[:NAMED_MAX])
            yield warn(f"tables on {name}", detail, "`feedq feed test NAME` checks a single feed")
        unknown = [one for one in known if str(one.feed_uuid) not in feeds] if feeds else []
        yield from _owners(name, unknown, installation, settings.environment)
    for name, use in sorted(used.items()):
        named = some(use.examples, lambda one: one.name, of=use.feeds)
        yield warn(
            f"sink {name}",
            f"not set up here, but named by {counted(use.feeds, 'feed')}: {named}",
            f"set FEEDQ_SINKS__{name.upper()} here and on every worker",
        )


def _unusable(title: str, url: str, error: FeedqError, settings: Settings) -> Check:
    name = title.removeprefix("sink ")
    setting = f"FEEDQ_SINKS__{name.upper()}" if name in map(str.lower, settings.sinks) else SETTING
    if remedy(driver_text(error), setting=setting) is not None:
        return unreachable(title, url, error, setting=setting)
    # The sink says itself which right is missing.
    return fail(title, mask_url(str(error)), f"fix that, or correct {setting}")


def _owners(
    name: str, unknown: Sequence[Checkpoint], installation: UUID, environment: str
) -> Iterator[Check]:
    """Tells of checkpoints that other installations have, and of those that nobody has any more."""
    strangers = [one for one in unknown if one.installation != installation]
    orphans = [one for one in unknown if one.installation == installation]
    now = datetime.now(UTC)
    lively = [one for one in strangers if now - one.updated_at < LATELY]
    if lively:
        yield warn(
            f"others on {name}",
            f"{_counted_owners(lively)} writes here too, under the environment {environment!r}: "
            f"{counted(len(lively), 'feed')}, such as {lively[-1].whose}",
            "set FEEDQ_ENVIRONMENT to another name for each installation, before two of their feeds share a name",
        )
    if left := [one for one in strangers if one not in lively]:
        yield warn(
            f"strangers on {name}",
            f"{counted(len(left), 'checkpoint')} of {_counted_owners(left)}: {some(left, lambda one: one.feed)}",
            "adopt them with `feedq feed adopt` if the control database was lost; otherwise delete the rows",
        )
    if orphans:
        named = some(orphans, lambda one: one.feed)
        yield ok(
            f"orphans on {name}",
            f"{counted(len(orphans), 'checkpoint')} of feeds that are no longer declared: {named}",
        )


def _counted_owners(checkpoints: Sequence[Checkpoint]) -> str:
    owners = sorted({str(one.installation) for one in checkpoints})
    return f"installation {owners[0]}" if len(owners) == 1 else f"{len(owners)} installations"


def _targets(feeds: Sequence[Feed]) -> list[Target]:
    """What cannot be parsed shows as a failed feed elsewhere."""
    found: dict[Target, None] = {}
    for feed in feeds:
        with suppress(InvalidInput):
            found[target_of_feed(feed.spec)] = None
    return list(found)
