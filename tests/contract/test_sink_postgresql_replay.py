"""Dead letters tried again on PostgreSQL, and previews: what only this database can do to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from feedq.connectors.base import ConnectorOptions
from feedq.errors import SinkUnavailable
from feedq.local.postgres import Postgres
from feedq.sinks.base import Target, parse_sink, target_of
from tests.contract.sink_harness import (
    PATIENCE_S,
    PostgresSinkHarness,
    batch,
    empty_database,
    fence,
    write,
)
from tests.proxy import Fault


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


def typed(**more: object) -> Target:
    sink = parse_sink({"table": "typed", "columns": {"n": "/n"}, **more})
    return target_of(sink, ConnectorOptions())


def refused(harness: PostgresSinkHarness, target: Target, *records: bytes) -> list[int]:
    """Ids of dead letters with these records, in that order: the table took none of them."""
    sink = harness.sink()
    harness.query("ALTER TABLE typed ADD CONSTRAINT none CHECK (false)")
    fence(sink, 1, 1, target)
    sink.write([write(1, 1, batch(*records), target=target)])
    harness.query("ALTER TABLE typed DROP CONSTRAINT none")
    letters = sink.dead_letters()
    return [letter.id for letter in sorted(letters, key=lambda x: (records.index(x.record), x.id))]


def numbers(harness: PostgresSinkHarness) -> list[int]:
    return [n for (n,) in harness.query("SELECT n FROM typed ORDER BY n")]


def test_a_constraint_that_is_deferred_keeps_back_only_the_records_that_violate_it(
    harness: PostgresSinkHarness,
) -> None:
    harness.query("CREATE TABLE known (n bigint PRIMARY KEY); INSERT INTO known VALUES (1), (3)")
    harness.query("CREATE TABLE typed (n bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
    target = typed()
    ids = refused(harness, target, b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    replayed = harness.sink().replay(ids, target)
    assert (replayed.landed, list(replayed.refused)) == (2, [ids[1]])
    assert "is not present in table" in replayed.refused[ids[1]]
    assert numbers(harness) == [1, 3]


def test_a_replay_into_a_table_with_a_key_lands_each_key_once(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE typed (n bigint UNIQUE)")
    target = typed(key=["n"])
    ids = refused(harness, target, b'{"n": 1}', b'{"n": 1}', b'{"n": 2}', b'{"n": "x"}')
    harness.query("INSERT INTO typed VALUES (2)")
    replayed = harness.sink().replay(ids, target)
    assert (replayed.landed, list(replayed.refused)) == (3, ids[-1:])
    assert numbers(harness) == [1, 2]
    assert [letter.id for letter in harness.sink().dead_letters()] == ids[-1:]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize(
    "statement",
    ["SELECT feedq_dead_letter.id", "SAVEPOINT", "COPY", "DELETE", "UPDATE feedq_dead_letter", "COMMIT"],
)
def test_broken_off_anywhere_a_replay_loses_nothing_and_lands_nothing_twice(
    harness: PostgresSinkHarness, fault: Fault, statement: str
) -> None:
    harness.query("CREATE TABLE typed (n bigint)")
    target = typed()
    ids = refused(harness, target, b'{"n": 1}', b'{"n": "x"}', b'{"n": 2}')
    sink = harness.sink(url=harness.proxy.url)
    trap = harness.proxy.arm(fault, statement)
    give_up_at = time.monotonic() + PATIENCE_S
    while not (trap.tripped.is_set() and len(harness.sink().dead_letters()) == 1):
        assert time.monotonic() < give_up_at
        # The session that was cut off may hold the letters for a moment still.
        with suppress(SinkUnavailable):
            sink.replay(ids, target)
    assert numbers(harness) == [1, 2]
    assert [letter.record for letter in harness.sink().dead_letters()] == [b'{"n": "x"}']


def test_a_letter_of_many_megabytes_is_replayed(harness: PostgresSinkHarness) -> None:
    harness.query("CREATE TABLE typed (n text)")
    target = typed()
    record = b'{"n": "%s"}' % (b"x" * 2_500_000)
    ids = refused(harness, target, record)
    assert harness.sink().replay(ids, target).landed == 1
    assert harness.query("SELECT length(n) FROM typed") == [(2_500_000,)]
