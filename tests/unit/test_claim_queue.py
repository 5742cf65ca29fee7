"""The claim queue: an assignment is heard of by ring and by message, in any order and any number of times."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from feedq.model import Claim, Feed, FeedKey, FeedSpec
from feedq.runtime.claim_queue import AssignmentListener, ClaimQueue, Granted, TaskCallbacks

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY: FeedKey = (1, 7)
SESSION = uuid4()


class Bench:
    """A claim queue, and what goes out of it."""

    def __init__(self) -> None:
        self.asked: list[FeedKey] = []
        self.begun: list[AssignmentListener] = []
        self.said: list[str] = []
        self.refusal: str | None = None
        self.claim_queue = ClaimQueue(
            refusal=lambda *_: self.refusal, claim=self.asked.append, begin=self._begin
        )

    def _begin(self, session: UUID, starting: Granted) -> None:
        assert session == SESSION
        self.begun += [audience for _, audience in starting]

    def message(self, name: str, key: FeedKey = KEY) -> None:
        self.claim_queue.offer(
            key,
            TaskCallbacks(
                lambda: self.said.append(f"{name} accepted"),
                lambda why: self.said.append(f"{name}: {why}"),
                lambda text: self.said.append(f"{name}: {text}"),
            ),
        )

    def granted(self, key: FeedKey = KEY) -> None:
        feed = Feed(key[0], FeedSpec("a", "tcp", {}, {}), 1, AT, AT)
        self.claim_queue.answered(SESSION, [Claim(feed, key[1], 0)], [])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_ring_after_the_message_asks_for_nothing_more(bench: Bench) -> None:
    bench.message("task")
    bench.claim_queue.summon([KEY])
    bench.granted()
    bench.claim_queue.summon([KEY])
    assert bench.asked == [KEY]
    assert bench.said == ["task accepted"]
    bench.begun[0].finished("released")
    assert bench.said[1:] == ["task: released"]


def test_a_message_that_comes_while_the_claim_is_under_way_hears_of_the_claim(bench: Bench) -> None:
    bench.claim_queue.summon([KEY])
    bench.message("task")
    assert bench.said == []
    bench.granted()
    assert bench.said == ["task accepted"]
    assert bench.asked == [KEY]


def test_a_message_that_comes_after_the_claim_joins_the_tenure(bench: Bench) -> None:
    bench.claim_queue.summon([KEY])
    bench.granted()
    bench.begun[0].progress("nobody hears this")
    bench.message("task")
    bench.begun[0].progress("streaming")
    bench.begun[0].finished("released")
    assert bench.said == ["task accepted", "task: streaming", "task: released"]


def test_a_copy_of_the_message_is_dropped_and_the_first_one_stays(bench: Bench) -> None:
    bench.claim_queue.summon([KEY])
    bench.message("task")
    bench.granted()
    bench.message("copy")
    assert bench.said[:2] == ["task accepted", "copy accepted"]
    assert bench.said[2].startswith("copy: dropped: a duplicate")
    bench.begun[0].finished("released")
    assert bench.said[3:] == ["task: released"]


def test_a_message_after_the_end_asks_for_a_claim_of_its_own_and_is_dropped_as_stale(bench: Bench) -> None:
    bench.claim_queue.summon([KEY])
    bench.granted()
    bench.begun[0].finished("released")
    bench.message("late")
    assert bench.asked == [KEY, KEY]
    bench.claim_queue.answered(SESSION, [], [KEY])
    assert bench.said[0] == "late accepted"
    assert bench.said[1].startswith("late: dropped: stale")
    assert bench.claim_queue.tenures == {}


def test_a_refused_ring_leaves_nothing_behind(bench: Bench) -> None:
    bench.refusal = "this worker is draining"
    bench.claim_queue.summon([KEY])
    assert (bench.asked, bench.claim_queue.tenures, bench.claim_queue.pending) == ([], {}, 0)
    bench.message("task")
    assert bench.said == ["task accepted", "task: dropped: this worker is draining"]


def test_the_next_tenure_of_a_feed_is_another_one(bench: Bench) -> None:
    bench.message("first")
    bench.granted()
    after = (KEY[0], KEY[1] + 1)
    bench.message("second", after)
    bench.granted(after)
    bench.begun[0].finished("lost")
    bench.begun[1].finished("released")
    assert bench.said == ["first accepted", "second accepted", "first: lost", "second: released"]
    assert bench.claim_queue.tenures == {}
