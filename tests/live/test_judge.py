"""The thread that has feeds judged: how often, and that it ends when it is told to."""

from __future__ import annotations

from threading import Event
from typing import Any, cast

from feedq.judge import ExpectationJudge
from feedq.settings import Settings
from feedq.store.expectations import ExpectationStore, Judged

PATIENCE_S = 20.0


class Looks:
    """In the place of a database that has nothing to say."""

    def __init__(self) -> None:
        self.seen = Event()

    def judge(self, *_: Any) -> Judged:
        self.seen.set()
        return Judged()


def test_it_looks_at_once_or_not_within_a_day_and_ends_when_told_to() -> None:
    """`FEEDQ_EXPECT_INTERVAL_S` at its ends."""
    often, seldom = Looks(), Looks()
    threads = [
        ExpectationJudge(
            Settings(expect_interval_s=interval_s, ttl_s=0.5, heartbeat_s=0.1, trust_margin_s=0.1),
            lambda looks=looks: cast("ExpectationStore", looks),  # type: ignore[misc] # bound here
            lambda: True,
        )
        for interval_s, looks in ((0.2, often), (86_400.0, seldom))
    ]
    for thread in threads:
        thread.start()
    assert often.seen.wait(PATIENCE_S)
    for thread in threads:
        thread.stop()
    assert not any(thread.is_alive() for thread in threads)
    assert not seldom.seen.is_set()
