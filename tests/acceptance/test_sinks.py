"""Several named sinks at once: feeds of one worker land in databases of different kinds, each exactly once."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source
from tests.trouble import CASES, troubled

pytestmark = pytest.mark.timeout(180)

LIMIT_S = 60.0


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
            lambda: f"both land on the first worker:\n{cluster.workers['w1'].text()[-4000:]}",
        )
        assert {row.worker for row in cluster.leases().values()} == {cluster.leases()["two/files"].worker}
        cluster.workers["w1"].signal(signal.SIGKILL)
        cluster.add_worker("w2")
        reached = max(len(in_postgresql()), len(in_sqlite()))
        wait_until(
            both_reach(reached + 50),
            lambda: f"both land on the second worker:\n{cluster.workers['w2'].text()[-4000:]}",
        )
        cluster.feedq("feed", "pause", "two/default", "two/files")
        wait_until(lambda: {row.state for row in cluster.leases().values()} == {"idle"}, "both are paused")
        for landed in (in_postgresql(), in_sqlite()):
            assert landed == list(range(1, len(landed) + 1))
        with closing(sqlite3.connect(path)) as connection:
            ((cursor, records),) = connection.execute(
                "SELECT cursor, records FROM feedq_checkpoint"
            ).fetchall()
        assert (json.loads(cursor), records) == (len(in_sqlite()), len(in_sqlite()))


SILENT_MAX_S = 3.0

"""On a busy machine, with all cases at once; one at a time it is below 1 s: `make bench ARGS=trouble`."""


def test_neighbours_of_feeds_in_trouble_land_on_and_the_trouble_is_told(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    errors, refusals = [c for c in CASES if not c.dead], [c for c in CASES if c.dead]
    (locked,) = [case for case in CASES if case.table == "locked"]
    with troubled(tmp_path, database_url=database_url, broker_url=broker_url) as stage:
        stage.add(*errors)
        stage.wait_landed(*errors)
        began = stage.now()
        with ExitStack() as meddling:
            for case in errors:
                meddling.enter_context(stage.meddling(case))
            stage.add(*refusals)
            stage.wait_shown(*CASES)
            assert stage.longest_silence_s(began) < SILENT_MAX_S
            assert "is locked" in stage.lease(locked)["sink_error"]
            stage.wait_landed(*(case for case in refusals if not case.pours))
        wait_until(lambda: stage.lease(locked)["sink_error"] is None, "lands again")
        assert stage.wrong_neighbours() == []
        assert stage.longest_silence_s(began) < SILENT_MAX_S
