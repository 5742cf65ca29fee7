"""Taps on PostgreSQL: who listens, what they are shown, and how it ends."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from uuid import UUID, uuid4

import pytest

from feedq.control.store.history import EventFilter
from feedq.control.store.taps import listen
from feedq.core.model import FeedSpec, Load
from feedq.core.tap import LISTENERS_MAX, PARTS_KEPT, TapPart, TappedRecord
from feedq.errors import Conflict, NotFound
from feedq.telemetry.event_names import EventKind
from tests.asking import send_heartbeat
from tests.contract.harness import TTL_S, Harness
from tests.contract.test_supervisor import Stage, stage

__all__ = ["stage"]


def part(feed_id: int, text: str = "a", *, epoch: int = 1, left_out: int = 0, refused: int = 0) -> TapPart:
    record = TappedRecord("2026-01-01T00:00:00+00:00", text, 1, False)
    return TapPart(feed_id, epoch, (record,), left_out, refused)


def tapped(harness: Harness, worker_id: UUID) -> tuple[int, ...]:
    answer = send_heartbeat(harness.store, worker_id, Load(), ttl_s=TTL_S)
    assert answer is not None
    return answer.tapped


def kept(harness: Harness) -> int:
    ((count,),) = harness.execute("SELECT count(*) FROM feedq.tap_part")
    assert isinstance(count, int)
    return count


def test_a_worker_hears_of_listeners_to_its_feeds_and_they_see_what_it_lands(
    harness: Harness,
) -> None:
    taps, worker, other = harness.store.taps, harness.worker("w"), harness.worker()
    feed = harness.feed()
    harness.run(feed, worker)
    assert tapped(harness, worker.id) == ()
    first, second = (listen(taps, feed.id, seconds=60, limit=2) for _ in range(2))
    assert (tapped(harness, worker.id), tapped(harness, other.id)) == ((feed.id,), ())
    taps.put(worker.id, [part(feed.id, "\x00 ü", left_out=3), part(feed.id, epoch=2, refused=1)])
    for listener, others in ((first, (feed.id,)), (second, ())):
        rows = list(filter(None, listener))
        assert [row["event"] for row in rows] == ["record", "left_out", "record", "end"]
        assert (rows[0]["record"], rows[0]["worker"], rows[2]["epoch"]) == ("\x00 ü", "w", 2)
        assert tapped(harness, worker.id) == others
    assert (tapped(harness, worker.id), kept(harness)) == ((), 0)
    (found, again) = harness.store.history.before(EventFilter((EventKind.FEED_TAPPED,)))
    assert found.feed == again.feed == feed.name


def test_a_tap_ends_by_itself_when_its_listener_was_killed(harness: Harness) -> None:
    taps, worker, feed = harness.store.taps, harness.worker(), harness.feed()
    harness.run(feed, worker)
    killed = uuid4()
    taps.open(feed.id, killed)
    taps.put(worker.id, [part(feed.id)])
    harness.elapse(601)
    assert tapped(harness, worker.id) == ()
    taps.put(worker.id, [part(feed.id)])
    assert kept(harness) == 1
    with harness.in_a_pass() as p:
        p.sweep()
    assert (kept(harness), harness.execute("SELECT id FROM feedq.tap")) == (0, [])
    # It was only frozen: it goes on.
    assert taps.sign(feed.id, killed)
    assert tapped(harness, worker.id) == (feed.id,)


def test_there_are_bounds_to_listeners_and_to_what_is_kept(harness: Harness) -> None:
    taps, worker, feed = harness.store.taps, harness.worker(), harness.feed()
    harness.run(feed, worker)
    for _ in range(LISTENERS_MAX):
        taps.open(feed.id, uuid4())
    with pytest.raises(Conflict, match=f"{LISTENERS_MAX} taps are open already"):
        taps.open(feed.id, uuid4())
    for n in range(PARTS_KEPT + 5):
        taps.put(worker.id, [part(feed.id, str(n))])
    assert kept(harness) == PARTS_KEPT
    assert taps.after(feed.id, 0)[-1][1].records[0].text == str(PARTS_KEPT + 4)


def test_a_feed_that_is_removed_ends_its_tap(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    taps, feed = harness.store.taps, harness.feed()
    monkeypatch.setattr("feedq.control.store.taps.SIGN_S", 0.0)
    rows = listen(taps, feed.id, seconds=60, limit=9)
    assert next(rows) is None
    harness.store.feeds.remove(feed.name)
    assert list(rows) == [{"event": "end", "why": "the feed was removed"}]
    with pytest.raises(NotFound, match="is gone, or being removed"):
        taps.open(feed.id, uuid4())


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", '"seq"')


@pytest.mark.usefixtures("secret")  # which must be there before the threads of the stage
def test_records_of_a_running_feed_are_shown_on_from_worker_to_worker(stage: Stage) -> None:
    source = {"url": f"tcp://127.0.0.1:{stage.source.port}", "secrets": {"token": "${env:SECRET}"}}
    feed = stage.store.feeds.add(FeedSpec(name="a", connector="tcp", source=source, sink={"table": "landed"}))
    with closing(listen(stage.harness.store.taps, feed.id, seconds=60, limit=1_000)) as rows:
        records = (row for row in filter(None, rows) if row["event"] == "record")
        stage.reconcile()
        first = next(records)
        assert first["record"].startswith("{***: ")
        assert (first["worker"], first["epoch"]) == ("w1", 1)
        stage.leave()
        second = Stage(stage.harness, source=stage.source)
        try:
            second.reconcile()
            assert next(row for row in islice(records, 500) if row["epoch"] == 2)["record"].startswith("{***")
        finally:
            second.leave()
    assert stage.harness.execute("SELECT id FROM feedq.tap") == []
