"""Whose a checkpoint is: nobody gets one by a number or a name alone, in every kind of sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from feedq.core.model import JSON, Identity, StartCursor
from feedq.errors import Conflict
from feedq.local.postgres import Postgres
from feedq.sinks.base import Checkpoint, CheckpointChange, Fenced, FenceOutcome, FenceRequest, Sink, Unusable
from tests.contract.sink_harness import (
    MemoryHarness,
    PostgresSinkHarness,
    SqliteHarness,
    empty_database,
)
from tests.contract.sink_stage import PATIENCE_S, RAW, batch, write

Harness = PostgresSinkHarness | SqliteHarness | MemoryHarness


@pytest.fixture(params=["postgresql", "sqlite", "memory"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made: Harness
    if request.param == "sqlite":
        made = SqliteHarness(tmp_path / "sink.sqlite3")
    elif request.param == "memory":
        made = MemoryHarness()
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


class Installation:
    """One that declares feeds, each with a uuid of its own, and lands numbers."""

    def __init__(self, harness: Harness) -> None:
        self.id = uuid4()
        self.sink: Sink = harness.sink()

    def declare(self, feed_id: int, name: str) -> FenceRequest:
        return FenceRequest(feed_id, name, 1, RAW, Identity(uuid4(), self.id))

    def fence(self, feed: FenceRequest, *, epoch: int = 1) -> FenceOutcome:
        (outcome,) = self.sink.fence([replace(feed, epoch=epoch)], lock_timeout_s=PATIENCE_S)
        return outcome

    def land(self, feed: FenceRequest, cursor: int, *, continues: UUID | None = None, epoch: int = 1) -> str:
        one = replace(
            write(feed.feed_id, epoch, batch(b"%d" % cursor, cursor=cursor), continues=continues),
            feed=feed.feed,
        )
        written = self.sink.write([one])
        return "landed" if written.landed else "rewound" if written.rewound else "fenced"

    def known(self, *names: str) -> list[Checkpoint]:
        return self.sink.checkpoints(names or None)

    def adopt(self, feed: FenceRequest, old: Checkpoint) -> None:
        start = StartCursor(old.cursor, old.records)
        self.sink.change_checkpoint(
            CheckpointChange(feed.feed_id, feed.feed, feed.identity, lambda own: start, instead_of=old)
        )


def cursor_of(outcome: FenceOutcome) -> JSON:
    assert isinstance(outcome, Fenced), outcome
    return outcome.cursor


def why(outcome: FenceOutcome) -> str:
    assert isinstance(outcome, Unusable), outcome
    return outcome.error


def test_a_feed_finds_its_own_checkpoint_and_the_sink_says_whose_it_is(harness: Harness) -> None:
    ours = Installation(harness)
    feed = ours.declare(1, "acme/a")
    ours.fence(feed)
    ours.land(feed, 7)
    assert cursor_of(ours.fence(feed, epoch=2)) == 7
    (known,) = ours.known("acme/a")
    assert (known.feed_id, known.feed, known.epoch, known.cursor, known.records) == (1, "acme/a", 2, 7, 1)
    assert Identity(known.feed_uuid, known.installation) == feed.identity
    assert ours.known("acme/b") == []
    assert ours.known() == [known]


def test_a_number_that_another_feed_had_leads_to_no_checkpoint_of_its(harness: Harness) -> None:
    """A control database made anew gave out the same numbers: a new feed began at the cursor of another."""
    before, after = Installation(harness), Installation(harness)
    big = before.declare(1, "acme/big")
    before.fence(big)
    before.land(big, 318)
    said = why(after.fence(after.declare(1, "acme/new")))
    assert f"another feed under the number 1: feed 'acme/big' of installation {before.id}" in said
    assert before.land(big, 319) == "landed"


def test_a_name_that_another_installation_has_is_not_begun_beside_it(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs, ours = one.declare(1, "acme/a"), two.declare(2**40, "acme/a")
    one.fence(theirs)
    one.land(theirs, 5)
    for _ in range(2):
        said = why(two.fence(ours))
        assert f"feed 'acme/a' of installation {one.id} (1 records" in said
        assert f"this one is {two.id}" in said
        assert "feedq feed adopt acme/a" in said
    assert one.land(theirs, 6) == "landed"
    assert cursor_of(two.fence(two.declare(2**40 + 1, "acme/b"))) is None


def test_a_feed_declared_again_under_its_name_begins_anew(harness: Harness) -> None:
    ours = Installation(harness)
    first = ours.declare(1, "acme/a")
    ours.fence(first)
    ours.land(first, 5)
    second = ours.declare(2, "acme/a")
    assert cursor_of(ours.fence(second)) is None
    assert [known.cursor for known in ours.known("acme/a") if known.feed_id == 1] == [5]


def test_a_checkpoint_that_is_adopted_goes_on_and_its_old_owner_stops(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs, ours = one.declare(1, "acme/a"), two.declare(2, "acme/a")
    fenced = one.fence(theirs)
    assert isinstance(fenced, Fenced)
    one.land(theirs, 5)
    (old,) = two.known("acme/a")
    two.adopt(ours, old)
    assert cursor_of(two.fence(ours)) == 5
    assert two.land(ours, 6) == "landed"
    assert one.land(theirs, 6, continues=fenced.commit_id) == "rewound"
    assert f"installation {two.id}" in why(one.fence(theirs))
    (now,) = two.known("acme/a")
    assert (now.feed_id, now.cursor, now.records) == (2, 6, 2)


def test_a_checkpoint_that_is_written_to_meanwhile_is_not_adopted(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs, ours = one.declare(1, "acme/a"), two.declare(2, "acme/a")
    one.fence(theirs)
    one.land(theirs, 5)
    (old,) = two.known("acme/a")
    one.land(theirs, 6)
    with pytest.raises(Conflict, match="is written to at this moment"):
        two.adopt(ours, old)
    assert [known.feed_id for known in two.known("acme/a")] == [1]


def test_an_owner_that_runs_goes_on_from_the_checkpoint_that_it_is_given(harness: Harness) -> None:
    ours = Installation(harness)
    first, second = ours.declare(1, "acme/a"), ours.declare(2, "acme/a")
    ours.fence(first)
    ours.land(first, 5)
    running = ours.fence(second, epoch=3)
    assert isinstance(running, Fenced)
    (old,) = [known for known in ours.known("acme/a") if known.feed_id == 1]
    ours.adopt(second, old)
    assert ours.land(second, 1, continues=running.commit_id, epoch=3) == "rewound"
    assert cursor_of(ours.fence(second, epoch=3)) == 5


def test_a_feed_is_given_a_cursor_before_it_has_begun(harness: Harness) -> None:
    ours = Installation(harness)
    feed = ours.declare(1, "acme/a")
    start = StartCursor({"at": 2**70}, 4)
    ours.sink.change_checkpoint(CheckpointChange(1, "acme/a", feed.identity, lambda own: start))
    assert ours.fence(feed) == Fenced(1, 1, {"at": 2**70}, 4)


def test_many_feeds_are_told_apart_at_once(harness: Harness) -> None:
    one, two = Installation(harness), Installation(harness)
    theirs = [one.declare(n, f"f/{n}") for n in range(1, 1_201)]
    one.sink.fence(theirs, lock_timeout_s=PATIENCE_S)
    ours = [two.declare(10_000 + n, f"f/{n if n % 2 else -n}") for n in range(1, 1_201)]
    outcomes = {o.feed_id: o for o in two.sink.fence(ours, lock_timeout_s=PATIENCE_S)}
    assert [n for n in range(1, 1_201) if isinstance(outcomes[10_000 + n], Unusable)] == list(
        range(1, 1_201, 2)
    )
