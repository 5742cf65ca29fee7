"""Cursors that an operator changes while feeds stream: nothing lost, nothing twice, whoever is killed when."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from feedq.control.store.grants import Role
from tests.cluster import SINK_ROLE, Cluster, Place, feed, url_of, wait_until
from tests.proxy import Fault, PostgresProxy
from tests.source_process import Source

KEYED, PLAIN, BESIDE = "desk/keyed", "desk/plain", "desk/beside"
RATE = 1_000.0
BACK = 1_000
LIMIT_S = 40.0


class Bench:
    """A worker with three feeds under load, and the commands for them."""

    def __init__(self, cluster: Cluster, source: Source, proxy: PostgresProxy) -> None:
        self.cluster, self.source, self.proxy = cluster, source, proxy

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.feedq("feed", "cursor", *arguments, "--json"))

    def landed(self, name: str) -> tuple[int, int, int, int]:
        """Rows, different numbers, the smallest and the largest of them."""
        table, seq = ("keyed", "seq") if name == KEYED else ("landed", "(payload ->> 'seq')::bigint")
        (row,) = self.cluster.sql(
            f"SELECT count(*) AS rows, count(DISTINCT {seq}) AS different, coalesce(min({seq}), 0) AS first, "
            f"coalesce(max({seq}), 0) AS last FROM {table} WHERE feed = %s",
            (name,),
        )
        return row["rows"], row["different"], row["first"], row["last"]

    def wait_landed(self, name: str, number: int) -> None:
        wait_until(lambda: self.landed(name)[3] >= number, f"number {number} of {name} landed")

    def check(self, name: str) -> None:
        """Each number from the first to the last is there once."""
        rows, different, first, last = self.landed(name)
        assert (rows - different, last - first + 1 - different) == (0, 0)

    def changes(self, name: str) -> list[Any]:
        """What the history has of changes of its cursor, newest first."""
        rows = self.cluster.sql(
            "SELECT e.detail FROM feedq.event AS e JOIN feedq.feed AS f ON f.id = e.feed_id "
            "WHERE e.kind = 'cursor_changed' AND f.name = %s ORDER BY e.id DESC",
            (name,),
        )
        return [row["detail"] for row in rows]

    def asked_after(self, name: str) -> list[int | None]:
        """The cursors that the feed has begun its connections with."""
        return [one.cursor for one in self.source.connections() if one.feed == name]


@pytest.fixture(scope="module")
def bench(place: Place) -> Iterator[Bench]:
    with (
        PostgresProxy(place.database_url) as proxy,
        Source(rate=RATE) as source,
        place.cluster() as cluster,
    ):
        cluster.make("CREATE TABLE keyed (feed text, seq bigint, UNIQUE (feed, seq))")
        cluster.add_beat("b1")
        for worker in ("w1", "w2"):
            cluster.add_worker(worker)
        columns = {"feed": "$feed", "seq": "/seq"}
        keyed = {"table": "keyed", "columns": columns, "key": ["feed", "seq"]}
        cluster.apply(
            [feed(KEYED, source.url) | {"sink": keyed}, feed(PLAIN, source.url), feed(BESIDE, source.url)]
        )
        yield Bench(cluster, source, proxy)


def test_a_feed_that_is_rewound_under_load_lands_the_same_records_once(bench: Bench) -> None:
    bench.wait_landed(KEYED, 2 * BACK)
    done = bench.ask("rewind", KEYED, "--records", str(BACK), "--yes", "--wait")["change"]
    assert done["before"] - done["after"] == BACK
    bench.wait_landed(KEYED, done["before"] + BACK)
    # What was under way at that moment has not landed: the source was asked for all of it again.
    assert done["after"] in bench.asked_after(KEYED)
    bench.check(KEYED)
    (event,) = bench.changes(KEYED)
    said = (event["verb"], json.loads(event["before"]), json.loads(event["after"]))
    assert said == ("rewind", done["before"], done["after"])
    # Its owner may have noticed by a commit, before it was restarted: that is no sink that has gone back.
    assert bench.cluster.sql("SELECT 1 FROM feedq.event WHERE kind = 'sink_rewound'") == []


CLI, CLI_IN_SINK = "feedq-cli", "feedq-cli/"
STEPS = {
    "before it has the checkpoint": (CLI_IN_SINK, "SELECT feedq_checkpoint.feed_id"),
    "before the cursor is changed": (CLI_IN_SINK, "UPDATE feedq_checkpoint"),
    "before history knows": (CLI, "SELECT CAST(feedq_1.change_cursor"),
    "before the commit": (CLI_IN_SINK, "COMMIT"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_command_that_is_killed_leaves_the_old_cursor_or_the_new_one(bench: Bench, step: str) -> None:
    bench.wait_landed(KEYED, 2 * BACK)
    known = len(bench.changes(KEYED))
    sink, control = (url_of(bench.proxy.url, role) for role in (SINK_ROLE, Role.OPERATOR))
    application, statement = STEPS[step]
    trap = bench.proxy.arm(Fault.HOLD, statement, application=application)
    assert bench.cluster.nursery is not None
    log = bench.cluster.directory / "rewind.log"
    command = bench.cluster.nursery.fork(
        "feedq",
        ["feed", "cursor", "rewind", KEYED, "--records", str(BACK), "--yes"],
        env={**bench.cluster.env, "FEEDQ_DATABASE_URL": control, "FEEDQ_SINKS__DEFAULT": sink},
        cwd=bench.cluster.directory,
        output=log,
        errors=log,
    )
    assert trap.tripped.wait(LIMIT_S), "the step never came"
    os.kill(command.pid, signal.SIGKILL)
    command.wait(LIMIT_S)
    bench.proxy.disarm()
    bench.proxy.cut()
    _, _, _, last = bench.landed(KEYED)
    bench.wait_landed(KEYED, last + 2 * BACK)
    bench.check(KEYED)
    changes = bench.changes(KEYED)
    # One statement tells history: what the proxy held of it may still arrive when the command is dead.
    told = {"before history knows": (0, 1), "before the commit": (1,)}.get(step, (0,))
    assert len(changes) - known in told
    if len(changes) > known:
        # Whether or not the commit still arrived, the cursor to go back to is known.
        assert int(changes[0]["before"]) - int(changes[0]["after"]) == BACK
