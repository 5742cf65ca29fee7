"""`feedq feed dead-letters`: which records it takes, how many at once, and where it ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import uuid4

import pytest

from feedq.errors import SinkUnavailable
from feedq.records.batch import Records
from feedq.sinks.base import FeedWrite, FenceRequest, Judge, Replayed, Target, anybody
from feedq.telemetry.event_names import EventKind
from feedq.verbs.landing import AT_ONCE
from tests.asking import events_of
from tests.fakes.sink import IDENTITY, FaultySink, SinkFile
from tests.unit.command import Command
from tests.unit.data_path import AT

pytestmark = pytest.mark.usefixtures("control")

NAME = "acme/orders"
POISON = b'"poison"'


class WatchedSink(FaultySink):
    """Tells what was replayed together, and may act in between."""

    def __init__(self, file: SinkFile) -> None:
        super().__init__(file, uuid4(), role="cli")
        self.parts: list[list[int]] = []
        self.refuse_more = False
        self.away_at: int | None = None

    def replay(self, ids: Collection[int], target: Target, *, judge: Judge = anybody) -> Replayed:
        self._begin(ids)
        if self.refuse_more:
            self.write_dead_letters(NAME, 1, b'"poison again"')
        return super().replay(ids, target, judge=judge)

    def drop(self, ids: Collection[int], *, judge: Judge = anybody) -> int:
        self._begin(ids)
        return super().drop(ids, judge=judge)

    def _begin(self, ids: Collection[int]) -> None:
        self.parts.append(sorted(ids))
        if len(self.parts) == self.away_at:
            raise SinkUnavailable("sink (for the test): away")

    def write_dead_letters(self, feed: str, feed_id: int, *records: bytes) -> None:
        self.fence([FenceRequest(feed_id, feed, 1, Target("t", "json"), IDENTITY)], lock_timeout_s=0)
        batch = Records(records=tuple(records)).batch(cursor=None, received_at=AT)
        self.write([FeedWrite(feed_id, feed, 1, Target("t", "json"), (batch,))])


class Bench(Command):
    """The command, on a sink with dead letters."""

    def __init__(self) -> None:
        self.file = SinkFile(environment="default", poison=b"poison")
        self.sink = WatchedSink(self.file)
        super().__init__(self.sink)
        for name in (NAME, "acme/other"):
            self.feed(name)

    def letters(self, verb: str, *arguments: str) -> Any:
        return self.json("feed", "dead-letters", verb, NAME, *arguments)

    def told(self, kind: EventKind) -> list[Any]:
        told = (event.detail for event in events_of(self.store, NAME) if event.kind == kind)
        return [{key: value for key, value in detail.items() if key != "by"} for detail in told]

    @property
    def left(self) -> list[int]:
        return [letter.id for letter in self.file.dead]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_replay_of_all_ends_although_the_feed_goes_on_being_refused(bench: Bench) -> None:
    bench.sink.write_dead_letters(NAME, 1, *[POISON] * 25)
    bench.file.poison = b"again"
    bench.sink.refuse_more = True
    assert bench.letters("replay", "--all") == {
        "name": NAME,
        "landed": 25,
        "refused": {},
        "passed_over": 0,
        "dry_run": False,
    }
    assert len(bench.left) == len(bench.sink.parts)


def test_a_drop_of_all_leaves_what_was_refused_since(bench: Bench) -> None:
    bench.sink.write_dead_letters(NAME, 1, *[POISON] * 25)
    listed = bench.sink.dead_letters

    def dead_letters(*arguments: Any, **more: Any) -> Any:
        found = listed(*arguments, **more)
        bench.sink.write_dead_letters(NAME, 1, POISON)
        return found

    bench.sink.dead_letters = dead_letters  # type: ignore[method-assign] # refused whenever somebody looks
    assert bench.letters("drop", "--all", "--yes") == {"name": NAME, "dropped": 25, "dry_run": False}
    assert min(bench.left) > 25


@pytest.mark.parametrize("named", [False, True])
def test_all_are_replayed_oldest_first_and_some_at_a_time(bench: Bench, named: bool) -> None:
    bench.sink.write_dead_letters(NAME, 1, *[POISON] * 45)
    bench.file.poison = None
    chosen = [str(letter_id) for letter_id in bench.left] if named else ["--all"]
    assert bench.letters("replay", *chosen)["landed"] == 45
    assert [id_ for part in bench.sink.parts for id_ in part] == list(range(1, 46))
    assert max(map(len, bench.sink.parts)) == AT_ONCE


def test_letters_are_named_by_id_and_those_of_another_feed_are_none_of_its(bench: Bench) -> None:
    bench.sink.write_dead_letters(NAME, 1, *[POISON] * 3)
    bench.sink.write_dead_letters("acme/other", 2, POISON)
    bench.file.poison = None
    refused = bench.refused("feed", "dead-letters", "replay", NAME, "2", "4", "1", "77")
    assert refused == f"Error: {NAME} has no dead letter 4, 77\n"
    assert bench.sink.parts == []
    assert bench.letters("replay", "2", "1", "2") == {
        "name": NAME,
        "landed": 2,
        "refused": {},
        "passed_over": 0,
        "dry_run": False,
    }
    assert bench.left == [3, 4]


def test_a_sink_that_goes_away_midway_leaves_no_doubt_how_far_it_went(bench: Bench) -> None:
    bench.sink.write_dead_letters(NAME, 1, *[POISON] * 300)
    bench.file.poison = None
    bench.sink.away_at = 3
    refused = bench.refused("feed", "dead-letters", "replay", NAME, "--all", status=1)
    assert refused == "Error: sink (for the test): away; 40 had landed before\n"
    assert len(bench.left) == 260
    assert bench.told(EventKind.DEAD_LETTERS_REPLAYED) == [{"landed": 40, "refused": 0}]
