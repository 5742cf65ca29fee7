"""The faults of `tests.faults`, several times each, against the figures that feedq promises.

Same stage as in the chaos tests: 60 feeds of 20 records a second on 3 workers and 2 beats, default settings.
After every fault the invariants are checked: a fast failover that lost a record would be no achievement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bench.report import Figure, say
from bench.servers import running
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests import faults
from tests.stage import Stage, staged

T = TypeVar("T")

RUNS = 5
SLOW_RUNS = 2
"""For the faults that take a ttl by their nature."""


def measure(directory: Path, *, runs: int = RUNS, slow_runs: int = SLOW_RUNS) -> Iterator[Figure]:
    with running(directory) as (postgres, valkey):
        with staged(directory, postgres=postgres, valkey=valkey, database="faults") as stage:
            yield from _workers(stage, runs=runs, slow_runs=slow_runs)
            yield from _others(stage, runs=runs, slow_runs=slow_runs)
        yield from _many_feeds(directory, postgres, valkey, runs=slow_runs)


def _workers(stage: Stage, *, runs: int, slow_runs: int) -> Iterator[Figure]:
    killed = _repeat(stage, "kill -9 of a worker", lambda: faults.kill_worker(stage)[0], runs)
    yield _spread("kill -9 of a worker", [t.median_s for t in killed], [t.last_s for t in killed], 0.3, 1.0)
    stopped = _repeat(stage, "SIGTERM of a worker", lambda: faults.terminate_worker(stage)[0], runs)
    yield _spread("SIGTERM of a worker", [t.median_s for t in stopped], [t.last_s for t in stopped], 0.2, 0.6)
    yield _worst("SIGTERM of a worker: its process ends", [t.exit_s or 0.0 for t in stopped], 2.0)
    frozen = _repeat(stage, "SIGSTOP of a worker", lambda: faults.freeze_worker(stage)[0], slow_runs)
    yield _worst("SIGSTOP of a worker: elsewhere", [t.last_s for t in frozen], 8.0)
    inside = _repeat(
        stage, "SIGSTOP inside a transaction", lambda: faults.freeze_inside_transaction(stage)[0], slow_runs
    )
    yield _worst("SIGSTOP inside a transaction: once it is gone", [t.last_s for t in inside], 1.0)


def _others(stage: Stage, *, runs: int, slow_runs: int) -> Iterator[Figure]:
    killed = _repeat(stage, "kill -9 of the elected beat", lambda: faults.kill_leader(stage), runs)
    yield _worst("kill -9 of the elected beat: a new one", killed, 0.5)
    frozen = _repeat(stage, "SIGSTOP of the elected beat", lambda: faults.freeze_leader(stage)[0], slow_runs)
    yield _worst("SIGSTOP of the elected beat: a new one", frozen, 6.0)
    restarted = _repeat(stage, "PostgreSQL restarted", lambda: faults.restart_database(stage)[1], slow_runs)
    yield _worst("PostgreSQL restarted: all land again", restarted, 5.0)
    ended = _repeat(stage, "a session of a worker terminated", lambda: faults.terminate_sessions(stage), runs)
    yield _worst("a session of a worker terminated: all land again", ended, 5.0)
    alone = _repeat(
        stage, "kill -9 of a worker and every beat", lambda: faults.kill_worker_and_beats(stage)[0], slow_runs
    )
    yield _worst("kill -9 of a worker and every beat", [t.last_s for t in alone], 20.0)


def _many_feeds(directory: Path, postgres: Postgres, valkey: Valkey, *, runs: int) -> Iterator[Figure]:
    exits_s = []
    for number in range(runs):
        with faults.many_feeds(
            directory, postgres=postgres, broker_url=valkey.url(database=1), database=f"many{number}"
        ) as stage:
            took, _ = faults.terminate_worker(stage)
            stage.check()
        say(f"SIGTERM of a worker with {faults.MANY_FEEDS} feeds, run {number + 1}: {took}")
        assert took.exit_s is not None
        exits_s.append(took.exit_s)
    yield _worst(f"SIGTERM of a worker with {faults.MANY_FEEDS} feeds: its process ends", exits_s, 2.0)


def _repeat(stage: Stage, what: str, fault: Callable[[], T], runs: int) -> list[T]:
    found: list[T] = []
    for number in range(runs):
        stage.heal()
        found.append(fault())
        stage.check()
        say(f"{what}, run {number + 1}: {found[-1]}")
    return found


def _spread(
    case: str, medians_s: Sequence[float], lasts_s: Sequence[float], median_must_s: float, last_must_s: float
) -> Figure:
    median, last = statistics.median(medians_s), max(lasts_s)
    return Figure(
        case,
        f"median <= {median_must_s:g} s, last <= {last_must_s:g} s",
        f"median {median:.3f} s, last {last:.3f} s ({len(lasts_s)} runs)",
        median <= median_must_s and last <= last_must_s,
    )


def _worst(case: str, seconds: Sequence[float], must_s: float) -> Figure:
    return Figure(
        case,
        f"<= {must_s:g} s",
        f"worst {max(seconds):.3f} s, median {statistics.median(seconds):.3f} s ({len(seconds)} runs)",
        max(seconds) <= must_s,
    )
