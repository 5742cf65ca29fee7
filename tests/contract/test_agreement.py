"""Of one fleet, the status, the problems and the lists of feeds say the same."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from feedq.core.model import Concern, Status
from feedq.core.roles import AccessRole, Caller
from feedq.core.selection import ALL, Selection
from feedq.settings import Settings
from feedq.verbs import feeds, fleet
from feedq.verbs.diagnosis.feed_checks import MORE_LISTED
from feedq.verbs.registry import At, OpenSink
from feedq.web.buttons import problem_buttons
from tests.contract.harness import Harness
from tests.contract.test_store_listing import SOME, WANTED, declare


@pytest.fixture
def at(harness: Harness, control_database_url: str) -> At:
    """A fleet with a feed of each kind, none of which is being removed."""
    declare(control_database_url, harness, [one for one in SOME if one[0] in WANTED[:2]])
    harness.execute(
        "INSERT INTO feedq.unmet (feed_id, kind, since, bound, found) "
        "SELECT id, 'max_silence', now(), '20', 30 FROM feedq.feed WHERE mod(id, 3) = 0"
    )
    return At(harness.store, Settings(), Caller("me", AccessRole.ADMIN), cast("OpenSink", None))


def counted(at: At, select: Selection) -> Counter[Status]:
    """Feeds of a selection by status, going by their list."""
    found: list[Status] = []
    cursor = None
    while True:
        page = feeds.list_feeds(at, select=select, limit=100, cursor=cursor)
        found += [view.status for view in page.items]
        if (cursor := page.next) is None:
            return Counter(found)


def test_status_problems_and_lists_count_the_same_feeds(at: At) -> None:
    listed, status = counted(at, ALL), fleet.show_status(at)
    assert {*listed} >= {*Status} - {Status.REMOVING}
    assert Counter(status.numbers.by_status) == listed
    problems = fleet.list_problems(at).items
    of_problems = Counter[str]()
    for problem in problems:
        of_problems[problem.name] += problem.feeds
    of_warnings = Counter[str]()
    for warning in status.warnings:
        of_warnings[warning.name] += warning.feeds
    assert of_problems == of_warnings
    advice = next(one.advice for one in problems if one.name == Status.WAITING and one.select is not None)
    assert advice.endswith("--status waiting` lists all that wait")
    assert {name: of_problems[name] for name in listed if of_problems[name]} == {
        name: count for name, count in listed.items() if of_problems[name]
    }
    for found in (*problems, *status.warnings):
        if found.select is not None:
            total = counted(at, found.select).total()
            assert total >= found.feeds if found.name in MORE_LISTED else total == found.feeds, found


def test_no_button_of_a_problem_acts_on_feeds_that_it_does_not_count(at: At) -> None:
    offered = [one for one in fleet.list_problems(at).items if one.select and problem_buttons(one)]
    assert {one.name for one in offered} >= {Status.FAILED, Concern.EXPECTATION}
    for one in offered:
        assert one.select is not None
        assert counted(at, one.select).total() == one.feeds, one
