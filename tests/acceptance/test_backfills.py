"""Backfills beside the live stream: each record once, whoever is killed, frozen or cancelled when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from feedq.local.valkey import Valkey
from tests.cluster import Cluster, Place, feed, wait_until
from tests.node import Node
from tests.source_process import Source

LIVE = "desk/live"
CHILD = f"{LIVE}~backfill"
RATE = 4_000.0
PAST = 20_000


class Desk:
    """Two workers with a feed under load, and the commands for its backfill."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq("feed", "backfill", *arguments, "--json"))

    def rows(self, upto: int) -> tuple[int, int, int]:
        """Rows up to a number, different ones, and those that say to be of another feed."""
        (row,) = self.cluster.sql(
            "SELECT count(*) AS rows, count(DISTINCT seq) AS different, "
            "count(*) FILTER (WHERE feed <> %s) AS foreign FROM keyed WHERE seq <= %s",
            (LIVE, upto),
        )
        return row["rows"], row["different"], row["foreign"]

    def last(self) -> int:
        (row,) = self.cluster.sql("SELECT coalesce(max(seq), 0) AS last FROM keyed")
        return int(row["last"])

    def forget(self) -> int:
        """Have the table lose all that it has; returns how far that goes."""
        wait_until(lambda: self.last() >= PAST, f"{PAST} landed")
        upto = self.last()
        self.cluster.sql("DELETE FROM keyed WHERE seq <= %s", (upto,))
        return upto

    def wait_landed(self, upto: int, count: int) -> None:
        wait_until(lambda: self.rows(upto)[0] >= count, f"{count} landed again")

    def wait_ended(self) -> Any:
        wait_until(lambda: self.ask("show", LIVE)["ended_at"], "it has ended")
        wait_until(lambda: CHILD not in self.cluster.leases(), "it is gone")
        return self.ask("show", LIVE)

    def owner(self) -> Node:
        worker = self.cluster.leases()[CHILD].worker
        assert worker is not None
        return self.cluster.workers[worker.partition("@")[0]]


@pytest.fixture(scope="module")
def desk(place: Place) -> Iterator[Desk]:
    env = {"FEEDQ_HANDOFF_TIMEOUT_S": "2"}
    with (
        Source(rate=RATE) as source,
        place.cluster(env=env) as cluster,
    ):
        cluster.make("CREATE TABLE keyed (feed text, seq bigint, UNIQUE (feed, seq))")
        cluster.add_beat("b1")
        cluster.add_workers(("w1", "w2"))
        keyed = {"table": "keyed", "columns": {"feed": "$feed", "seq": "/seq"}, "key": ["feed", "seq"]}
        cluster.apply([feed(LIVE, source.url) | {"sink": keyed}])
        yield Desk(cluster)


def test_what_is_missing_lands_once_although_its_worker_is_killed_twice(desk: Desk) -> None:
    upto = desk.forget()
    asked = ("begin", LIVE, "--from", "0", "--to", str(upto), "--rows-per-s", "4000", "--key", "once")
    begun = desk.ask(*asked)
    assert (begun["begins_after"], begun["ends_at"], begun["limit_rows_per_s"]) == (0, upto, 4_000.0)
    refused = desk.cluster.run("feed", "backfill", "begin", LIVE, "--from", "0")
    assert (refused.returncode, "has a backfill already" in refused.stderr) == (1, True)
    for part in (4, 2):
        desk.wait_landed(upto, upto // part)
        desk.owner().end()
        desk.cluster.heal(workers=("w1", "w2"))
    ended = desk.wait_ended()
    assert (ended["status"], ended["records"]) == ("finished", upto)
    assert desk.rows(upto) == (upto, upto, 0)
    assert desk.ask(*asked)["ended_at"] == ended["ended_at"]
    assert CHILD not in desk.cluster.leases()
    # The live stream went on beside it, and nothing of it is missing.
    last = desk.last()
    assert last > upto
    assert desk.rows(last) == (last, last, 0)


def lands_between(
    cluster: Cluster,
    connector: str,
    source: dict[str, Any],
    send: Callable[[range], Sequence[str]],
    *,
    beyond: str,
) -> None:
    """What lies between two cursors lands once more, beside a live stream that goes on. ``send`` adds records and
    returns their cursors, as people type them."""
    name, table = f"desk/{connector}", f"{connector}_keyed"
    cluster.make(f"CREATE TABLE {table} (seq bigint UNIQUE, feed text)")
    sink = {"table": table, "columns": {"seq": "/seq", "feed": "$feed"}, "key": ["seq"]}
    cluster.apply([{"name": name, "connector": connector, "source": source, "sink": sink}])

    def landed() -> list[tuple[int, str]]:
        return [
            (row["seq"], row["feed"]) for row in cluster.sql(f"SELECT seq, feed FROM {table} ORDER BY seq")
        ]

    cursors = send(range(1, 4_001))
    wait_until(lambda: len(landed()) == 4_000, lambda: f"4,000 rows, not {len(landed())}")
    epochs = cluster.epochs([name])
    cluster.sql(f"DELETE FROM {table}")
    asked = ("--from", cursors[999], "--to", cursors[2_999], "--rows-per-s", "2000")
    cluster.feedq("feed", "backfill", "begin", name, *asked)
    send(range(4_001, 4_501))

    def shown() -> Any:
        return json.loads(cluster.feedq("feed", "backfill", "show", name, "--json"))

    wait_until(lambda: shown()["ended_at"], lambda: f"its end: {shown()}")
    assert (shown()["status"], shown()["records"]) == ("finished", 2_000)
    wanted = [(seq, name) for seq in (*range(1_001, 3_001), *range(4_001, 4_501))]
    wait_until(lambda: landed() == wanted, lambda: f"2,500 rows, not {len(landed())}")
    assert cluster.epochs([name]) == epochs, "the live stream went on"

    # An end that nothing has come to yet is where the feed stands.
    cluster.feedq("feed", "backfill", "begin", name, "--from", cursors[3_499], "--to", beyond)
    wait_until(lambda: shown()["ended_at"] and shown()["records"] == 1_000, lambda: f"{shown()}")
    assert [seq for seq, _ in landed()] == [*range(1_001, 3_001), *range(3_501, 4_501)]


def test_what_lies_between_two_ids_of_a_redis_stream_lands_again(desk: Desk, valkey: Valkey) -> None:
    with valkey.client(9) as client:
        client.flushdb()
        client.execute_command("ACL", "SETUSER", "anybody", "on", "nopass", "+@all", "~*")

        def send(numbers: range) -> list[str]:
            with client.pipeline() as pipeline:
                for seq in numbers:
                    pipeline.xadd("orders", {"seq": str(seq)})
                return [found.decode() for found in pipeline.execute()]

        url = f"redis://127.0.0.1:{valkey.port}/9"
        source = {"url": url, "streams": ["orders"], "username": "anybody"}
        lands_between(desk.cluster, "redis", source, send, beyond="9999999999999-0")
