"""`feedq feed dead-letters`: which records it takes, how many at once, and where it ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import uuid4

import orjson
import pytest
from click.testing import CliRunner, Result

from feedq.cli import main
from feedq.cli.dead_letters import AT_ONCE, BYTES_AT_ONCE
from feedq.cli.invocation import Invocation
from feedq.errors import SinkUnavailable
from feedq.model import Batch, FeedSpec
from feedq.sinks.base import FeedWrite, FenceRequest, Landing, Replayed
from tests.fakes import ManualClock, MemoryStore
from tests.fakes.sink import MemorySink, MemoryTables
from tests.unit.data_path import AT

NAME = "acme/orders"


class WatchedSink(MemorySink):
    """Tells what was replayed together, and may act in between."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__("memory://", environment="default", worker_id=uuid4(), role="cli", tables=tables)
        self.parts: list[list[int]] = []
        self.refuse_more = False
        self.away_at: int | None = None

    def replay(self, ids: Collection[int], landing: Landing) -> Replayed:
        self.parts.append(sorted(ids))
        if len(self.parts) == self.away_at:
            raise SinkUnavailable("sink (in memory): away")
        if self.refuse_more:
            self.bury(NAME, 1, b"poison again")
        return super().replay(ids, landing)

    def bury(self, feed: str, feed_id: int, *records: bytes) -> None:
        self.fence([FenceRequest(feed_id, feed, 1, Landing("t", "json"))], lock_timeout_s=0)
        batch = Batch.of_records(records, cursor=None, received_at=AT)
        self.write([FeedWrite(feed_id, feed, 1, Landing("t", "json"), (batch,))])


class Desk:
    """The command, on a sink with dead letters."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.tables.poison = b"poison"
        self.sink = WatchedSink(self.tables)
        self.store = MemoryStore(ManualClock())
        for name in (NAME, "acme/other"):
            self.store.feeds.add(FeedSpec(name, "tcp", {"url": "tcp://127.0.0.1:1"}, {"table": "t"}))

    def run(self, verb: str, *arguments: str) -> Result:
        invocation = Invocation(injected_store=self.store, injected_sinks={"default": self.sink})
        return CliRunner().invoke(main, ["feed", "dead-letters", verb, NAME, *arguments], obj=invocation)

    def json(self, verb: str, *arguments: str) -> Any:
        return orjson.loads(self.run(verb, *arguments, "--json").stdout)

    @property
    def left(self) -> list[int]:
        return [letter.id for letter in self.tables.dead]


@pytest.fixture
def lease_client() -> Desk:
    return Desk()


def test_a_replay_of_all_ends_although_the_feed_goes_on_being_refused(lease_client: Desk) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 25)
    lease_client.tables.poison = b"again"
    lease_client.sink.refuse_more = True
    assert lease_client.json("replay", "--all") == {
        "name": NAME,
        "landed": 25,
        "refused": {},
        "passed_over": 0,
    }
    assert len(lease_client.left) == len(lease_client.sink.parts)


def test_a_drop_of_all_leaves_what_was_refused_since(lease_client: Desk) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 25)
    listed = lease_client.sink.dead_letters

    def dead_letters(*arguments: Any, **more: Any) -> Any:
        found = listed(*arguments, **more)
        lease_client.sink.bury(NAME, 1, b"poison")
        return found

    lease_client.sink.dead_letters = dead_letters  # type: ignore[method-assign] # refused whenever somebody looks
    assert lease_client.json("drop", "--all", "--yes") == {"name": NAME, "dropped": 25}
    assert min(lease_client.left) > 25


@pytest.mark.parametrize("named", [False, True])
def test_large_records_are_replayed_few_at_a_time_and_small_ones_many(
    lease_client: Desk, named: bool
) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison" + b"x" * (BYTES_AT_ONCE // 3)] * 20)
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 500)
    lease_client.tables.poison = None
    chosen = [str(letter_id) for letter_id in lease_client.left] if named else ["--all"]
    assert lease_client.json("replay", *chosen)["landed"] == 520
    assert [id_ for part in lease_client.sink.parts for id_ in part] == list(range(1, 521))
    sizes = [len(part) for part in lease_client.sink.parts]
    # How large the first are nobody can know.
    assert max(sizes[1:6]) <= 3
    assert max(sizes) == AT_ONCE
    assert len(sizes) < 25


def test_letters_are_named_by_id_and_those_of_another_feed_are_none_of_its(lease_client: Desk) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 3)
    lease_client.sink.bury("acme/other", 2, b"poison")
    lease_client.tables.poison = None
    ran = lease_client.run("replay", "2", "4", "1", "77")
    assert ran.exit_code == 2
    assert ran.stderr == f"Error: {NAME} has no dead letter 4, 77\n"
    assert lease_client.sink.parts == []
    assert lease_client.json("replay", "2", "1", "2") == {
        "name": NAME,
        "landed": 2,
        "refused": {},
        "passed_over": 0,
    }
    assert lease_client.left == [3, 4]


@pytest.mark.parametrize("verb", ["show", "replay", "drop"])
@pytest.mark.parametrize("letter_id", ["0", "-1", str(2**63), "x"])
def test_an_id_that_can_be_none_is_a_usage_error(lease_client: Desk, verb: str, letter_id: str) -> None:
    ran = lease_client.run(verb, "--", letter_id)
    assert ran.exit_code == 2
    assert "Invalid value" in ran.stderr


@pytest.mark.parametrize("arguments", [(), ("1", "--all")])
def test_ids_or_all_and_not_both(lease_client: Desk, arguments: tuple[str, ...]) -> None:
    ran = lease_client.run("replay", *arguments)
    assert ran.exit_code == 2
    assert ran.stderr == "Error: name the ids of dead letters, or say --all\n"


def test_all_of_none_is_none(lease_client: Desk) -> None:
    assert lease_client.json("replay", "--all") == {
        "name": NAME,
        "landed": 0,
        "refused": {},
        "passed_over": 0,
    }
    assert lease_client.json("drop", "--all", "--yes") == {"name": NAME, "dropped": 0}


def test_a_sink_that_goes_away_midway_leaves_no_doubt_how_far_it_went(lease_client: Desk) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 300)
    lease_client.tables.poison = None
    lease_client.sink.away_at = 3
    ran = lease_client.run("replay", "--all")
    assert ran.exit_code == 1
    assert ran.stderr == "Error: sink (in memory): away; 30 had landed before\n"
    assert len(lease_client.left) == 270


def test_letters_that_somebody_else_is_at_are_counted(lease_client: Desk) -> None:
    lease_client.sink.bury(NAME, 1, *[b"poison"] * 3)
    lease_client.tables.poison = None
    replay = lease_client.sink.replay

    def second(ids: Collection[int], landing: Landing) -> Replayed:
        replay([2], landing)
        return replay(ids, landing)

    lease_client.sink.replay = second  # type: ignore[method-assign] # the other one was quicker with one of them
    ran = lease_client.run("replay", "--all")
    assert ran.exit_code == 0
    assert ran.stdout.splitlines() == [
        f"{NAME}: 2 landed, 0 refused again",
        "  1 passed over: somebody else is at them, or has just dealt with them",
    ]
