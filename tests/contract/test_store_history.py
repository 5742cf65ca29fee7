"""What history keeps of trouble that comes again and again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from feedq.control.store import history as events
from feedq.core.model import Event, Feed, Reason, Release, TargetState, Worker
from feedq.core.roles import AccessRole, Caller
from feedq.verbs.fleet import list_events
from feedq.web.pages import WebQueries
from tests.asking import events_of
from tests.contract.api_stage import settings_of
from tests.contract.harness import Harness

ADDED, ASSIGNED, CLAIMED, RELEASED = "feed_added", "lease_assigned", "lease_claimed", "lease_released"


def fail(
    harness: Harness, feed: Feed, worker: Worker, reason: Reason = Reason.BACKOFF, why: str = "no"
) -> None:
    """Placed, claimed, and let go of."""
    feed_id, epoch = harness.run(feed, worker)
    harness.store.leases.release(worker.id, [Release(feed_id, epoch, reason, 5.0, 5, why)])
    harness.elapse(60)


def history(harness: Harness, feed: Feed) -> list[Event]:
    """Oldest first."""
    return events_of(harness.store, feed.name)[::-1]


def told(harness: Harness, feed: Feed) -> list[tuple[str, int]]:
    return [(event.kind, event.count) for event in history(harness, feed)]


def test_the_same_trouble_again_and_again_is_one_event_with_its_count(harness: Harness) -> None:
    first, second, feed = harness.worker("a"), harness.worker("b"), harness.feed()
    for n in range(6):
        fail(harness, feed, (first, second)[n % 2], why=f"error {n}")
    assert told(harness, feed) == [(ADDED, 1), (ASSIGNED, 6), (CLAIMED, 6), (RELEASED, 6)]
    *_, claimed, released = history(harness, feed)
    assert (released.worker_id, released.epoch, released.detail["error"]) == (second.id, 6, "error 5")
    assert released.since is not None
    assert 299 < (released.at - released.since).total_seconds() < 310, (
        "five minutes from the first to the last"
    )
    assert claimed.since is not None
    assert claimed.since <= released.since


def test_the_next_try_after_trouble_is_an_event_of_its_own(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    for _ in range(3):
        fail(harness, feed, worker)
    harness.run(feed, worker)
    assert told(harness, feed)[-3:] == [(RELEASED, 3), (ASSIGNED, 1), (CLAIMED, 1)]


def test_another_trouble_begins_anew(harness: Harness) -> None:
    worker, feed = harness.worker(), harness.feed()
    for reason in (Reason.BACKOFF, Reason.BACKOFF, Reason.FENCED, Reason.FENCED, Reason.BACKOFF):
        fail(harness, feed, worker, reason)
    troubles = [(e.detail["reason"], e.count) for e in history(harness, feed) if e.kind == RELEASED]
    assert troubles == [("backoff", 2), ("fenced", 2), ("backoff", 1)]
    assert [count for kind, count in told(harness, feed) if kind == ASSIGNED] == [2, 2, 1]


@pytest.mark.parametrize("reason", [Reason.RELEASED, Reason.MOVED, Reason.DRAINED, Reason.EDITED])
def test_what_is_no_trouble_is_told_each_time(harness: Harness, reason: Reason) -> None:
    worker, feed = harness.worker(), harness.feed()
    for _ in range(3):
        fail(harness, feed, worker, reason)
    assert told(harness, feed) == [(ADDED, 1), *[(ASSIGNED, 1), (CLAIMED, 1), (RELEASED, 1)] * 3]


@pytest.mark.parametrize("in_between", ["an edit", "an hour"])
def test_trouble_after_an_edit_or_more_than_an_hour_is_an_event_of_its_own(
    harness: Harness, in_between: str
) -> None:
    worker, feed = harness.worker(), harness.feed()
    fail(harness, feed, worker)
    fail(harness, feed, worker)
    if in_between == "an hour":
        harness.elapse(3600)
    else:
        for target in (TargetState.PAUSED, TargetState.RUNNING):
            harness.store.feeds.set_target(feed.name, target)
            harness.absorb_edits()
    fail(harness, feed, worker)
    assert [count for kind, count in told(harness, feed) if kind == RELEASED] == [2, 1]


def test_a_feed_keeps_its_latest_events_only(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENTS_PER_FEED", 10)
    worker, feed, other = harness.worker(), harness.feed("many"), harness.feed("few")
    for _ in range(5):
        fail(harness, feed, worker, Reason.RELEASED)
    fail(harness, other, worker)
    with harness.in_a_pass() as p:
        p.sweep()
    assert len(told(harness, feed)) == 10
    assert history(harness, feed)[-1].epoch == 5
    assert len(told(harness, other)) == 4


def test_a_feed_with_very_many_events_is_trimmed_a_part_each_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.control.store.passes.SWEEP_PAGE", 100)
    feed = harness.feed()
    sql = "INSERT INTO feedq.event (kind, feed_id) SELECT 'lease_claimed', %s FROM generate_series(1, 550)"
    harness.execute(sql, feed.id)
    passes = 0
    left = 551
    while left > 200:
        passes += 1
        with harness.in_a_pass() as p:
            assert p.sweep_is_due(interval_s=3600) or passes == 1
            p.sweep()
        left = len(events_of(harness.store, feed.name, limit=1000))
        assert left >= 200
    assert passes == 4


def test_trouble_is_written_although_somebody_trims_history(harness: Harness) -> None:
    """Without waiting: a pass that trims may be about to wait for the lease."""
    worker, feed = harness.worker(), harness.feed()
    fail(harness, feed, worker)
    key = harness.run(feed, worker)
    with closing(psycopg2.connect(harness.url)) as other, other.cursor() as cursor:
        cursor.execute("DELETE FROM feedq.event")
        with ThreadPoolExecutor(1) as thread:
            release = Release(*key, Reason.BACKOFF, 5.0, 5, "no")
            done = thread.submit(harness.store.leases.release, worker.id, [release])
            assert done.result(timeout=10) == [key]
        other.commit()
    assert told(harness, feed) == [(RELEASED, 1)]


@pytest.mark.parametrize("kind", ["lease_overdue", "sink_rewound"])
def test_each_kind_of_trouble_is_folded(harness: Harness, kind: str) -> None:
    feed = harness.feed()
    for epoch in (1, 2, 3):
        sql = "INSERT INTO feedq.event (kind, feed_id, epoch) VALUES (%s, %s, %s)"
        harness.execute(sql, kind, feed.id, epoch)
    assert told(harness, feed) == [(ADDED, 1), (kind, 3)]


def test_history_names_workers_that_have_ended(harness: Harness, tmp_path: Path) -> None:
    worker, feed = harness.worker("celery@gone"), harness.feed()
    fail(harness, feed, worker)
    harness.store.workers.leave(worker.id)
    assert harness.store.workers.views() == []
    queries = WebQueries(settings_of(harness.url, harness.url, tmp_path))
    at = queries.at(Caller("a test", AccessRole.ADMIN))
    with closing(queries.store):
        found = list_events(at, feed=feed.name).items
    assert {one.worker for one in found if one.event.worker_id is not None} == {"celery@gone"}
