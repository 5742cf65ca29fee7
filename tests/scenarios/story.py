"""How the stories begin and how they are compared."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from tests.fakes import FakeFleet


def streaming_fleet(*, workers: str = "abc", feeds: int = 4, **options: Any) -> FakeFleet:
    """Every feed streams, the grace period after the start is over, and the transcript is empty.

    With the defaults worker a has feed 2, b has feed 3, and c has feeds 1 and 4; it is t=10. They are dealt by
    hand, the last worker's first: where equal workers fill first is for placement to say, and not for a story.
    """
    fleet = FakeFleet(**options)
    for name in workers:
        fleet.add_worker(name)
    fleet.run(1)
    fleet.add_feeds(feeds)
    fleet.deal({n: (workers[-1] + workers[:-1])[(n - 1) % len(workers)] for n in range(1, feeds + 1)})
    fleet.run(9)
    assert fleet.everything_streams(), fleet.transcript
    fleet.lines.clear()
    return fleet


def expect(fleet: FakeFleet, story: str) -> None:
    """The transcript since the last comparison reads like this."""
    assert fleet.transcript == dedent(story).lstrip()
    fleet.lines.clear()
