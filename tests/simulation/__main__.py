"""``python -m tests.simulation [--seed N | --seeds N] [--seconds S]``: run seeds on all cores, or replay one.

One PostgreSQL is started for all of them, and each process has a database of its own on it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import structlog

from feedq.local.postgres import Postgres
from tests.embedded import postgres_server
from tests.fakes.control import ControlDatabase
from tests.simulation.trouble import FAULTS_S, run_seed

QUIET = {
    "autovacuum": "off",
    "track_counts": "off",
    "track_activities": "off",
    "update_process_title": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
"""Nobody looks at this server, or goes on with it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one alone, and print what happened")
    parser.add_argument("--seeds", type=int, default=500, help="how many to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=FAULTS_S, help="of faults, simulated, each")
    options = parser.parse_args()
    with started() as server:
        if options.seed is not None:
            on_control_database(server.create_database("replay"))
            return replay(options.seed, options.seconds)
        return run(range(options.first, options.first + options.seeds), options.seconds, server)


@contextmanager
def started() -> Iterator[Postgres]:
    """A server with its files in memory, where there is some."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        directory = Path(made)
        directory.chmod(0o711)
        with postgres_server(directory, **QUIET) as server:
            yield server


def on_control_database(url: str) -> None:
    """Have the fleets of this process live on it, until the process ends."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    _for_good.enter_context(ControlDatabase(url).driven())


_for_good = ExitStack()


def replay(seed: int, seconds: float) -> int:
    try:
        fleet = run_seed(seed, faults_s=seconds)
        print(fleet.transcript)
    except AssertionError as error:
        print(error)
        return 1
    return 0


def run(seeds: range, seconds: float, server: Postgres) -> int:
    began = time.monotonic()
    failed: dict[int, str] = {}
    urls: SimpleQueue[str] = get_context().SimpleQueue()
    for number in range(processes := os.cpu_count() or 1):
        urls.put(server.create_database(f"process_{number}"))
    with ProcessPoolExecutor(processes, initializer=begin, initargs=(urls,)) as pool:
        results = pool.map(partial(problem, seconds=seconds), seeds, chunksize=10)
        for done, (seed, found) in enumerate(zip(seeds, results, strict=True), start=1):
            if found is not None:
                failed[seed] = found
                print(f"seed {seed}: {found}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(seeds)}, {len(failed)} failed", end="", file=sys.stderr, flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    if failed:
        print(f"replay with: make simulate SEED={min(failed)}")
    return bool(failed)


def begin(urls: SimpleQueue[str]) -> None:
    on_control_database(urls.get())


def problem(seed: int, *, seconds: float) -> str | None:
    """What was broken, in a line."""
    try:
        run_seed(seed, faults_s=seconds)
    except AssertionError as error:
        return str(error).split("\n", 1)[0]
    except Exception as error:
        return repr(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
