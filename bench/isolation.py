"""Feeds whose code ends the process it runs in, beside thirty that must not suffer; and a machine that is busy.

Default settings, but for the memory that a worker may use and the length of a quarantine: 3 workers, 30 neighbours
of 10 records a second. After each deed lost workers are started again, and the feed comes back by itself once it
is mended. At the end every record of all feeds is counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.report import Figure, at_most, say
from bench.servers import running
from tests.isolation import NEIGHBOURS, WORKERS, Neighbourhood, neighbourhood
from tests.poison import Deed

DEEDS: tuple[tuple[Deed, str], ...] = (
    ("sleep", "numbers"),
    ("spin", "numbers"),
    ("hold the lock", "numbers"),
    ("hold the lock", "blocking-numbers"),
    ("abort", "numbers"),
    ("exit", "numbers"),
    ("grow", "numbers"),
    ("grow at once", "numbers"),
)
STUCK = frozenset({"sleep", "spin", "hold the lock"})
WORKER_BYTES = 500 * 2**20
BUSY_PER_CORE = 4
BUSY_S = float(os.environ.get("FEEDQ_BENCH_BUSY_S", "600"))


def measure(directory: Path) -> Iterator[Figure]:
    env = {"FEEDQ_MEMORY_LIMIT": str(WORKER_BYTES)}
    with (
        running(directory) as (postgres, valkey),
        neighbourhood(
            directory,
            database_url=postgres.create_database("isolation"),
            broker_url=valkey.url(),
            env=env,
        ) as place,
    ):
        for deed, connector in DEEDS:
            yield from _poison(place, deed, connector)
        place.heal()
        yield from _busy_machine(place)
        place.check_each_once()
        yield Figure("every record of every feed landed once", "yes", "yes", ok=True)


def _poison(place: Neighbourhood, deed: Deed, connector: str) -> Iterator[Figure]:
    what = f"{deed} ({connector})"
    place.heal()
    name = place.poison(deed, connector)
    outcome = place.do(name)
    say(f"{what}: {outcome}; {place.lease(name)['blame']}")
    place.mend(name)
    place.check_each_once()
    place.remove(name)
    yield at_most(f"{what}: workers lost", 2, outcome.workers_lost, "")
    yield at_most(f"{what}: in quarantine after", 30, outcome.named_after_s, "s")
    yield at_most(f"{what}: neighbours silent", 9 if deed in STUCK else 20, outcome.silence_s, "s")
    if deed in STUCK and outcome.ended_after_s is not None:
        yield at_most(f"{what}: process ended", 8, outcome.ended_after_s, "s")


def _busy_machine(place: Neighbourhood) -> Iterator[Figure]:
    """Four busy loops beside each core: that is no fault of a worker's."""
    count = BUSY_PER_CORE * (os.cpu_count() or 1)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    say(f"{count} busy loops for {BUSY_S:g} s")
    try:
        end = time.monotonic() + BUSY_S
        while time.monotonic() < end and _all_run(place):
            time.sleep(1.0)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    ended = [worker for worker in WORKERS if not place.cluster.workers[worker].is_running()]
    case = f"{count} busy loops for {BUSY_S:g} s: workers that ended"
    yield Figure(case, "none", ", ".join(ended) or "none", ok=not ended)
    place.wait_landing(NEIGHBOURS)


def _all_run(place: Neighbourhood) -> bool:
    return all(place.cluster.workers[worker].is_running() for worker in WORKERS)
