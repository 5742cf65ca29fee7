"""The judge of the chaos tests: a table that lost, doubled or mixed up a record must not pass."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, wait_until
from tests.invariants import check_invariants
from tests.source import Connection, overlaps
from tests.source_process import Source

RECORDS = 20


@pytest.fixture
def witnesses(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[tuple[Cluster, Source]]:
    """A source that sent 20 records and went silent, and a table that holds all of them."""
    with (
        Source(rate=200) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url, migrate=False) as cluster,
    ):
        with socket.create_connection(("127.0.0.1", source.port), timeout=10) as reader:
            reader.sendall(b'{"feed": "one", "from": null}\n')
            lines = reader.makefile("rb")
            records = [json.loads(lines.readline()) for _ in range(RECORDS)]
            source.behave("silent")
            lines.close()
        # It may have sent some more before it was told to stop.
        records += [{"feed": "one", "seq": n} for n in range(RECORDS + 1, source.sent()["one"] + 1)]
        cluster.sql("CREATE TABLE landed (feed text, epoch bigint, payload jsonb)")
        for record in records:
            cluster.sql("INSERT INTO landed VALUES ('one', 1, %s)", (json.dumps(record),))
        yield cluster, source


def test_a_whole_table_passes(witnesses: tuple[Cluster, Source]) -> None:
    check_invariants(*witnesses, ["one"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM landed WHERE payload->>'seq' = '7'", "lost"),
        ("DELETE FROM landed WHERE payload->>'seq' = '1'", "lost"),
        ("INSERT INTO landed SELECT * FROM landed WHERE payload->>'seq' = '7'", "doubled"),
        ("UPDATE landed SET feed = 'two' WHERE payload->>'seq' = '7'", "lost"),
        ('INSERT INTO landed VALUES (\'two\', 1, \'{"feed": "one", "seq": 1}\')', "another feed's name"),
        ("UPDATE landed SET epoch = 2 WHERE payload->>'seq' = '7'", "superseded"),
    ],
)
def test_damage_is_found_and_named(witnesses: tuple[Cluster, Source], damage: str, said: str) -> None:
    cluster, source = witnesses
    cluster.sql(damage)
    with pytest.raises(AssertionError, match=said):
        check_invariants(cluster, source, ["one"])


def test_two_readers_of_one_feed_are_found(witnesses: tuple[Cluster, Source]) -> None:
    cluster, source = witnesses
    hello = b'{"feed": "one", "from": %d}\n' % source.sent()["one"]
    readers = [socket.create_connection(("127.0.0.1", source.port), timeout=10) for _ in range(2)]
    try:
        for reader in readers:
            reader.sendall(hello)
        wait_until(source.overlaps, "the source sees both", limit_s=10)
        with pytest.raises(AssertionError, match="two live connections"):
            check_invariants(cluster, source, ["one"])
    finally:
        for reader in readers:
            reader.close()


def _connection(number: int, begin: float, end: float | None) -> Connection:
    return Connection(number, feed="f", hello_at=begin, closed_at=end)


def test_streams_that_follow_each_other_do_not_overlap() -> None:
    assert overlaps([_connection(1, 0, 1), _connection(2, 1, 2), _connection(3, 5, None)]) == []


def test_an_overlap_is_found_even_behind_a_short_stream() -> None:
    long, short, late = _connection(1, 0, 10), _connection(2, 1, 2), _connection(3, 9, None)
    assert overlaps([long, short, late]) == [(long, short), (long, late)]
    assert overlaps([long, short, late], ignored=[1]) == []
