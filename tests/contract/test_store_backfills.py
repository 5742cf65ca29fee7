"""Backfills in the control database: begun once, following their feed, ended at once, left out of lists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from feedq.core.model import Feed, FeedBackfill, FeedView, Reason, Release, TargetState
from feedq.core.selection import Selection
from feedq.errors import Conflict, NotFound, Outdated
from tests.asking import events_of
from tests.contract.harness import Harness, spec, stock_of

LIVE = "acme/orders"
CHILD = f"{LIVE}~backfill"
KEYED = {"table": "orders", "columns": {"seq": "/seq"}, "key": ["seq"]}


class Bench:
    """A feed with a backfill."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.feeds, self.backfills = harness, harness.store.feeds, harness.store.backfills
        self.live = self.feeds.add(spec(LIVE, sink=KEYED, tenant="acme"))
        self.begin()

    def begin(self, key: str | None = "first", of: Feed | None = None) -> bool:
        parent = of or self.feeds.get(LIVE)
        source = {**parent.spec.source, "limits": {"rows_per_s": 10.0}}
        child = parent.spec.model_copy(update={"name": CHILD, "source": source, "initial_cursor": 5})
        return self.backfills.begin(parent, child, FeedBackfill(parent.id, 5, 2**70, key))

    @property
    def child(self) -> FeedView:
        found = self.backfills.of(self.live)
        assert found is not None
        return found

    def told(self) -> list[dict[str, Any]]:
        found = [event for event in events_of(self.harness.store, LIVE) if event.kind.startswith("backfill_")]
        return [{"kind": event.kind, **event.detail} for event in reversed(found)]

    def finish(self, records: int) -> None:
        worker = self.harness.worker()
        key = self.harness.run(self.child.feed, worker)
        assert self.harness.store.leases.release(worker.id, [Release(*key, Reason.FINISHED, records=records)])


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


def test_one_is_begun_once_by_its_key_and_one_at_a_time(bench: Bench) -> None:
    assert bench.begin() is False
    with pytest.raises(Conflict, match="has a backfill already"):
        bench.begin("second")
    backfill = bench.child.feed.backfill
    assert backfill == FeedBackfill(bench.live.id, 5, 2**70, "first")
    assert bench.child.feed.spec.initial_cursor == 5
    bench.backfills.cancel(bench.live)
    # Also when the first has ended long since.
    assert bench.begin() is False
    assert bench.begin("second") is True


def test_a_feed_that_was_edited_since_or_is_paused_gets_none(bench: Bench) -> None:
    bench.backfills.cancel(bench.live)
    bench.feeds.restart(LIVE)
    with pytest.raises(Outdated):
        bench.begin("second", bench.live)
    bench.feeds.set_target(LIVE, TargetState.PAUSED)
    with pytest.raises(Conflict, match="is paused"):
        bench.begin("second")


def test_it_follows_its_feed_in_the_same_transaction(bench: Bench) -> None:
    generation = bench.child.feed.generation
    bench.feeds.set_target(LIVE, TargetState.PAUSED)
    assert bench.child.feed.spec.target_state is TargetState.PAUSED
    bench.feeds.set_target(LIVE, TargetState.RUNNING)
    bench.feeds.restart(LIVE)
    assert bench.child.feed.generation == generation + 3
    source = {"url": "tcp://127.0.0.1:7002", "limits": {"rows_per_s": 99}}
    edited = bench.live.spec.model_copy(update={"source": source, "tenant": "other", "labels": {"a": "b"}})
    bench.feeds.edit(edited)
    child = bench.child.feed.spec
    assert (child.tenant, child.labels, child.initial_cursor) == ("other", {"a": "b"}, 5)
    assert child.source == {"url": "tcp://127.0.0.1:7002", "limits": {"rows_per_s": 10.0}}
    bench.feeds.remove(LIVE)
    assert bench.child.feed.removed_at is not None


@pytest.mark.parametrize("change", [{"connector": "sse"}, {"sink": {"table": "orders"}}])
def test_it_ends_when_its_feed_becomes_one_that_there_is_no_backfill_of(
    bench: Bench, change: dict[str, Any]
) -> None:
    bench.feeds.edit(bench.live.spec.model_copy(update=change))
    assert bench.child.feed.removed_at is not None
    assert bench.told()[-1] == {"kind": "backfill_cancelled", "why": "feed edited"}
    with pytest.raises(NotFound, match="has no backfill"):
        bench.backfills.cancel(bench.live)


def test_its_end_is_written_down_and_it_is_gone_at_once_or_neither(bench: Bench) -> None:
    bench.finish(records=1_234)
    with suppress(RuntimeError), bench.harness.in_a_pass() as p:
        stock_of(p)
        raise RuntimeError("the beat is killed")
    assert bench.child.lease.reason is Reason.FINISHED
    assert [one["kind"] for one in bench.told()] == ["backfill_begun"]
    with bench.harness.in_a_pass() as p:
        assert bench.child.feed.id not in [one.feed_id for one in p.waiting(limit=10)]
    bench.harness.reconcile()
    assert bench.backfills.of(bench.live) is None
    ended = bench.told()[-1]
    assert (ended["kind"], ended["records"], ended["begins_after"], ended["ends_at"]) == (
        "backfill_finished",
        1_234,
        5,
        2**70,
    )
    bench.harness.reconcile()
    assert len(bench.told()) == 2


def test_lists_and_counts_leave_it_out(bench: Bench) -> None:
    store, feeds = bench.harness.store, bench.feeds
    for names in (
        [view.feed.name for view in feeds.views()],
        [view.feed.name for view in store.listing.selected(Selection())],
        [view.feed.name for view in store.listing.selected(Selection(names=(LIVE, CHILD)))],
        [feed.name for feed in feeds.declared()],
        [view.feed.name for view in store.listing.after(Selection())],
    ):
        assert names == [LIVE]
    assert sum(t.feeds for t in store.listing.tallies()) == 1
    assert feeds.view(CHILD).feed.backfill is not None
    worker = bench.harness.worker()
    bench.harness.run(bench.child.feed, worker)
    assert [view.feed.name for view in feeds.views(worker=worker.name)] == [CHILD]
    assert [view.feed.name for view in bench.backfills.running(tenant="acme")] == [CHILD]
    assert bench.backfills.running(tenant="other") == []


def test_nobody_edits_pauses_or_removes_it_by_its_own_name(bench: Bench) -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: bench.feeds.set_target(CHILD, TargetState.PAUSED),
        lambda: bench.feeds.restart(CHILD),
        lambda: bench.feeds.remove(CHILD),
        lambda: bench.feeds.edit(spec(CHILD)),
    )
    for change in changes:
        with pytest.raises(Conflict, match=f"feedq feed backfill cancel {LIVE}"):
            change()
