"""How runs end while workers are killed, and through outages of the control database: none may end wrongly.

By hand only (``make bench ARGS=ends``, five minutes): 42 schedules of one second under 40 SIGKILLs, and outages of
1, 10 and 60 seconds in the middle of a run of each semantics. A run ends wrongly when

- it has `failed` or `timed_out`: no job does either by itself;
- it is `lost` under other semantics than `at_most_once`, or on a worker that was not killed.

A `transactional` run ends with its commit. If its database stands still until its time is up, the run is
`timed_out`, and that is right.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.report import Figure, at_most, say
from bench.servers import running
from feedq.control.store.postgresql import PostgresStore
from feedq.core.schedule.spec import Semantics
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.chaos import effects, storm, ticking
from tests.cluster import Cluster, wait_until
from tests.faults import frozen_database
from tests.nursery import Nursery
from tests.schedules import Keys, never

KILLS: Final = 40
KILL_EVERY_S: Final = 2.5
WORKERS: Final = 3
EACH: Final = 14
"""Schedules of each semantics: 42 of all three."""
OUTAGES_S: Final = (1.0, 10.0, 60.0)
TAKES_S: Final = 1.0
TIMEOUT_S: Final = 3.0
"""Longer than the run and the shortest outage together: a transactional run commits in time after it."""
LIMIT_S: Final = 120.0
SEED: Final = 12


def measure(directory: Path) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        yield from kills(directory, postgres, valkey)
        yield from outages(directory, postgres, valkey)


def kills(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """`KILLS` workers killed, one after another, while `ticking` schedules tick; each is started again."""
    rng = random.Random(SEED)
    url = postgres.create_database("kills")
    env = {**storm.SETTINGS, "FEEDQ_IMPORTS": storm.IMPORTED}
    with (
        Nursery(directory) as nursery,
        Cluster(directory, database_url=url, broker_url=valkey.url(), env=env, nursery=nursery) as cluster,
        closing(PostgresStore(url)) as store,
    ):
        cluster.sql(effects.TABLE)
        for name in ("b1", "b2"):
            cluster.add_beat(name)
        for n in range(WORKERS):
            cluster.add_worker(f"w{n}", "-Q", "jobs", capacity=8)
        schedules = store.jobs.schedules
        first = ticking.begin(schedules, ticking.ticking(each=EACH))
        killed: list[int] = []
        for _ in range(KILLS):
            time.sleep(KILL_EVERY_S * rng.uniform(0.5, 1.5))
            name = rng.choice(sorted(cluster.workers))
            victim = cluster.workers[name]
            killed.append(victim.pid)
            victim.signal(signal.SIGKILL)
            victim.wait(LIMIT_S)
            cluster.add_worker(name, "-Q", "jobs", capacity=8)
        ticking.end(cluster, schedules, first)
        account = ticking.account(cluster, first)
        wrong = ticking.wrongly_ended(cluster, killed=killed)
    say(f"ends: {KILLS} kills: {account}; wrong: {wrong[:5]}")
    case = f"{KILLS} SIGKILLs under {len(first)} schedules: runs that ended wrongly"
    yield at_most(case, 0, len(wrong), "", runs=str(account))


def outages(directory: Path, postgres: Postgres, valkey: Valkey) -> Iterator[Figure]:
    """Runs that are over in time while the database is away, and told when it is back, long after their
    time-out."""
    env = {"FEEDQ_IMPORTS": "tests.jobs_under_test"}
    url = postgres.create_database("outages")
    with (
        Cluster(directory, database_url=url, broker_url=valkey.url(), env=env) as cluster,
        closing(PostgresStore(url)) as store,
    ):
        cluster.add_beat("beat")
        for n in range(2):
            cluster.add_worker(f"w{n}", "-Q", "jobs", capacity=8)
        for semantics in Semantics:
            job: Keys = {
                "task": "tests.pause",
                "args": [TAKES_S],
                "semantics": semantics,
                "timeout": TIMEOUT_S,
            }
            store.jobs.schedules.add(never(semantics, **job))
        for away_s in OUTAGES_S:
            for cut in (False, True):
                wrong = _outage(cluster, store, postgres, away_s=away_s, cut=cut)
                how = "sessions cut off" if cut else "frozen"
                yield at_most(
                    f"{away_s:g} s without the database, {how}: runs that ended wrongly", 0, wrong, ""
                )


def _outage(cluster: Cluster, store: PostgresStore, postgres: Postgres, *, away_s: float, cut: bool) -> int:
    runs = [store.jobs.schedules.trigger(semantics).id for semantics in Semantics]
    going = "SELECT 1 FROM feedq.run WHERE id = ANY(%s) AND state = ANY(%s)"
    wait_until(lambda: len(cluster.sql(going, (runs, ["running"]))) == len(runs), "all run", limit_s=LIMIT_S)
    with frozen_database(postgres, cluster, cut=cut):
        time.sleep(away_s)
    wait_until(
        lambda: not cluster.sql(going, (runs, ["buffered", "waiting", "running"])),
        "all have ended",
        limit_s=LIMIT_S,
    )
    sql = "SELECT r.job ->> 'semantics' AS semantics, state, attempt, reason FROM feedq.run r WHERE id = ANY(%s)"
    ended = cluster.sql(sql, (runs,))
    say(f"ends: {away_s:g} s, {'cut' if cut else 'frozen'}: {[tuple(row.values()) for row in ended]}")
    may_time_out = Semantics.TRANSACTIONAL if not cut and away_s > TIMEOUT_S - TAKES_S else None
    return sum(
        row["state"] != "succeeded" and (row["state"], row["semantics"]) != ("timed_out", may_time_out)
        for row in ended
    )
