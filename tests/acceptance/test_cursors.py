"""Cursors that an operator changes while feeds stream: nothing lost, nothing twice, whoever is killed when."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from feedq.store.grants import Role
from tests.cluster import SINK_ROLE, Cluster, Place, feed, url_of, wait_until
from tests.proxy import Fault, PostgresProxy
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

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
        wait_until(
            lambda: self.landed(name)[3] >= number, limit_s=LIMIT_S, what=f"number {number} of {name} landed"
        )

    def check(self, name: str) -> None:
        """Each number from the first to the last is there once."""
        rows, different, first, last = self.landed(name)
        assert (rows - different, last - first + 1 - different) == (0, 0)

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
        cluster.sql("CREATE TABLE keyed (feed text, seq bigint, UNIQUE (feed, seq))")
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
    done = bench.ask("rewind", KEYED, "--records", str(BACK), "--yes", "--wait")
    assert done["before"] - done["after"] == BACK
    bench.wait_landed(KEYED, done["before"] + BACK)
    # What was under way at that moment has not landed: the source was asked for all of it again.
    assert done["after"] in bench.asked_after(KEYED)
    bench.check(KEYED)
    (event,) = [
        row["detail"]
        for row in bench.cluster.sql("SELECT detail FROM feedq.event WHERE kind = 'cursor_changed'")
    ]
    assert (event["verb"], event["before"], event["after"]) == ("rewind", done["before"], done["after"])
    (kept,) = bench.ask("history", KEYED)
    assert (kept["before"], kept["after"]) == (done["before"], done["after"])


def test_rows_that_are_deleted_with_it_land_anew_and_other_feeds_keep_theirs(bench: Bench) -> None:
    bench.wait_landed(PLAIN, 2 * BACK)
    epochs = bench.cluster.epochs([BESIDE])
    tried = bench.ask("rewind", PLAIN, "--records", str(BACK), "--delete", "--dry-run")
    assert (tried["dry_run"], tried["deleted"]) == (True, BACK)
    done = bench.ask("rewind", PLAIN, "--records", str(BACK), "--delete", "--yes", "--wait")
    assert done["deleted"] == BACK
    bench.wait_landed(PLAIN, done["before"] + BACK)
    for name in (PLAIN, BESIDE):
        bench.check(name)
    assert bench.cluster.epochs([BESIDE]) == epochs
    refused = bench.cluster.run("feed", "cursor", "undo", PLAIN, "--yes")
    assert refused.returncode == 1
    assert f"the last change deleted {BACK} rows" in refused.stderr


STEPS = {
    "before it has the checkpoint": "SELECT feedq_checkpoint.feed_id",
    "before the rows are deleted": "DELETE FROM",
    "before the cursor is changed": "UPDATE feedq_checkpoint",
    "before it is remembered": "INSERT INTO feedq_cursor_change",
    "before the commit": "COMMIT",
    "before the control database knows": "UPDATE feedq.lease SET cursor",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_command_that_is_killed_leaves_the_old_cursor_or_the_new_one(bench: Bench, step: str) -> None:
    bench.wait_landed(PLAIN, 2 * BACK)
    before = bench.ask("history", PLAIN)
    sink, control = (url_of(bench.proxy.url, role) for role in (SINK_ROLE, Role.OPERATOR))
    application = "feedq-cli" if step == "before the control database knows" else "feedq-cli/"
    trap = bench.proxy.arm(Fault.HOLD, STEPS[step], application=application)
    assert bench.cluster.nursery is not None
    log = bench.cluster.directory / "rewind.log"
    command = bench.cluster.nursery.fork(
        "feedq",
        ["feed", "cursor", "rewind", PLAIN, "--records", str(BACK), "--delete", "--yes"],
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
    _, _, _, last = bench.landed(PLAIN)
    bench.wait_landed(PLAIN, last + 2 * BACK)
    bench.check(PLAIN)
    changed = bench.ask("history", PLAIN)[0] != before[0] if before else bool(bench.ask("history", PLAIN))
    # A commit that was on its way may arrive although nobody waits for its answer.
    assert step == "before the commit" or changed is (step == "before the control database knows")


def test_a_worker_that_is_killed_at_once_leaves_the_new_cursor_to_its_successor(bench: Bench) -> None:
    bench.wait_landed(PLAIN, 2 * BACK)
    lease = bench.cluster.leases()[PLAIN]
    assert lease.worker is not None
    done = bench.ask("rewind", PLAIN, "--records", str(BACK), "--delete", "--yes")
    bench.cluster.workers[lease.worker.partition("@")[0]].kill("SIGKILL")
    bench.wait_landed(PLAIN, done["before"] + BACK)
    bench.check(PLAIN)


def test_a_paused_feed_is_reset_and_begins_where_its_source_begins(bench: Bench) -> None:
    bench.wait_landed(BESIDE, BACK)
    bench.cluster.feedq("feed", "pause", BESIDE, "--wait")
    done = bench.ask("reset", BESIDE, "--delete", "--yes")
    assert (done["after"], bench.landed(BESIDE)[0]) == (None, 0)
    assert bench.ask("show", BESIDE)["cursor"] is None
    bench.cluster.feedq("feed", "resume", BESIDE)
    bench.wait_landed(BESIDE, BACK)
    bench.check(BESIDE)
    assert bench.landed(BESIDE)[2] == 1


def test_what_cannot_be_said_is_refused_with_words(bench: Bench) -> None:
    ran = bench.cluster.run("feed", "cursor", "rewind", KEYED, "--to", "1h", "--yes")
    assert ran.returncode == 2
    assert "do not tell the time" in ran.stderr
    assert "feedq feed cursor set" in ran.stderr
