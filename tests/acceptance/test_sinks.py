"""Several named sinks at once: feeds of one worker land in databases of different kinds, each exactly once."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

LIMIT_S = 40.0


def test_two_feeds_of_one_worker_land_in_two_kinds_of_databases_through_a_crash(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    path = tmp_path / "landed.sqlite3"
    env = {"FEEDQ_SINKS__FILES": f"sqlite:///{path}"}
    with (
        Source(rate=50) as source,
        Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        into_files = feed("two/files", source.url)
        into_files["sink"] = {"name": "files", "table": "landed", "columns": {"seq": "/seq", "feed": "$feed"}}
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE landed (seq INTEGER, feed TEXT)")
        cluster.apply([feed("two/default", source.url), into_files])

        def in_postgresql() -> list[int]:
            rows = cluster.sql(
                "SELECT (payload ->> 'seq')::int AS seq FROM landed WHERE feed = 'two/default'"
            )
            return sorted(row["seq"] for row in rows)

        def in_sqlite() -> list[int]:
            with closing(sqlite3.connect(path, timeout=LIMIT_S)) as connection:
                rows = connection.execute("SELECT seq FROM landed WHERE feed = 'two/files'").fetchall()
            return sorted(seq for (seq,) in rows)

        def both_reach(count: int) -> Callable[[], bool]:
            return lambda: min(len(in_postgresql()), len(in_sqlite())) >= count

        wait_until(
            lambda: cluster.sql("SELECT to_regclass('landed') AS made")[0]["made"] and both_reach(20)(),
            limit_s=LIMIT_S,
            what=lambda: f"both land on the first worker:\n{cluster.workers['w1'].text()[-4000:]}",
        )
        assert {row.worker for row in cluster.leases().values()} == {cluster.leases()["two/files"].worker}
        cluster.workers["w1"].signal(signal.SIGKILL)
        cluster.add_worker("w2")
        reached = max(len(in_postgresql()), len(in_sqlite()))
        wait_until(
            both_reach(reached + 50),
            limit_s=LIMIT_S,
            what=lambda: f"both land on the second worker:\n{cluster.workers['w2'].text()[-4000:]}",
        )
        cluster.feedq("feed", "pause", "two/default", "two/files")
        wait_until(
            lambda: {row.state for row in cluster.leases().values()} == {"idle"},
            limit_s=LIMIT_S,
            what="both are paused",
        )
        for landed in (in_postgresql(), in_sqlite()):
            assert landed == list(range(1, len(landed) + 1))
        with closing(sqlite3.connect(path)) as connection:
            ((cursor, records),) = connection.execute(
                "SELECT cursor, records FROM feedq_checkpoint"
            ).fetchall()
        assert (json.loads(cursor), records) == (len(in_sqlite()), len(in_sqlite()))
