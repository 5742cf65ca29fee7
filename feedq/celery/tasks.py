"""The Celery tasks. Each is a few lines around `feedq.control.reconcile` or `feedq.worker`.

``stream_feed`` never enters its body: `feedq.celery.pool.StreamPool` hands the message to the supervisor.
Celery's own pools run every other task; they hold no feeds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cache, partial
from threading import Timer
from time import sleep
from typing import Any

from celery import shared_task
from celery.utils.nodenames import anon_nodename

from feedq.control import reconcile as control
from feedq.control.store.postgresql import PostgresStore
from feedq.core.limits import AFTER_FAST_PATH_S, DISPATCH_TIMEOUT_S, MESSAGES_AT_ONCE, messages_wait_s
from feedq.core.model import Assignment, FeedKey
from feedq.core.roles import AccessRole, Caller
from feedq.errors import FeedqError
from feedq.settings import settings
from feedq.telemetry.logs import LogEvent, log
from feedq.worker.threads import Outbox

STREAM_FEED = "feedq.stream_feed"
RECONCILE = "feedq.reconcile"
SYNC = "feedq.sync"
"""The job of schedules that sync a catalog: see `feedq.verbs.catalogs.syncing`."""
CONTROL_QUEUE = "feedq.control"
"""Reconcile has a queue of its own: it must not wait behind a thousand ordinary tasks."""
RECONCILE_EXPIRES_S = 60
"""Keeps passes from piling up while no worker runs. Judged by the receiver's wall clock, so it must be far
longer than clocks are apart; a worker beyond that drops its share, and the beat asks again."""
FAILED_AGAIN_S = 1.0
"""How soon another pass is asked for after one that failed."""
PASS_WAIT_S = 0.02
PASS_TRIES = 100
"""The number of tries while another pass is under way, two seconds of waiting; if that one takes longer still,
the next tick is near."""
NO_FEEDS_HERE = "this worker's pool holds no feeds"
DISPATCH_BATCH = 100
"""Messages that leave together: the first workers begin while the rest of a cold start is still being sent."""

logger = log(__name__)


def store() -> PostgresStore:
    """The control database of this process. A forked child has its own: its parent's sockets are not for it."""
    return _store_of(os.getpid())


@cache
def _store_of(_pid: int) -> PostgresStore:
    # The parent's stays in a child's cache, untouched: to drop it would close the parent's sessions.
    s = settings()
    return PostgresStore(
        s.database_url.get_secret_value(),
        retention_days=s.event_retention_days,
        restart_hold_s=s.restart_hold_s,
    )


@shared_task(name=STREAM_FEED, acks_late=False, ignore_result=True, max_retries=0)
def stream_feed(feed_id: int, epoch: int) -> str:
    """Drop the message: this worker's pool holds no feeds. Nothing is lost, because the feed's lease is in the
    control database."""
    logger.warning(LogEvent.MESSAGE_DROPPED, feed_id=feed_id, epoch=epoch, why=NO_FEEDS_HERE)
    return f"dropped: {NO_FEEDS_HERE}"


@shared_task(name=SYNC, ignore_result=True, max_retries=0)
def sync(catalog: str) -> None:
    """Make the feeds of a catalog as it says, with the settings of this worker. Raises what went wrong, which the
    run keeps; also when entries were left out."""
    from feedq.sinks.base import opened_sink
    from feedq.verbs.catalogs.syncing import sync_catalog
    from feedq.verbs.registry import At

    url, here = settings().sync_database_url.get_secret_value(), settings()
    with closing(PostgresStore(url)) if url else nullcontext(store()) as declaring:
        open_sink = partial(opened_sink, here, role="sync")
        made = sync_catalog(At(declaring, here, Caller(SYNC, AccessRole.ADMIN), open_sink), name=catalog)
    logger.info(
        LogEvent.CATALOG_SYNCED,
        catalog=catalog,
        added=made.feeds.added,
        changed=made.feeds.changed,
        removed=made.feeds.removed,
        unchanged=made.feeds.unchanged,
        left_out=len(made.left_out),
        kept=made.kept,
    )
    if (complaint := made.complaint()) is not None:
        raise FeedqError(complaint)


@shared_task(name=RECONCILE, ignore_result=True, max_retries=0)
def reconcile() -> str:
    """Make one reconcile pass."""
    return run_reconcile()


