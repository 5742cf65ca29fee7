"""Refused records and feeds that are only tried out, as an operator deals with them on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import Cluster, Place, feed, wait_until
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

NAME = "desk/typed"
REFUSED = 20


class Bench:
    """A cluster with one feed whose table refuses every record, and the commands for it."""

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self.cluster = cluster
        self.source = source

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq("feed", *arguments, "--json"))

    def sequence(self, table: str) -> list[int]:
        return [row["seq"] for row in self.cluster.sql(f"SELECT seq FROM {table} ORDER BY seq")]


@pytest.fixture(scope="module")
def bench(place: Place) -> Iterator[Bench]:
    with (
        Source(rate=50) as source,
        place.cluster() as cluster,
    ):
        cluster.make("CREATE TABLE typed (seq bigint, pad date)")
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        sink = {"table": "typed", "columns": {"seq": "/seq", "pad": "/pad"}}
        cluster.apply([feed(NAME, source.url) | {"sink": sink}])
        wait_until(
            lambda: cluster.leases()[NAME].dead_letters_total >= REFUSED, limit_s=40, what="records refused"
        )
        cluster.feedq("feed", "pause", NAME, "--wait")
        yield Bench(cluster, source)


def test_refused_records_are_listed_and_shown_with_the_reason(bench: Bench) -> None:
    listed = bench.ask("dead-letters", "list", NAME, "--limit", "5")
    assert len(listed) == 5
    assert listed[0]["id"] > listed[-1]["id"]
    assert 'column "pad"' in listed[0]["error"] or "type date" in listed[0]["error"]
    assert json.loads(listed[0]["record"])["seq"] >= REFUSED
    assert bench.ask("dead-letters", "list", NAME, str(listed[2]["id"])) == [listed[2]]
    table = bench.cluster.feedq("feed", "dead-letters", "list", NAME)
    assert str(listed[0]["id"]) in table


def test_a_replay_lands_what_the_mended_table_takes_and_keeps_the_rest(bench: Bench) -> None:
    before = bench.ask("dead-letters", "list", NAME, "--limit", "10000")
    first, second = sorted(letter["id"] for letter in before)[:2]
    ran = bench.cluster.run("feed", "dead-letters", "replay", NAME, str(first), "--json")
    assert ran.returncode == 1, "the table has not been mended yet"
    assert json.loads(ran.stdout)["landed"] == 0
    assert bench.sequence("typed") == []

    bench.cluster.sql("ALTER TABLE typed ALTER COLUMN pad TYPE text")
    assert bench.ask("dead-letters", "drop", NAME, str(second), "--yes")["dropped"] == 1
    # Two at once: between them each record lands once.
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda _: bench.ask("dead-letters", "replay", NAME, "--all"), range(2)))
    assert sum(report["landed"] for report in done) == len(before) - 1
    dropped = next(json.loads(letter["record"])["seq"] for letter in before if letter["id"] == second)
    expected = sorted(json.loads(letter["record"])["seq"] for letter in before)
    expected.remove(dropped)
    assert bench.sequence("typed") == expected
    assert bench.ask("dead-letters", "list", NAME) == []
    # None is left, and nothing goes on asking for a replay.
    assert bench.ask("list", "--dead-letters") == []
    assert "dead letter" not in bench.cluster.feedq("feed", "show", NAME)
    assert "dead letter" not in bench.cluster.feedq("status", "--problems")
    lease = bench.ask("show", NAME)["view"]["lease"]
    assert (lease["dead_letters"], lease["dead_letters_total"] >= REFUSED) == (0, True)
