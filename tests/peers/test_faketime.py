"""Schedules on workers whose clocks are wrong: ticks go by the database's clock, which is right."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.spec import Overlap
from tests.chaos import effects, ticking
from tests.cluster import Cluster, wait_until
from tests.peers.servers import program

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

WRONG_S = 600.0
LATE_MAX_S = 60.0
"""Far less than the clocks are wrong by, and far more than anything takes."""
TICKS = 5
LIMIT_S = 60.0


def faked(clock: str) -> dict[str, str]:
    """The environment of a process with another clock. As when an operator sets it, durations stay as they are."""
    library = subprocess.run(
        [program("faketime"), "-f", "+0s", "printenv", "LD_PRELOAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {
        "LD_PRELOAD": library,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME": clock,
    }


@pytest.fixture
def cluster(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[Cluster]:
    env = {"FEEDQ_IMPORTS": "tests.chaos.effects"}
    with Cluster(tmp_path, database_url=database_url, broker_url=broker_url, env=env) as made:
        made.sql(effects.TABLE)
        yield made


def wait_ticks(cluster: Cluster, wrong: dict[str, float]) -> None:
    """Wait until each worker has run so many ticks with its clock as wrong as that."""
    pids = {cluster.workers[name].pid: seconds for name, seconds in wrong.items()}

    def counts() -> dict[int, int]:
        rows = cluster.sql("SELECT pid, clock - extract(epoch FROM began_at)::float8 AS wrong_s FROM effect")
        return {
            pid: sum(row["pid"] == pid and abs(row["wrong_s"] - seconds) < LATE_MAX_S for row in rows)
            for pid, seconds in pids.items()
        }

    wait_until(
        lambda: min(counts().values()) >= TICKS,
        limit_s=LIMIT_S,
        what=lambda: f"ticks on workers with wrong clocks: {counts()}",
    )


def test_ticks_come_on_time_and_once_whatever_the_clocks_of_the_workers_say(
    cluster: Cluster, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0s\n")
    stepping = {**faked(""), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    del stepping["FAKETIME"]
    cluster.add_beat("b1", env=faked("+600s"))
    cluster.add_worker("ahead", env=faked("+600s"))
    cluster.add_worker("behind", env=faked("-600s"))
    cluster.add_worker("stepping", env=stepping)
    store = PostgresStore(cluster.database_url)
    try:
        schedules = store.jobs.schedules
        # The library gets Python's sleep wrong, so these jobs do not sleep.
        specs = ticking.ticking(each=4, most_s=0.0, overlaps=(Overlap.ALLOW_ALL,))
        first: dict[str, datetime] = ticking.begin(schedules, specs)
        wrong = {"ahead": WRONG_S, "behind": -WRONG_S}
        wait_ticks(cluster, {**wrong, "stepping": 0.0})
        for seconds in (-WRONG_S, WRONG_S, 0.0):
            clock.write_text(f"{seconds:+.0f}s\n")
            wait_ticks(cluster, {**wrong, "stepping": seconds})
        ticking.end(cluster, schedules, first)
    finally:
        store.close()
    account = ticking.account(cluster, first)
    assert account.states == {"succeeded": account.ticks}
    assert account.effects == account.attempts == account.ticks
    (late,) = cluster.sql(
        "SELECT min(extract(epoch FROM e.began_at - r.tick_at))::float8 AS least, "
        "max(extract(epoch FROM e.began_at - r.tick_at))::float8 AS most "
        "FROM effect e JOIN feedq.schedule s ON s.name = e.schedule "
        "JOIN feedq.run r ON r.schedule_id = s.id AND r.key = e.key"
    )
    assert 0.0 <= late["least"] <= late["most"] < LATE_MAX_S
    assert not cluster.sql("SELECT 1 FROM feedq.worker WHERE state = 'gone'")