def run_reconcile(*, placing_only: bool = False) -> str:
    """Make one reconcile pass, here and now; the watchdog calls it, too. Never raises for a server that is
    away."""

    try:
        for _ in range(PASS_TRIES):
            report = control.reconcile(
                store(), dispatch, settings(), passes=control.PASSES_IN_A_ROW, placing_only=placing_only
            )
            if report is not None:
                break
            # The pass under way may have begun too early for what we were woken for: ours comes after it.
            sleep(PASS_WAIT_S)
        else:
            return "another pass is under way"
    except FeedqError as error:
        logger.warning(LogEvent.RECONCILE_FAILED, error=str(error))
        wake_later(FAILED_AGAIN_S)
        return f"failed: {error}"
    if report.can_wait:
        wake_later(AFTER_FAST_PATH_S)
    return f"assigned {len(report.assignments)}"


def _later(seconds: float, function: Callable[..., None], *args: object) -> None:
    """Call in a moment what may be lost with this process: the tick, or a dispatch time-out, makes it good."""
    timer = Timer(seconds, function, args)
    timer.daemon = True
    timer.start()


def wake_later(seconds: float) -> None:
    """Have a pass made then."""
    _later(seconds, _wake)


def _wake() -> None:
    try:
        store().fleet.wake()
    except FeedqError as error:
        logger.warning(LogEvent.RECONCILE_FAILED, error=str(error))


def dispatch(assignments: Sequence[Assignment]) -> None:
    """Leave one message an assignment in the outbox, for the worker's own queue; of many, a moment later.

    Never waits for the broker.

    What cannot be sent is sent again by the dispatch time-out, under a new epoch. Messages carry no expiry:
    the receiver would judge it by its wall clock, and the epoch makes an old one harmless anyway.
    """
    outbox = _outbox_of(os.getpid())
    if len(assignments) <= MESSAGES_AT_ONCE:
        outbox.put(assignments)
        return
    ((_, most),) = Counter(assignment.queue for assignment in assignments).most_common(1)
    wait_s = messages_wait_s(most)
    _later(wait_s, outbox.put, assignments)


@cache
def _outbox_of(_pid: int) -> Outbox[Assignment]:
    # Of each process its own, as its store: a forked child has no thread of its parent's.
    return Outbox(
        lambda assignments: send_all(assignments),
        stale_s=DISPATCH_TIMEOUT_S,
        event=LogEvent.DISPATCH_FAILED,
    )


def send_all(assignments: Sequence[Assignment]) -> None:
    """Send one ``stream_feed`` message for each of these, now. Raises whatever kombu does."""
    with stream_feed.app.producer_or_acquire() as producer, _batch(producer):
        for assignment in assignments:
            _publish(producer, assignment)


def _publish(producer: Any, assignment: Assignment) -> None:
    """Publish what ``apply_async`` would send, for a quarter of its time.

    A cold start is ten thousand of these, all alike: there is nothing to route, to look up or to tell anybody.
    """
    app = stream_feed.app
    message = app.amqp.create_task_message(
        f"{assignment.feed_id}-{assignment.epoch}",
        STREAM_FEED,
        assignment.key,
        {},
        argsrepr=repr(assignment.key),
        kwargsrepr="{}",
        reply_to=app.thread_oid,
        origin=_origin(),
        ignore_result=True,
    )
    producer.publish(
        message.body,
        exchange="",
        routing_key=assignment.queue,
        # The worker declares its queue; a publisher that declared it too would outlive the worker.
        declare=(),
        serializer="json",
        headers=message.headers,
        retry=True,
        retry_policy=app.conf.task_publish_retry_policy,
        **message.properties,
    )


@cache
def _origin() -> str:
    return str(anon_nodename())


def _batch(producer: Any) -> AbstractContextManager[Any]:
    """Send many messages a round trip, where kombu can (5.7, Redis); a batch that breaks off is a lost hint."""
    batch = getattr(producer, "batch", None)
    return nullcontext() if batch is None else batch(max_size=DISPATCH_BATCH)


def parse_key(args: Sequence[object]) -> FeedKey:
    """``(feed_id, epoch)`` of a message. Raises `ValueError` when it says anything else."""
    match args:
        case [int() as feed_id, int() as epoch] if feed_id > 0 and 0 < epoch < 2**63 and feed_id < 2**63:
            return (feed_id, epoch)
    raise ValueError("the arguments of stream_feed must be (feed_id, epoch), two positive integers")
