"""A lost commit is told from the checkpoints, and from nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.core.model import Batch, FeedKey
from feedq.sinks.base import CommitUnknown, FeedWrite, Target, Written
from feedq.sinks.checkpoints import LastCommit, decide

LOST, OTHER, LEFT = uuid4(), uuid4(), uuid4()
TARGET = Target("t", "json")


def unknown(*keys: FeedKey, **changes: object) -> CommitUnknown:
    batch = Batch.of_lines(b"1\n", cursor=1, received_at=datetime.now(UTC))
    writes = [FeedWrite(feed_id, f"f{feed_id}", epoch, TARGET, (batch,), LEFT) for feed_id, epoch in keys]
    facts: dict[str, Any] = {"landed": dict.fromkeys(keys, 1), "dead": {}, "fenced": (), "unusable": {}}
    return CommitUnknown(LOST, writes, Written(**{**facts, **changes}))


def at(epoch: int, commit_id: UUID | None) -> LastCommit:
    return LastCommit(epoch, commit_id)


def test_our_commit_id_in_a_checkpoint_means_that_it_happened() -> None:
    lost = unknown((1, 5), (2, 6))
    assert decide(lost, {1: at(5, LOST), 2: at(6, LOST)}) == lost.written


def test_a_checkpoint_as_it_was_left_means_that_it_did_not_happen() -> None:
    assert decide(unknown((1, 5), (2, 6)), {1: at(5, LEFT), 2: at(6, LEFT)}) is None


def test_another_commit_under_our_epoch_tells_nothing_and_the_feed_is_rewound() -> None:
    settled = decide(unknown((1, 5), (2, 6), (3, 7)), {1: at(5, OTHER), 2: at(4, LEFT)})
    assert settled == Written({}, {}, (), {}, rewound=((1, 5), (2, 6), (3, 7)))


def test_one_checkpoint_that_was_put_back_does_not_hide_that_the_commit_happened() -> None:
    settled = decide(unknown((1, 5), (2, 6)), {1: at(5, LEFT), 2: at(6, LOST)})
    assert settled == Written({(2, 6): 1}, {}, (), {}, rewound=((1, 5),))


def test_a_feed_that_a_successor_has_committed_since_is_fenced_and_the_rest_decides() -> None:
    lost = unknown((1, 5), (2, 6), dead={(1, 5): 2, (2, 6): 3}, fenced=((3, 7),), unusable={(4, 8): "gone"})
    settled = decide(lost, {1: at(9, OTHER), 2: at(6, LOST)})
    assert settled == Written(
        landed={(2, 6): 1}, dead={(2, 6): 3}, fenced=((3, 7), (1, 5)), unusable={(4, 8): "gone"}
    )


def test_nothing_happened_if_a_feed_still_ours_says_so_whatever_became_of_the_others() -> None:
    assert decide(unknown((1, 5), (2, 6)), {1: at(9, OTHER), 2: at(6, LEFT)}) is None


@pytest.mark.parametrize("checkpoints", [{1: at(9, OTHER)}, {1: at(9, None)}])
def test_feeds_that_are_all_overtaken_are_fenced(checkpoints: dict[int, LastCommit]) -> None:
    settled = decide(unknown((1, 5)), checkpoints)
    assert settled == Written(landed={}, dead={}, fenced=((1, 5),), unusable={})
