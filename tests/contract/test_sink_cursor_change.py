"""A cursor that a person changes while its owner writes: the old one with all that landed, or the new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from feedq.core.model import JSON, Identity, StartCursor
from feedq.errors import Conflict, InvalidInput, SinkUnavailable
from feedq.local.postgres import Postgres
from feedq.sinks.base import (
    Checkpoint,
    CheckpointChange,
    Fenced,
    FenceRequest,
    Judge,
    Sink,
    Target,
    anybody,
)
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import (
    MemoryHarness,
    PostgresSinkHarness,
    SqliteHarness,
    empty_database,
)
from tests.contract.sink_stage import PATIENCE_S, batch, write
from tests.proxy import Fault

Harness = PostgresSinkHarness | SqliteHarness | MemoryHarness
RealHarness = PostgresSinkHarness | SqliteHarness
SEQ = Target("orders", "json", sources_of({"seq": "/seq"}), key=("seq",))
ID = 1
FEED = f"feed/{ID}"


def made(kind: str, request: pytest.FixtureRequest, directory: Path) -> Harness:
    if kind == "memory":
        return MemoryHarness()
    if kind == "sqlite":
        return SqliteHarness(directory / "sink.sqlite3")
    postgres: Postgres = request.getfixturevalue("postgres")
    return PostgresSinkHarness(empty_database(postgres))


@pytest.fixture(params=["postgresql", "sqlite", "memory"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    found = made(request.param, request, tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealHarness]:
    found = made(request.param, request, tmp_path)
    assert not isinstance(found, MemoryHarness)
    found.query("CREATE TABLE orders (seq BIGINT PRIMARY KEY)")
    yield found
    found.close()


class Running:
    """A feed with its owner, and a person beside it."""

    def __init__(self, harness: Harness, *, target: Target | None = None, feed_id: int = ID) -> None:
        self.feed_id, self.identity = feed_id, Identity(uuid4(), uuid4())
        self.feed = f"feed/{feed_id}"
        self.owner: Sink = harness.sink(worker_id=uuid4())
        self.person: Sink = harness.sink(role="cli")
        self.target = target or Target("raw", "json")
        self.left: UUID | None = None
        self.fence()

    def fence(self) -> Fenced:
        asked = FenceRequest(self.feed_id, self.feed, 1, self.target, self.identity)
        (outcome,) = self.owner.fence([asked], lock_timeout_s=PATIENCE_S)
        assert isinstance(outcome, Fenced), outcome
        self.left = outcome.commit_id
        return outcome

    def land(self, *numbers: int) -> str:
        records = [b'{"seq":%d}' % number for number in numbers]
        one = write(
            self.feed_id,
            1,
            batch(*records, cursor=numbers[-1]),
            target=self.target,
            continues=self.left,
        )
        written = self.owner.write([one])
        if written.landed:
            self.left = written.commit_id
        return "landed" if written.landed else "rewound" if written.rewound else "fenced"

    def change(self, cursor: Callable[[JSON], JSON] | int | None, *, judge: Judge = anybody) -> None:
        def choose(own: Checkpoint | None) -> StartCursor:
            assert own is not None
            return StartCursor(cursor(own.cursor) if callable(cursor) else cursor, own.records)

        self.person.change_checkpoint(
            CheckpointChange(self.feed_id, self.feed, self.identity, choose, judge=judge)
        )


def numbers_of(harness: RealHarness) -> list[int]:
    return [seq for (seq,) in harness.query("SELECT seq FROM orders ORDER BY seq")]


def test_an_owner_that_runs_writes_nothing_more_until_it_goes_on_from_the_new_cursor(
    harness: Harness,
) -> None:
    feed = Running(harness)
    assert feed.land(1, 2, 3) == "landed"
    feed.change(1)
    assert feed.land(4) == "rewound"
    assert (feed.fence().cursor, feed.person.checkpoints([FEED])[0].records) == (1, 3)
    assert feed.land(2, 3, 4) == "landed"


def test_the_cursor_is_chosen_from_the_one_that_is_there(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(10)
    seen: list[JSON] = []

    def back(before: JSON) -> JSON:
        seen.append(before)
        assert isinstance(before, int)
        return before - 3

    feed.change(back)
    feed.change(back)
    assert (seen, feed.fence().cursor) == ([10, 7], 4)


def test_a_change_that_is_refused_changes_nothing(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(1)

    def refuse(*_: object) -> Any:
        raise InvalidInput("no such cursor")

    with pytest.raises(InvalidInput, match="no such cursor"):
        feed.change(refuse)
    with pytest.raises(InvalidInput, match="no such cursor"):
        feed.change(0, judge=refuse)
    assert feed.land(2) == "landed"


def test_the_checkpoint_of_another_feed_is_left_alone(harness: Harness) -> None:
    feed = Running(harness)
    feed.land(1)
    feed.identity = replace(feed.identity, feed=uuid4())
    with pytest.raises(Conflict, match="checkpoint of another feed under its number"):
        feed.change(0)
    assert feed.land(2) == "landed"


# -- at once, and cut off ------------------------------------------------------------------------------


def test_changes_beside_a_busy_writer_leave_no_mix(real: RealHarness) -> None:
    """No number is missing, whatever the order in which commits and changes took the checkpoint."""
    feed = Running(real, target=SEQ)
    stop, failed = threading.Event(), list[BaseException]()

    def stream() -> None:
        at = 2
        try:
            while not stop.is_set() or at < 400:
                stop.wait(0.002)  # as a writer gathers; SQLite would let nobody else in
                with suppress(SinkUnavailable):  # another one's transaction was in the way for too long
                    if feed.land(at + 1, at + 2) == "landed":
                        at += 2
                    else:
                        cursor = feed.fence().cursor
                        assert isinstance(cursor, int)
                        at = cursor
        except BaseException as error:
            failed.append(error)

    def back(before: JSON) -> JSON:
        return max(0, before - 5) if isinstance(before, int) else 0

    feed.land(1, 2)
    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    for _ in range(8):
        feed.change(back)
    stop.set()
    thread.join(PATIENCE_S)
    assert (thread.is_alive(), failed) == (False, [])
    landed = numbers_of(real)
    assert landed == list(range(1, landed[-1] + 1))


@pytest.mark.parametrize(
    ("fault", "happened"), [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True), (Fault.STRAND, None)]
)
def test_a_change_whose_answer_is_lost_happened_or_not_and_says_so(
    postgres: Postgres, fault: Fault, happened: bool | None
) -> None:
    harness = PostgresSinkHarness(empty_database(postgres))
    feed = Running(harness)
    feed.land(*range(1, 6))
    feed.person = harness.sink(role="cli", url=harness.proxy.url)
    feed.person.checkpoints([])
    trap = harness.proxy.arm(fault, "COMMIT")
    with pytest.raises(SinkUnavailable, match="has the new cursor, or the one that it had; look again"):
        feed.change(2)
    trap.release()
    (found,) = harness.sink(role="cli").checkpoints([FEED])
    assert found.cursor in ((2, 5) if happened is None else (2,) if happened else (5,))
    assert feed.fence().cursor == found.cursor
    harness.close()
