"""Does the simulation bite? The protocol is broken in one place, and few seeds must find it.

Nobody has thought of a story here. A rule that another one makes up for, only later, is not found this way: leases
that are never compared with what runs are released when the feed is to move, or reaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from feedq.core.model import FeedKey, Lease
from feedq.core.placement.base import Transfer
from feedq.core.worker import WorkerCore, WorkerFeed
from feedq.core.worker_actions import Action, EndSession, FetchOrders
from tests.fakes import FakeSink, FakeWorker
from tests.fakes.memory import counts
from tests.fakes.memory.passes import MemoryPass
from tests.fakes.memory.tables import MemoryDatabase
from tests.fakes.servers import FakeCheckpoint, Refusal
from tests.fakes.stream import FakeStream
from tests.simulation.trouble import run_seed

SEEDS = 200

Mutate = Callable[[pytest.MonkeyPatch], None]


def no_epoch_in_the_checkpoint_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit_anybody(self: FakeSink, seen: FakeCheckpoint, epoch: int, continues: int) -> None:
        return None

    monkeypatch.setattr(FakeSink, "refusal_of", admit_anybody)


def no_fence_on_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor reads the cursor and leaves the epoch alone; its first write will raise it."""

    def only_read(self: FakeSink, key: FeedKey, owner: UUID) -> FakeCheckpoint | None:
        seen = self.checkpoints.setdefault(key[0], FakeCheckpoint())
        return seen if seen.epoch < key[1] else None

    def write(self: FakeSink, key: FeedKey, continues: int, records: Sequence[int]) -> int | Refusal:
        if self.checkpoints[key[0]].epoch > key[1]:
            return Refusal.SUPERSEDED
        self.rows.setdefault(key[0], []).extend(records)
        self.checkpoints[key[0]] = FakeCheckpoint(key[1], records[-1])
        return 0

    monkeypatch.setattr(FakeSink, "fence", only_read)
    monkeypatch.setattr(FakeSink, "write", write)


def trust_window_anchored_at_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stretched(WorkerCore):
        def confirmed(self, *, sent_at: float, ttl_s: float, now: float) -> list[Action]:
            return super().confirmed(sent_at=now, ttl_s=ttl_s, now=now)

    monkeypatch.setattr(FakeWorker, "core_type", Stretched)


def gone_without_freeing(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_workers = MemoryPass.expire_workers

    def forget_the_leases(self: MemoryPass, worker_ids: Sequence[UUID]) -> int:
        monkeypatch.setattr(self._db, "free", lambda *_: 0)
        return expire_workers(self, worker_ids)

    monkeypatch.setattr(MemoryPass, "expire_workers", forget_the_leases)


def revoked_before_it_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is asked to let go, and where the feed goes is somebody's concern later."""
    hand_over = counts.hand_over

    def without_a_promise(db: MemoryDatabase, one: Transfer, *, stop_within_s: float) -> bool:
        asked = hand_over(db, one, stop_within_s=stop_within_s)
        if asked:
            db.tables.leases[one.feed_id] = replace(db.tables.leases[one.feed_id], promised_to=None)
        return asked

    monkeypatch.setattr(counts, "hand_over", without_a_promise)


def a_promise_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target looks as empty as it was until the feed is assigned to it."""

    def by_owner(lease: Lease) -> UUID | None:
        return lease.worker_id

    monkeypatch.setattr(counts, "counted_at", by_owner)


def waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "reap", lambda _: 0)


def no_commit_in_the_checkpoint_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_epoch(self: FakeSink, seen: FakeCheckpoint, epoch: int, continues: int) -> Refusal | None:
        return Refusal.SUPERSEDED if seen.epoch > epoch else None

    monkeypatch.setattr(FakeSink, "refusal_of", only_the_epoch)


def an_unknown_commit_counts_as_not_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSink, "has_landed", lambda *_: False)
    no_commit_in_the_checkpoint_update(monkeypatch)


def an_unknown_commit_counts_as_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: FakeStream, sink: FakeSink) -> None:
        if self.unknown is not None:
            self.cursor = self.unknown[1][-1]
            self.continues = sink.checkpoint(self.key[0]).commit
            self.unknown = None

    monkeypatch.setattr(FakeStream, "settle", settle)


def core(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Have workers run on a core with these methods."""
    monkeypatch.setattr(FakeWorker, "core_type", type("Mutant", (WorkerCore,), methods))


def a_lost_session_loses_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_session(self: Any, now: float) -> list[Action]:
        return [a for a in WorkerCore._end_session(self, now) if isinstance(a, EndSession)]

    core(monkeypatch, _end_session=end_session)


def nothing_suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_doubt(self: Any, why: str, now: float) -> list[Action]:
        return []

    core(monkeypatch, _end_trust=no_doubt, is_trusted=lambda self, now: True)


def a_refused_report_loses_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Any, feeds: Sequence[WorkerFeed], now: float) -> list[Action]:
        return []

    core(monkeypatch, _lose=lose)


def only_messages_bring_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found where the broker hangs on when all else is well again, and nowhere else."""

    def orders_pending(self: Any) -> list[Action]:
        found = WorkerCore.orders_pending(self)
        return [replace(a, with_assignments=False) if isinstance(a, FetchOrders) else a for a in found]

    core(monkeypatch, orders_pending=orders_pending)


@pytest.mark.parametrize(
    "mutate",
    [
        no_epoch_in_the_checkpoint_update,
        no_fence_on_start,
        trust_window_anchored_at_the_reply,
        gone_without_freeing,
        revoked_before_it_is_placed,
        a_promise_is_not_counted,
        waited_for_without_end,
        no_commit_in_the_checkpoint_update,
        an_unknown_commit_counts_as_not_landed,
        an_unknown_commit_counts_as_landed,
        a_lost_session_loses_no_feed,
        nothing_suspends,
        a_refused_report_loses_no_feed,
        only_messages_bring_assignments,
    ],
)
def test_few_seeds_find_it(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)

    def run_seeds() -> None:
        for seed in range(SEEDS):
            run_seed(seed)

    with pytest.raises(AssertionError):
        run_seeds()
