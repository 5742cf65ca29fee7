"""From the decision to the claim: placement, capacity, and a broker that cannot be relied on."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fakes import FakeFleet
from tests.scenarios.story import expect, streaming_fleet

pytestmark = pytest.mark.usefixtures("control")


def spread(fleet: FakeFleet) -> list[int]:
    """How many feeds each worker streams."""
    held = Counter(view.worker for view in fleet.store.feeds.views() if view.worker)
    return sorted(held[name] for name in fleet.workers)


def test_a_cold_start_settles_and_then_spreads() -> None:
    fleet = FakeFleet()
    fleet.add_feeds(7)
    fleet.add_worker("a")
    fleet.run(1)
    fleet.add_worker("b")
    fleet.run(0.5)
    fleet.add_worker("c")
    fleet.run(8)
    expect(
        fleet,
        """
        t=0.0 person: adds feeds 1,2,3,4,5,6,7
        t=0.0 worker a: starts
        t=0.1 control: cannot place 7 settling
        t=1.0 worker b: starts
        t=1.5 worker c: starts
        t=2.1 control: assigns 1@1,6@1 to b
        t=2.1 control: assigns 2@1,4@1 to a
        t=2.1 control: assigns 3@1,5@1,7@1 to c
        t=2.2 worker a: streams feeds 2,4
        t=2.2 worker b: streams feeds 1,6
        t=2.2 worker c: streams feeds 3,5,7
        """,
    )
    assert spread(fleet) == [2, 2, 3]
    assert fleet.everything_streams()


def test_without_either_the_next_heartbeat_brings_the_assignment() -> None:
    fleet = streaming_fleet()
    fleet.broker.to_lose = 1
    fleet.control.notifications_to_lose = 1
    fleet.add_feeds(1)
    fleet.run(3)
    assert fleet.everything_streams()
    streams = next(line for line in fleet.lines if "worker a: streams feed 5" in line)
    assert 10.2 < float(streams.removeprefix("t=").split()[0]) <= 10.2 + fleet.settings.heartbeat_s
