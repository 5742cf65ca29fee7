"""Do the stories bite? The protocol is broken in eight ways, and the stories named must fail.

`tests/contract/test_mutants.py` does the same to the code that runs in production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from feedq.core.model import FeedKey, Lease
from feedq.core.placement.base import Transfer
from feedq.core.worker import WorkerCore
from feedq.core.worker_actions import Action
from tests.fakes import FakeSink, FakeWorker
from tests.fakes.memory import counts
from tests.fakes.memory.passes import MemoryPass
from tests.fakes.memory.tables import MemoryDatabase
from tests.fakes.servers import FakeCheckpoint, Refusal
from tests.scenarios import test_dispatch as dispatch
from tests.scenarios import test_failover as failover
from tests.scenarios import test_moves as handovers

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


def nobody_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker hears of an assignment by its message alone."""

    def say_nothing(self: MemoryDatabase, worker_ids: Iterable[UUID]) -> None:
        pass

    monkeypatch.setattr(MemoryDatabase, "notify", say_nothing)


@pytest.mark.parametrize(
    ("mutate", "story"),
    [
        (
            no_epoch_in_the_checkpoint_update,
            failover.test_a_frozen_worker_is_replaced_after_its_ttl_and_can_write_nothing_when_it_wakes,
        ),
        (
            no_fence_on_start,
            failover.test_a_worker_that_wakes_between_its_successors_fence_and_first_commit_writes_nothing,
        ),
        (
            trust_window_anchored_at_the_reply,
            failover.test_a_heartbeat_whose_answer_is_slow_does_not_stretch_the_lease,
        ),
        (gone_without_freeing, failover.test_a_killed_workers_feeds_stream_elsewhere_at_once),
        (
            revoked_before_it_is_placed,
            handovers.test_a_third_worker_gets_its_part_once_it_has_settled_and_no_feed_moves_twice,
        ),
        (
            a_promise_is_not_counted,
            handovers.test_while_one_owner_does_not_let_go_the_others_give_no_more_than_their_part,
        ),
        (
            waited_for_without_end,
            handovers.test_an_owner_that_does_not_let_go_is_waited_for_so_long_and_no_longer,
        ),
        (
            nobody_is_notified,
            dispatch.test_a_message_joins_the_feed_that_a_notification_began_and_a_copy_of_it_is_dropped,
        ),
    ],
)
def test_a_story_fails_when_the_protocol_is_broken(
    mutate: Mutate, story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    story()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        story()
