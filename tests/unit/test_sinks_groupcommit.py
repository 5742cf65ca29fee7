"""Which feeds of a group share a COPY, and what follows from a group commit that failed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from feedq.core.model import Batch
from feedq.sinks.base import FeedWrite, Target
from feedq.sinks.groupcommit import (
    CONFLICTS_MAX,
    CommitMode,
    FailedPart,
    GroupFailed,
    NextStep,
    RetryPlan,
    by_target,
)
from feedq.sinks.session import ErrorScope

AT = datetime(2026, 11, 20, tzinfo=UTC)


def write(feed_id: int, target: Target) -> FeedWrite:
    return FeedWrite(feed_id, f"f/{feed_id}", 1, target, (Batch.of_lines(b"x\n", cursor=1, received_at=AT),))


def test_feeds_with_equal_landings_share_a_copy_whether_or_not_they_share_the_object() -> None:
    shared, equal, other = Target("t", "text"), Target("t", "text"), Target("u", "text")
    writes = [write(n, target) for n, target in enumerate([shared, other, equal, shared, other, equal])]
    groups = by_target(writes)
    assert {target.table: [w.feed_id for w in ws] for target, ws in groups.items()} == {
        "t": [0, 2, 3, 5],
        "u": [1, 4],
    }


ONE, TWO = Target("one", "json"), Target("two", "json")


def failed(part: FailedPart, trouble: ErrorScope, target: Target | None = None) -> GroupFailed:
    return GroupFailed(part, trouble, Exception(), "said so", target=target)


def test_a_group_whose_records_are_refused_is_looked_at_ever_closer_and_then_put_off() -> None:
    retry_plan = RetryPlan((ONE,), briefly=True)
    refused = failed(FailedPart.TARGET, ErrorScope.DATA, ONE)
    assert [retry_plan.after(refused) for _ in CommitMode] == [
        NextStep.AGAIN,
        NextStep.AGAIN,
        NextStep.POSTPONE,
    ]
    assert retry_plan.mode is CommitMode.IMMEDIATE


@pytest.mark.parametrize("trouble", [ErrorScope.DATA, ErrorScope.TARGET, ErrorScope.LATER, ErrorScope.LOCKED])
def test_a_commit_that_is_refused_is_tried_with_constraints_checked_at_once(trouble: ErrorScope) -> None:
    retry_plan = RetryPlan((ONE,), briefly=True)
    assert retry_plan.after(failed(FailedPart.COMMIT, trouble)) is NextStep.AGAIN
    assert retry_plan.mode is CommitMode.IMMEDIATE
    assert retry_plan.after(failed(FailedPart.COMMIT, trouble)) is NextStep.POSTPONE


def test_a_locked_table_is_left_out_and_no_other_one_waited_for() -> None:
    retry_plan = RetryPlan((ONE, TWO), briefly=True)
    assert retry_plan.after(failed(FailedPart.TARGET, ErrorScope.LOCKED, ONE)) is NextStep.AGAIN
    assert (retry_plan.held, retry_plan.lock_uncertain) == ({ONE: "table 'one' is locked"}, (ONE, TWO))
    assert retry_plan.mode is CommitMode.OPTIMISTIC


def test_conflicts_are_tried_again_a_bounded_number_of_times() -> None:
    retry_plan = RetryPlan((ONE,), briefly=True)
    conflict = failed(FailedPart.TARGET, ErrorScope.CONFLICT, ONE)
    answers = [retry_plan.after(conflict) for _ in range(CONFLICTS_MAX + len(CommitMode))]
    assert answers == [NextStep.AGAIN] * (CONFLICTS_MAX + len(CommitMode) - 1) + [NextStep.POSTPONE]


def test_only_what_fails_at_the_checkpoints_is_the_sinks() -> None:
    retry_plan = RetryPlan((ONE,), briefly=True)
    locked = failed(FailedPart.CHECKPOINTS, ErrorScope.LOCKED)
    assert [retry_plan.after(locked) for _ in range(2)] == [NextStep.AGAIN, NextStep.GIVE_UP]
    assert retry_plan.around_locks
    for trouble in (ErrorScope.DATA, ErrorScope.TARGET, ErrorScope.LATER):
        assert (
            RetryPlan((ONE,), briefly=True).after(failed(FailedPart.CHECKPOINTS, trouble)) is NextStep.GIVE_UP
        )
