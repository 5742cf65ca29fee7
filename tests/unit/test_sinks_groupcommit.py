"""Which feeds of a group share a COPY, and what follows from a group commit that failed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from feedq.model import Batch
from feedq.sinks.base import FeedWrite, Landing
from feedq.sinks.groupcommit import CONFLICTS_MAX, Care, Course, GroupFailed, Next, Part, by_landing
from feedq.sinks.sqlstate import ErrorScope

AT = datetime(2026, 11, 20, tzinfo=UTC)


def write(feed_id: int, landing: Landing) -> FeedWrite:
    return FeedWrite(feed_id, f"f/{feed_id}", 1, landing, (Batch.of_lines(b"x\n", cursor=1, received_at=AT),))


def test_feeds_with_equal_landings_share_a_copy_whether_or_not_they_share_the_object() -> None:
    shared, equal, other = Landing("t", "text"), Landing("t", "text"), Landing("u", "text")
    writes = [write(n, landing) for n, landing in enumerate([shared, other, equal, shared, other, equal])]
    groups = by_landing(writes)
    assert {landing.table: [w.feed_id for w in ws] for landing, ws in groups.items()} == {
        "t": [0, 2, 3, 5],
        "u": [1, 4],
    }


ONE, TWO = Landing("one", "json"), Landing("two", "json")


def failed(part: Part, trouble: ErrorScope, landing: Landing | None = None) -> GroupFailed:
    return GroupFailed(part, trouble, Exception(), "said so", landing=landing)


def test_a_group_whose_records_are_refused_is_looked_at_ever_closer_and_then_put_off() -> None:
    course = Course((ONE,), briefly=True)
    refused = failed(Part.LANDING, ErrorScope.DATA, ONE)
    assert [course.after(refused) for _ in Care] == [Next.AGAIN, Next.AGAIN, Next.POSTPONE]
    assert course.care is Care.IMMEDIATE


@pytest.mark.parametrize(
    "trouble", [ErrorScope.DATA, ErrorScope.LANDING, ErrorScope.LATER, ErrorScope.LOCKED]
)
def test_a_commit_that_is_refused_is_tried_with_constraints_checked_at_once(trouble: ErrorScope) -> None:
    course = Course((ONE,), briefly=True)
    assert course.after(failed(Part.COMMIT, trouble)) is Next.AGAIN
    assert course.care is Care.IMMEDIATE
    assert course.after(failed(Part.COMMIT, trouble)) is Next.POSTPONE


def test_a_locked_table_is_left_out_and_no_other_one_waited_for() -> None:
    course = Course((ONE, TWO), briefly=True)
    assert course.after(failed(Part.LANDING, ErrorScope.LOCKED, ONE)) is Next.AGAIN
    assert (course.held, course.doubted) == ({ONE: "table 'one' is locked"}, (ONE, TWO))
    assert course.care is Care.OPTIMISTIC


def test_conflicts_are_tried_again_a_bounded_number_of_times() -> None:
    course = Course((ONE,), briefly=True)
    conflict = failed(Part.LANDING, ErrorScope.CONFLICT, ONE)
    answers = [course.after(conflict) for _ in range(CONFLICTS_MAX + len(Care))]
    assert answers == [Next.AGAIN] * (CONFLICTS_MAX + len(Care) - 1) + [Next.POSTPONE]


def test_only_what_fails_at_the_checkpoints_is_the_sinks() -> None:
    course = Course((ONE,), briefly=True)
    locked = failed(Part.CHECKPOINTS, ErrorScope.LOCKED)
    assert [course.after(locked) for _ in range(2)] == [Next.AGAIN, Next.GIVE_UP]
    assert course.around_locks
    for trouble in (ErrorScope.DATA, ErrorScope.LANDING, ErrorScope.LATER):
        assert Course((ONE,), briefly=True).after(failed(Part.CHECKPOINTS, trouble)) is Next.GIVE_UP
